"""The demo: a small shop in which something happens every other second, so that a newcomer has inboxes to look at.

What happens is made up by `Shop`, which is plain and knows no store. `fill` and `Trickle` bring it into one, the latter
through the intake, like any other caller.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from bongsu.errors import NotForDemo
from bongsu.ingress.intake import Intake
from bongsu.model import (
    Action,
    Behavior,
    Device,
    Event,
    Member,
    Notice,
    Platform,
    Preferences,
    Product,
    QuietHours,
    TypePreference,
    utc_now,
)
from bongsu.rules import Rules, catalogue
from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop
from bongsu.settings import Settings
from bongsu.store import Store, Table
from bongsu.store.core.locks import lock_names
from bongsu.store.core.query import fetch_one, in_both
from bongsu.store.members import find_member, put_member, put_preferences
from bongsu.store.members.devices import put_device
from bongsu.store.members.products import add_behaviors, put_product

_log = telemetry.log("bongsu.demo")

# Quick enough that a page reloaded by hand has something new, slow enough that the log can be read along.
PACE_SECONDS = 2.0
# The usual 10 a day would silence the shop within minutes.
DAILY_LIMIT = 1_000
# Interest is looked for in the last 7 days: well within them, however long the demo runs.
REFRESH = timedelta(hours=12)
# The same said twice within an hour is a duplicate, and one told to nobody is no use to a newcomer but now and then.
NEWS_AFTER = timedelta(hours=1)
DUPLICATES = 0.1
# Of what happens to one member, so much happens to the one whom the greeting names.
STAR = "mina"
STAR_SHARE = 0.3

NAMES = {
    "mina": "미나", "junho": "준호", "seoyeon": "서연", "dohyun": "도현", "haeun": "하은", "jiwoo": "지우", "minjae": "민재",
    "yuna": "유나", "sujin": "수진", "taeyang": "태양", "eunji": "은지", "hyunwoo": "현우", "jisoo": "지수", "nari": "나리",
    "sora": "소라", "jinwoo": "진우", "bora": "보라", "gyuri": "규리", "woojin": "우진", "areum": "아름", "hana": "하나",
    "seungmin": "승민", "yerin": "예린", "chaewon": "채원", "kyungho": "경호", "donghyun": "동현",
    "emma": "Emma", "oliver": "Oliver", "noah": "Noah", "ava": "Ava", "liam": "Liam", "sophie": "Sophie", "lucas": "Lucas",
    "grace": "Grace", "henry": "Henry", "chloe": "Chloe", "jack": "Jack", "ella": "Ella", "leo": "Leo", "ruby": "Ruby",
}  # fmt: skip
# Who is not here reads Korean and lives in Seoul.
ABROAD = {
    "emma": "America/New_York", "oliver": "Europe/London", "noah": "America/Los_Angeles", "ava": "America/Chicago",
    "liam": "Europe/Dublin", "sophie": "Europe/Berlin", "lucas": "America/Sao_Paulo", "grace": "Asia/Singapore",
    "henry": "Australia/Sydney", "chloe": "Pacific/Auckland", "jack": "Asia/Kolkata", "ella": "Europe/Paris",
    "leo": "Asia/Tokyo", "ruby": "America/Toronto",
}  # fmt: skip
PRODUCTS = {
    "demo-earphones": Product(name="무선 이어폰", price=89_000),
    "demo-lamp": Product(name="한지 조명", price=54_000),
    "demo-teapot": Product(name="백자 찻주전자", price=72_000),
    "demo-keyboard": Product(name="기계식 키보드", price=129_000),
    "demo-moka": Product(name="Moka Pot", price=38_000),
    "demo-backpack": Product(name="Day Pack 20L", price=98_000),
    "demo-blanket": Product(name="Wool Blanket", price=65_000),
    "demo-bicycle": Product(name="City Bike", price=420_000),
}
NOTICES = (
    ("봄맞이 무료 배송", "이번 주말까지 모든 주문을 무료로 배송합니다. Free delivery until Sunday."),
    ("점검 안내", "오늘 새벽 3시부터 10분 동안 점검합니다. We will be away for ten minutes at 3 a.m."),
    ("새 매장이 문을 열었어요", "성수동에서 만나요. Our new shop in Seongsu is open."),
)
_TURNED_OFF = ("FOLLOW", "POST_LIKE", "PRICE_DROP")


# --- what is there ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Person:
    """A member of the shop. Addresses are of the kind that is set apart for examples: nothing sent there reaches anybody."""

    member_id: str
    member: Member
    devices: Mapping[str, Device]
    wish: Preferences


def crowd() -> Iterator[Person]:
    """Always the same people: some with a device or two, some to be left alone at night, some who want less than all."""
    for place, member_id in enumerate(NAMES):
        abroad = ABROAD.get(member_id)
        yield Person(
            member_id,
            Member(
                locale="en" if abroad else "ko",
                timezone=abroad or "Asia/Seoul",
                email=f"{member_id}@shop.example" if place % 3 == 0 else None,
                phone=f"+1 202 555 01{place:02}" if place % 4 == 0 else None,
            ),
            dict(_devices(place, member_id)),
            Preferences(
                types={_TURNED_OFF[place % 3]: TypePreference(enabled=False)} if place % 7 == 0 else {},
                quiet_hours=QuietHours(start="22:00", end="08:00") if place % 5 == 2 else None,
            ),
        )


def _devices(place: int, member_id: str) -> Iterator[tuple[str, Device]]:
    if place % 2 == 0:
        platform = Platform.IOS if place % 4 == 0 else Platform.ANDROID
        yield "phone", Device(token=f"demo-phone-{member_id}", platform=platform, push_consent=place % 10 != 4)
    if place % 6 == 0:
        yield "browser", Device(token=f"demo-browser-{member_id}", platform=Platform.WEB, push_consent=True)


def behaviors(now: datetime) -> Iterator[Behavior]:
    """Who looked at what and carted it, in the last days. Always the same but for the times."""
    dice = random.Random(1)  # noqa: S311 (a shop, not a secret)
    for member_id in NAMES:
        for product_id in PRODUCTS:
            looks, carts = dice.random() < 0.4, dice.random() < 0.2
            at = now - timedelta(hours=dice.randrange(72))
            if looks or member_id == STAR:
                yield Behavior(user_id=member_id, product_id=product_id, action=Action.VIEW, at=at)
            if carts:
                yield Behavior(user_id=member_id, product_id=product_id, action=Action.ADD_TO_CART, at=at)


# --- what happens -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Happening:
    """An event, and what is said of it to whoever watches the log."""

    event: Event
    said: str


class Shop:
    """Thinks up what happens next; the same for the same seed and clock."""

    def __init__(self, seed: int | None = None, clock: Callable[[], datetime] = utc_now) -> None:
        self._dice = random.Random(seed)  # noqa: S311
        self._clock = clock
        self._news: dict[tuple[str, str], datetime] = {}
        # A newcomer sees one of each before chance takes over, and the first of them at once.
        self._first = [self._price_falls, self._comment, self._restock, self._reservation, self._like, self._follow]
        self._often: dict[Callable[[], Happening], int] = {
            self._price_falls: 8,
            self._restock: 4,
            self._like: 12,
            self._comment: 12,
            self._follow: 6,
            self._reservation: 4,
            self._notice: 1,
        }

    def next(self) -> Happening:
        if self._first:
            return self._first.pop(0)()
        (kind,) = self._dice.choices(list(self._often), list(self._often.values()))
        return kind()

    def _price_falls(self) -> Happening:
        product_id = self._product("price")
        if product_id is None:
            return self._comment()
        name, before = PRODUCTS[product_id].name, int(PRODUCTS[product_id].price or 0)
        after = before * (100 - self._dice.randrange(10, 45, 5)) // 100
        event = Event(
            event_type="product.price_changed", ref_id=product_id, payload={"previousPrice": before, "currentPrice": after}
        )
        return Happening(event, f"{name} falls from {before:,} to {after:,} won")

    def _restock(self) -> Happening:
        product_id = self._product("stock")
        if product_id is None:
            return self._like()
        stock = self._dice.randint(3, 30)
        event = Event(
            event_type="product.stock_changed", ref_id=product_id, payload={"previousStock": 0, "currentStock": stock}
        )
        return Happening(event, f"{PRODUCTS[product_id].name} is back, {stock} in stock")

    def _like(self) -> Happening:
        actor, target = self._two()
        post = f"post-{target}-{self._dice.randint(1, 5)}"
        return Happening(_act("post.liked", actor, target, post), f"{actor} likes a post of {target}")

    def _comment(self) -> Happening:
        actor, target = self._two()
        post = f"post-{target}-{self._dice.randint(1, 5)}"
        return Happening(_act("comment.created", actor, target, post), f"{actor} comments on a post of {target}")

    def _follow(self) -> Happening:
        actor, target = self._two()
        return Happening(_act("follow.created", actor, target), f"{actor} follows {target}")

    def _reservation(self) -> Happening:
        _, target = self._two()
        number = f"R-{self._dice.randrange(1_000_000):06}"
        event = Event(event_type="reservation.confirmed", target_id=target, ref_id=number)
        return Happening(event, f"reservation {number} of {target} is confirmed")

    def _notice(self) -> Happening:
        """To the shop's own people: whoever else is in the store did not ask for a demo."""
        title, body = self._dice.choice(NOTICES)
        payload = {"title": title, "body": body, "memberIds": list(NAMES)}
        return Happening(Event(event_type="notice.published", payload=payload), f"a notice to everybody: {title}")

    def _two(self) -> tuple[str, str]:
        """Who does something, and to whom."""
        target = STAR if self._first or self._dice.random() < STAR_SHARE else self._dice.choice(list(NAMES))
        return self._dice.choice([one for one in NAMES if one != target]), target

    def _product(self, what: str) -> str | None:
        """One of which this is news; now and then any, so that there are duplicates to look at."""
        now = self._clock()
        news = [one for one in PRODUCTS if (what, one) not in self._news or now - self._news[what, one] > NEWS_AFTER]
        if self._dice.random() < DUPLICATES and not self._first:
            news = list(PRODUCTS)
        if not news:
            return None
        product_id = self._dice.choice(news)
        self._news[what, product_id] = now
        return product_id


