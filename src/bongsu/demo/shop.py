"""The demo's shop: its products, and what happens in it next. Knows no store."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from bongsu.demo.people import NAMES, STAR
from bongsu.model import Event, Product, utc_now

# The dedup window is an hour: a price or stock change of the same product within it notifies no member. So such a change
# is chosen only now and then, to show duplicates.
DEDUP_WINDOW = timedelta(hours=1)
DUPLICATES = 0.1
# The share of member events that are about STAR.
STAR_SHARE = 0.3

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


@dataclass(frozen=True)
class Happening:
    """An event, and its summary for the log."""

    event: Event
    summary: str


class Shop:
    """Makes up the next event; the same sequence for the same seed and clock."""

    def __init__(self, seed: int | None = None, clock: Callable[[], datetime] = utc_now) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._clock = clock
        self._chosen_at: dict[tuple[str, str], datetime] = {}
        # One of each comes first, in this order; then random ones.
        self._first = [
            self._price_drop,
            self._comment,
            self._restock,
            self._reservation,
            self._like,
            self._follow,
            self._like,
        ]
        self._weights: dict[Callable[[], Happening], int] = {
            self._price_drop: 8,
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
        (happen,) = self._random.choices(list(self._weights), list(self._weights.values()))
        return happen()

    def _price_drop(self) -> Happening:
        product_id = self._product("price")
        if product_id is None:
            return self._comment()
        name, before = PRODUCTS[product_id].name, int(PRODUCTS[product_id].price or 0)
        after = before * (100 - self._random.randrange(10, 45, 5)) // 100
        event = Event(
            event_type="product.price_changed", ref_id=product_id, payload={"previousPrice": before, "currentPrice": after}
        )
        return Happening(event, f"{name} falls from {before:,} to {after:,} won")

    def _restock(self) -> Happening:
        product_id = self._product("stock")
        if product_id is None:
            return self._like()
        stock = self._random.randint(3, 30)
        event = Event(
            event_type="product.stock_changed", ref_id=product_id, payload={"previousStock": 0, "currentStock": stock}
        )
        return Happening(event, f"{PRODUCTS[product_id].name} is back, {stock} in stock")

    def _like(self) -> Happening:
        actor, target = self._actor_and_target()
        # Few posts, so that their likes are gathered into digests.
        post = f"post-{target}-{self._random.randint(1, 2)}"
        return Happening(_social_event("post.liked", actor, target, post), f"{actor} likes a post of {target}")

    def _comment(self) -> Happening:
        actor, target = self._actor_and_target()
        post = f"post-{target}-{self._random.randint(1, 5)}"
        return Happening(_social_event("comment.created", actor, target, post), f"{actor} comments on a post of {target}")

    def _follow(self) -> Happening:
        actor, target = self._actor_and_target()
        return Happening(_social_event("follow.created", actor, target), f"{actor} follows {target}")

    def _reservation(self) -> Happening:
        _, target = self._actor_and_target()
        number = f"R-{self._random.randrange(1_000_000):06}"
        event = Event(event_type="reservation.confirmed", target_id=target, ref_id=number)
        return Happening(event, f"reservation {number} of {target} is confirmed")

    def _notice(self) -> Happening:
        """To the demo's own members only: the embedded store may have others."""
        title, body = self._random.choice(NOTICES)
        payload = {"title": title, "body": body, "memberIds": list(NAMES)}
        return Happening(Event(event_type="notice.published", payload=payload), f"a notice to everybody: {title}")

    def _actor_and_target(self) -> tuple[str, str]:
        """The actor and the target of an event."""
        target = STAR if self._first or self._random.random() < STAR_SHARE else self._random.choice(list(NAMES))
        return self._random.choice([name for name in NAMES if name != target]), target

    def _product(self, change: str) -> str | None:
        """A product outside the dedup window for this kind of change; sometimes any product, to show duplicates."""
        now = self._clock()
        candidates = [
            product_id
            for product_id in PRODUCTS
            if (change, product_id) not in self._chosen_at or now - self._chosen_at[change, product_id] > DEDUP_WINDOW
        ]
        if self._random.random() < DUPLICATES and not self._first:
            candidates = list(PRODUCTS)
        if not candidates:
            return None
        product_id = self._random.choice(candidates)
        self._chosen_at[change, product_id] = now
        return product_id


def _social_event(event_type: str, actor: str, target: str, ref_id: str | None = None) -> Event:
    payload = {"actorName": NAMES[actor]}
    return Event(event_type=event_type, actor_id=actor, target_id=target, ref_id=ref_id, payload=payload)
