"""Large payloads: one at a time in a worker, decoded and given to rules outside the event loop, and never in the way."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterable
from datetime import timedelta

from bongsu.decide.worker import MOST_LARGE, EventWorker
from bongsu.model import Event, Listed, Notice, NoticeType
from bongsu.rules import DIRECT, Rules, catalogue
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from tests.support.decisions import IN_APP, Clock, ClockedDecider, notified_counts, rows, run_worker, trigger_event
from tests.support.outbox import add_events
from tests.support.rows import set_columns

MANY = [f"member-{number:05}" for number in range(6_000)]
FEW = MANY[:5]


def direct(members: list[str], **more: object) -> Event:
    return Event(
        event_type=DIRECT,
        payload={"type": "SALE", "userIds": members, "title": "t", "body": "b", "channels": ["IN_APP"], **more},
    )


async def test_large_events_are_claimed_one_at_a_time_and_small_ones_beside_them(store: Store) -> None:
    large, small = [direct(MANY) for _ in range(3)], direct(FEW)
    await add_events(store, *large, small)
    for number, event in enumerate(large):
        due = timedelta(seconds=number - 100)
        await set_columns(store, "events", {"event_id": event.event_id}, due=due)
    async with store.transaction() as tx:
        first = await outbox.claim(tx, 10, 60, "w")
        none = await outbox.claim(tx, 10, 60, "w", large=0)
        second = await outbox.claim(tx, 10, 60, "w")
    assert [(one.event.event_id, one.is_large) for one in first] == [(large[0].event_id, True), (small.event_id, False)]
    assert none == []
    assert [one.event for one in second] == [large[1]]


async def test_of_large_events_those_that_can_be_critical_are_claimed_first(store: Store) -> None:
    await add_events(store, direct(MANY))
    await add_events(store, Event(event_type="notice.published", payload={"memberIds": MANY, "title": "t", "body": "b"}))
    async with store.transaction() as tx:
        claimed = await outbox.claim(tx, 10, 60, "w", ["notice.published"])
    assert [one.event.event_type for one in claimed] == ["notice.published"]


async def test_a_worker_holds_few_large_events_and_claims_one_at_a_time(store: Store, settings: Settings) -> None:
    """The next when the last has had its first step: a large critical one does not wait until a campaign is decided."""
    await add_events(store, *(direct(MANY) for _ in range(MOST_LARGE + 2)))
    await add_events(store, direct(["guest"]))
    worker = EventWorker(store, catalogue(settings), settings, ClockedDecider(store, settings, Clock(), 1_000))
    await worker.tick()
    assert (await notified_counts(store))["guest"] == 1
    held = "SELECT count(*) AS count FROM bongsu_events WHERE status = 'PENDING' AND leased_by IS NOT NULL"
    counts = [(await rows(store, held))[0]["count"]]
    while await worker.tick():
        counts.append((await rows(store, held))[0]["count"])
    assert max(counts) == MOST_LARGE
    assert all(after - before <= 1 for before, after in itertools.pairwise(counts))
    await worker.stop()
    assert await notified_counts(store) == {**dict.fromkeys(MANY, MOST_LARGE + 2), "guest": 1}


async def test_rules_of_a_large_event_run_outside_the_event_loop(store: Store, settings: Settings) -> None:
    threads: dict[str, int] = {}
    rules = Rules()

    @rules.rule("said")
    def notices(event: Event) -> Iterable[Notice]:
        threads[event.ref_id or ""] = threading.get_ident()
        yield Notice(NoticeType("SAID", IN_APP), Listed(("a",)), title="t", body="b")

    await add_events(store, trigger_event("large", payload={"text": ["x" * 60_000, "y" * 60_000]}), trigger_event("small"))
    await run_worker(EventWorker(store, rules, settings, ClockedDecider(store, settings, Clock())))
    assert threads["small"] == threading.get_ident()
    assert threads["large"] != threading.get_ident()
    assert await notified_counts(store) == {"a": 2}


async def test_between_the_rules_of_two_events_others_have_the_event_loop(store: Store, settings: Settings) -> None:
    turns, seen = [0], []
    rules = Rules()

    @rules.rule("said")
    def notices(_event: Event) -> None:
        seen.append(turns[0])

    async def others() -> None:
        while len(seen) < 5:
            turns[0] += 1
            await asyncio.sleep(0)

    await add_events(store, *(trigger_event(str(number)) for number in range(5)))
    task = asyncio.create_task(others())
    await run_worker(EventWorker(store, rules, settings, ClockedDecider(store, settings, Clock())))
    await task
    assert len(set(seen)) == 5