def _act(event_type: str, actor: str, target: str, ref_id: str | None = None) -> Event:
    payload = {"actorName": NAMES[actor]}
    return Event(event_type=event_type, actor_id=actor, target_id=target, ref_id=ref_id, payload=payload)


# --- what a visitor does ----------------------------------------------------------------------------------------------

# Before the type of what a visitor of the shop's page has brought about by a button.
PRESSED = "demo."
BUTTONS = (
    "product.price_changed", "product.stock_changed", "post.liked", "comment.created", "reservation.confirmed",
    "notice.published",
)  # fmt: skip


def with_buttons(settings: Settings, app: Rules | None = None) -> Rules:
    """The app's rules, and what the usual ones say of what a visitor did: every time, with no duplicate window. Whoever
    presses twice wants to hear it twice, and the shop's own goings-on may have said the same a minute ago."""
    usual = catalogue(settings)
    rules = Rules(app or Rules())

    def say(event: Event) -> Iterable[Notice]:
        meant = event.model_copy(update={"event_type": event.event_type.removeprefix(PRESSED)})
        return [replace(notice, subject=str(event.event_id)) for notice in usual.detect(meant)]

    for event_type in BUTTONS:
        rules.rule(PRESSED + event_type)(say)
    return rules


# --- into the store ---------------------------------------------------------------------------------------------------


