"""Helpers for tests of decisions: a store to fill, events to decide, and what was decided for each member."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bongsu.decide.progress import EventInProgress
from bongsu.decide.step import CHUNK, Decider
from bongsu.decide.worker import EventWorker
from bongsu.model import Action, Audience, Behavior, Channel, Device, Event, Notice, NoticeType, Platform, Preferences
from bongsu.render.templates import Templates
from bongsu.rules import Rules
from bongsu.settings import Settings
from bongsu.store import Store, Transaction, outbox
from bongsu.store.core.query import same
from bongsu.store.members import ensure_members, products, put_preferences
from bongsu.store.members.devices import put_device
from bongsu.store.outbox import LockedClaims

IN_APP = (Channel.IN_APP,)
# Yesterday's noon in Seoul: no quiet hours unless a test wants them.
NOON = datetime.now(UTC).replace(hour=3, minute=0, second=0, microsecond=0) - timedelta(days=1)


class Clock:
    """Stands still until it is moved."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **time: float) -> None:
        self.now += timedelta(**time)


@functools.cache
def _templates_in(_folder: Path) -> Templates:
    """Compiled once per folder in which tests run: to compile them takes longer than most decisions."""
    return Templates.load()


class ClockedDecider(Decider):
    """Decides as if the store's time were that of a clock."""

    def __init__(self, store: Store, settings: Settings, clock: Callable[[], datetime], chunk: int = CHUNK) -> None:
        super().__init__(store, _templates_in(Path.cwd()), settings, chunk)
        self._clock = clock

    async def lock_claims(self, tx: Transaction, events: Sequence[EventInProgress]) -> LockedClaims:
        return (await super().lock_claims(tx, events))._replace(now=self._clock())


def rules_notifying(
    audience: Audience | Callable[[Event], Audience],
    kind: NoticeType | None = None,
    subject: str = "",
    **notice: Any,
) -> Rules:
    """One rule: any event of type `said` becomes one notice to that audience."""
    rules = Rules()
    kind = kind or NoticeType("SAID", IN_APP)

    @rules.rule("said")
    def trigger_event(event: Event) -> Iterable[Notice]:
        recipients = audience(event) if callable(audience) else audience
        yield Notice(kind, recipients, subject=subject or event.ref_id or str(event.event_id), title="t", body="b", **notice)

    return rules


def trigger_event(ref_id: str | None = None, **fields: Any) -> Event:
    return Event(event_type="said", ref_id=ref_id, **fields)


async def decide(
    store: Store,
    settings: Settings,
    rules: Rules,
    *events: Event,
    chunk: int = CHUNK,
    clock: Callable[[], datetime] | None = None,
) -> None:
    """Publish the events and decide them to the end."""
    async with store.transaction() as tx:
        await outbox.add(tx, events)
    await run_worker(EventWorker(store, rules, settings, ClockedDecider(store, settings, clock or Clock(), chunk)))


async def run_worker(worker: EventWorker) -> None:
    while await tick_until_work(worker):
        pass
    await worker.stop()


async def tick_until_work(worker: EventWorker) -> int:
    """One tick that does something, after the users' SELECTs it may have to wait for; 0 if there is nothing to do."""
    while not (done := await worker.tick()) and await worker.selects.wait():
        pass
    return done


async def add_members(store: Store, *member_ids: str, device: bool = False) -> None:
    async with store.transaction() as tx:
        await ensure_members(tx, member_ids)
        for member_id in member_ids if device else ():
            await put_device(tx, member_id, "phone", _device(f"token-{member_id}"))


async def set_preferences(store: Store, member_id: str, **preferences: Any) -> None:
    async with store.transaction() as tx:
        await put_preferences(tx, member_id, Preferences.model_validate(preferences, strict=False))


async def add_behaviors(
    store: Store, product_id: str, *member_ids: str, action: Action = Action.VIEW, at: datetime = NOON
) -> None:
    async with store.transaction() as tx:
        await products.add_behaviors(
            tx, [Behavior(user_id=one, product_id=product_id, action=action, at=at) for one in member_ids]
        )


def _device(token: str) -> Device:
    return Device(token=token, platform=Platform.ANDROID, push_consent=True)


async def rows(store: Store, query: str, *parameters: Any) -> Sequence[Any]:
    """What a SELECT that both databases understand returns."""
    async with store.read() as tx:
        return await tx.fetch(same(query)(*parameters))


async def run_sql(store: Store, *statements: str) -> None:
    """Statements that both databases understand, in one transaction."""
    async with store.transaction() as tx:
        await tx.execute(*(same(one)() for one in statements))


async def results_by_member(store: Store) -> dict[str, Counter[str]]:
    """For each member how often which outcome: NOTIFIED, or a reason."""
    found: dict[str, Counter[str]] = {}
    for member_id, fate in await rows(
        store,
        """SELECT member_id, 'NOTIFIED' AS fate FROM bongsu_notifications
           UNION ALL SELECT member_id, reason AS fate FROM bongsu_suppressions""",
    ):
        found.setdefault(member_id, Counter())[fate] += 1
    return found


async def notified_counts(store: Store) -> Mapping[str, int]:
    """How many notifications each member has."""
    return {member_id: fate["NOTIFIED"] for member_id, fate in (await results_by_member(store)).items() if fate["NOTIFIED"]}


async def delivery_channels(store: Store) -> list[tuple[str, str]]:
    found = await rows(store, "SELECT member_id, channel FROM bongsu_deliveries ORDER BY member_id, channel, device_id")
    return [(row["member_id"], row["channel"]) for row in found]


async def unread_is_exact(store: Store) -> bool:
    wrong = await rows(
        store,
        """SELECT m.member_id FROM bongsu_members m WHERE m.unread <> (
               SELECT count(*) FROM bongsu_notifications n
               WHERE n.member_id = m.member_id AND n.read_at IS NULL AND n.channels & 8 <> 0)""",
    )
    return not wrong
