"""The demo's members: always the same 40 people, with devices, addresses and preferences of many kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bongsu.model import Device, Member, Platform, Preferences, QuietHours, TypePreference

# The member whom the greeting names.
STAR = "mina"

NAMES = {
    "mina": "미나", "junho": "준호", "seoyeon": "서연", "dohyun": "도현", "haeun": "하은", "jiwoo": "지우", "minjae": "민재",
    "yuna": "유나", "sujin": "수진", "taeyang": "태양", "eunji": "은지", "hyunwoo": "현우", "jisoo": "지수", "nari": "나리",
    "sora": "소라", "jinwoo": "진우", "bora": "보라", "gyuri": "규리", "woojin": "우진", "areum": "아름", "hana": "하나",
    "seungmin": "승민", "yerin": "예린", "chaewon": "채원", "kyungho": "경호", "donghyun": "동현",
    "emma": "Emma", "oliver": "Oliver", "noah": "Noah", "ava": "Ava", "liam": "Liam", "sophie": "Sophie", "lucas": "Lucas",
    "grace": "Grace", "henry": "Henry", "chloe": "Chloe", "jack": "Jack", "ella": "Ella", "leo": "Leo", "ruby": "Ruby",
}  # fmt: skip
# The others read Korean and live in Seoul.
ABROAD = {
    "emma": "America/New_York", "oliver": "Europe/London", "noah": "America/Los_Angeles", "ava": "America/Chicago",
    "liam": "Europe/Dublin", "sophie": "Europe/Berlin", "lucas": "America/Sao_Paulo", "grace": "Asia/Singapore",
    "henry": "Australia/Sydney", "chloe": "Pacific/Auckland", "jack": "Asia/Kolkata", "ella": "Europe/Paris",
    "leo": "Asia/Tokyo", "ruby": "America/Toronto",
}  # fmt: skip
_TURNED_OFF = ("FOLLOW", "POST_LIKE", "PRICE_DROP")


@dataclass(frozen=True)
class Person:
    """A member of the demo. Addresses are reserved for examples: nothing sent there reaches a real person."""

    member_id: str
    member: Member
    devices: Mapping[str, Device]
    preferences: Preferences


def people() -> Iterator[Person]:
    """Some have one or two devices, some quiet hours at night, some have turned a notice type off."""
    for number, member_id in enumerate(NAMES):
        abroad = ABROAD.get(member_id)
        yield Person(
            member_id,
            Member(
                locale="en" if abroad else "ko",
                timezone=abroad or "Asia/Seoul",
                email=f"{member_id}@shop.example" if number % 3 == 0 else None,
                phone=f"+1 202 555 01{number:02}" if number % 4 == 0 else None,
            ),
            dict(_devices(number, member_id)),
            Preferences(
                types={_TURNED_OFF[number % 3]: TypePreference(enabled=False)} if number % 7 == 0 else {},
                quiet_hours=QuietHours(start="22:00", end="08:00") if number % 5 == 2 else None,
            ),
        )


def _devices(number: int, member_id: str) -> Iterator[tuple[str, Device]]:
    if number % 2 == 0:
        platform = Platform.IOS if number % 4 == 0 else Platform.ANDROID
        yield "phone", Device(token=f"demo-phone-{member_id}", platform=platform, push_consent=number % 10 != 4)
    if number % 6 == 0:
        yield "browser", Device(token=f"demo-browser-{member_id}", platform=Platform.WEB, push_consent=True)
