"""The demo's chat rooms, and what their members have written before a visitor comes. Knows no store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid5

_NAMESPACE = UUID("7f0c1f0e-6a3b-5d55-9f0a-6b5e2c8f4d21")


@dataclass(frozen=True)
class DemoRoom:
    """A room with its members and messages, as pairs of sender and text. Of those in `read`, all is read already."""

    name: str
    member_ids: Sequence[str]
    messages: Sequence[tuple[str, str]]
    read: Sequence[str] = ()

    @property
    def room_id(self) -> UUID:
        """Always the same, so that it is added once."""
        return uuid5(_NAMESPACE, self.name)


ROOMS = (
    DemoRoom(
        "동네 사람들 · Neighbours",
        ("mina", "seoyeon", "haeun", "minjae", "emma", "liam", "lucas", "jack", "junho", "yuna", "dohyun"),
        (
            ("junho", "골목 끝 빵집이 다시 문을 열었대요 🥐"),
            ("yuna", "오, 소금빵도 나와요?"),
            ("junho", "아침 8시에 나오는데 9시면 다 팔린대요."),
            ("emma", "Good morning! I can pick some up on my way back from the park."),
            ("haeun", "Emma 고마워요! 저는 두 개 부탁해요."),
            ("liam", "Three for me, please. I will bring the coffee ☕"),
            ("dohyun", "그럼 10시에 놀이터 앞에서 만나요."),
        ),
        ("junho", "yuna", "dohyun", "haeun", "emma"),
    ),
    DemoRoom(
        "한강 캠핑",
        ("mina", "seoyeon", "haeun", "minjae", "junho", "jiwoo"),
        (
            ("seoyeon", "토요일 날씨 맑음! 캠핑 갈 사람?"),
            ("minjae", "저요. 텐트는 제가 가져갈게요."),
            ("mina", "저도 갈래요. 한지 조명 챙길게요 🏮"),
            ("haeun", "저는 모카 포트랑 원두요."),
            ("seoyeon", "완벽하네요. 3시까지 뚝섬에서 봐요!"),
        ),
        ("seoyeon", "minjae", "jiwoo"),
    ),
    DemoRoom(
        "Sunday flea market",
        ("emma", "liam", "lucas", "jack", "mina", "grace", "noah"),
        (
            ("lucas", "Who still has things to sell on Sunday?"),
            ("jack", "A city bike. It only wants a new chain."),
            ("grace", "I would like to see it before the others do!"),
            ("mina", "저는 찻주전자 두 개요. Two teapots from me."),
            ("lucas", "Great. We have table 14, by the fountain."),
        ),
        ("lucas", "jack", "grace"),
    ),
)