def with_room(settings: Settings) -> Settings:
    """The settings, with a daily limit a busy shop fits into, unless the user has set one."""
    if "daily_limit" in settings.model_fields_set:
        return settings
    _log.info(f"the daily limit is {DAILY_LIMIT:,} in the demo; BONGSU_DAILY_LIMIT sets another")
    return settings.model_copy(update={"daily_limit": DAILY_LIMIT})


_MEMBER_IDS = {"member_id": "text"}
# One member that is not among those given. $1 the shop's own members.
_FIND_STRANGER = in_both(
    lambda d: (
        f"""
    SELECT member_id FROM bongsu_members
    WHERE member_id NOT IN (SELECT given.member_id FROM {d.table("given", _MEMBER_IDS, 1)}) LIMIT 1"""
    )
)


async def refuse_strangers(store: Store, settings: Settings) -> None:
    """Refuse a shared database that has members other than the shop's own. The embedded store is the newcomer's own."""
    if settings.is_embedded:
        return
    async with store.read() as tx:
        stranger = await fetch_one(tx, _FIND_STRANGER(Table(_MEMBER_IDS, [(one,) for one in NAMES])))
    if stranger is not None:
        raise NotForDemo(f"{store.place} has members of its own, such as {stranger['member_id']}")


async def fill(store: Store, now: datetime | None = None) -> bool:
    """Add members and products the first time only, so that later changes stay; add recent interest every time. Returns
    whether it was the first time."""
    async with store.transaction() as tx:
        await tx.fetch(lock_names(["demo"]))
        is_first = await find_member(tx, STAR) is None
        if is_first:
            for person in crowd():
                await put_member(tx, person.member_id, person.member)
                await put_preferences(tx, person.member_id, person.wish)
                for device_id, device in person.devices.items():
                    await put_device(tx, person.member_id, device_id, device)
            for product_id, product in PRODUCTS.items():
                await put_product(tx, product_id, product)
        await add_behaviors(tx, list(behaviors(now or utc_now())))
    return is_first


class Trickle(Loop):
    """Puts in what happens in the shop, one event at a time."""

    def __init__(
        self,
        store: Store,
        intake: Intake,
        shop: Shop | None = None,
        pace_seconds: float = PACE_SECONDS,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__("demo", pace_seconds)
        self._store = store
        self._intake = intake
        self._shop = shop or Shop()
        self._clock = clock
        self._filled_at = clock()

    async def tick(self) -> int:
        """Nothing is left to do at once: the next comes at the shop's own pace."""
        await self._keep_interest()
        happening = self._shop.next()
        await self._intake.accept([happening.event])
        self._log.info(f"demo: {happening.said}", event_id=str(happening.event.event_id))
        return 0

    async def _keep_interest(self) -> None:
        if self._clock() - self._filled_at >= REFRESH:
            await fill(self._store, self._clock())
            self._filled_at = self._clock()


def hints(program: str, address: str, token: str) -> Sequence[tuple[str, str]]:
    """What to try first, and what it shows. Where the token must not be shown, the command asks for it."""
    bearer = token or f"$({program} token {STAR})"
    inbox = f'curl "{address}/api/notifications?limit=3" -H "Authorization: Bearer {bearer}"'
    return (
        ("The shop, with the bell: open it in two tabs", f"{address}/demo"),
        (f"The inbox of {STAR}, a little fuller every few seconds", inbox),
        (f"What {STAR} got and did not get, and why", f"{program} why {STAR}"),
        ("A token to call with, for any member", f"{program} token {STAR}"),
    )
