"""Filling the demo's store: members, products and chat rooms once, interest in products now and then, and an event every
two seconds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from bongsu.demo.chat import ROOMS
from bongsu.demo.people import NAMES, STAR, people
from bongsu.demo.shop import PRODUCTS, Shop
from bongsu.errors import NotForDemo
from bongsu.ingress.intake import Intake
from bongsu.model import Action, Behavior, utc_now
from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop
from bongsu.settings import Settings
from bongsu.store import Store, Transaction
from bongsu.store.chat import rooms
from bongsu.store.chat.messages import NewMessage, add_messages
from bongsu.store.core.locks import lock_names
from bongsu.store.members import find_member, find_other_member, put_member, put_preferences
from bongsu.store.members.devices import put_device
from bongsu.store.members.products import add_behaviors, put_product

_log = telemetry.log("bongsu.demo")

# Fast enough that a reloaded page has something new, slow enough that the log can be read.
PACE_SECONDS = 2.0
LIMITS = {
    # The default of 10 a day would be used up within minutes.
    "daily_limit": 1_000,
    # A tab has two, for the bell and for the chat: with the default of 3 a second tab of the same member would close one.
    "sse_max_connections": 12,
}
# Interest counts for 7 days (BONGSU_INTERESTED_USER_DAYS): it is renewed well within them, however long the demo runs.
REFRESH = timedelta(hours=12)


def with_demo_limits(settings: Settings) -> Settings:
    """The settings with limits high enough for the demo, but for those that the user has set."""
    raised = {name: limit for name, limit in LIMITS.items() if name not in settings.model_fields_set}
    for name, limit in raised.items():
        _log.info("demo raises a limit", setting=f"BONGSU_{name.upper()}", limit=limit)
    return settings.model_copy(update=raised)


async def refuse_other_members(store: Store, settings: Settings) -> None:
    """Refuse a shared database that has members besides the demo's. The embedded store is the newcomer's own."""
    if settings.is_embedded:
        return
    async with store.read() as tx:
        other = await find_other_member(tx, NAMES)
    if other is not None:
        raise NotForDemo(f"{store.location} has members of its own, such as {other}")


async def fill(store: Store, now: datetime | None = None) -> bool:
    """Add members, products and chat rooms the first time only, so that later changes stay; add recent interest every time.
    Returns whether it was the first time."""
    async with store.transaction() as tx:
        await tx.fetch(lock_names(["demo"]))
        is_first = await find_member(tx, STAR) is None
        if is_first:
            for person in people():
                await put_member(tx, person.member_id, person.member)
                await put_preferences(tx, person.member_id, person.preferences)
                for device_id, device in person.devices.items():
                    await put_device(tx, person.member_id, device_id, device)
            for product_id, product in PRODUCTS.items():
                await put_product(tx, product_id, product)
        await add_behaviors(tx, list(behaviors(now or utc_now())))
        await _add_rooms(tx)
    return is_first


async def _add_rooms(tx: Transaction) -> None:
    """Those that are not there: a store may be older than the demo's chat."""
    for room in ROOMS:
        if await rooms.exists(tx, room.room_id):
            continue
        await rooms.create_room(tx, room.room_id, room.name, room.member_ids)
        messages = [
            NewMessage(room.room_id, sender_id, f"demo-{number}", text)
            for number, (sender_id, text) in enumerate(room.messages)
        ]
        await add_messages(tx, messages)
        for member_id in room.read:
            await rooms.mark_read(tx, room.room_id, member_id, len(messages))


def behaviors(now: datetime) -> Iterator[Behavior]:
    """Which member viewed and carted which product in the last three days. Always the same but for the times."""
    chance = random.Random(1)  # noqa: S311 (a shop, not a secret)
    for member_id in NAMES:
        for product_id in PRODUCTS:
            is_viewed, is_carted = chance.random() < 0.4, chance.random() < 0.2
            at = now - timedelta(hours=chance.randrange(72))
            if is_viewed or member_id == STAR:
                yield Behavior(user_id=member_id, product_id=product_id, action=Action.VIEW, at=at)
            if is_carted:
                yield Behavior(user_id=member_id, product_id=product_id, action=Action.ADD_TO_CART, at=at)


class Traffic(Loop):
    """Publishes the shop's events through the intake, one at a time."""

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
        """Returns 0, so that the next event comes after the pace and not at once."""
        await self._refresh_interest()
        happening = self._shop.next()
        await self._intake.accept([happening.event])
        self._log.info("demo event", summary=happening.summary, event_id=str(happening.event.event_id))
        return 0

    async def _refresh_interest(self) -> None:
        if self._clock() - self._filled_at >= REFRESH:
            await fill(self._store, self._clock())
            self._filled_at = self._clock()
