"""The event worker, on both databases: rules run once, failures are retried and end, faults are isolated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from bongsu.decide.progress import EventInProgress
from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.errors import StoreUnreachable
from bongsu.model import Channel, Event, EventStatus, Listed, Notice, NoticeType
from bongsu.render.templates import Templates
from bongsu.rules import Rules, catalogue
from bongsu.settings import Settings
from bongsu.store import Store, Transaction, outbox
from bongsu.store.core.query import same
from bongsu.store.desk import dead_letters, dead_replay
from bongsu.store.outbox import CRASHES_ALONE, SUSPECT_AFTER, ClaimedEvent, LockedClaims
from tests.support.outbox import add_events, count_pending, find_event
from tests.support.rows import add_event


@pytest.fixture
def quick(settings: Settings) -> Settings:
    """Retries that wait no longer than a test should."""
    return settings.model_copy(update={"retry_base_seconds": 0.01})


async def finish(worker: EventWorker, store: Store) -> None:
    """Run the worker until nothing is pending."""
    await worker.start()
    async with asyncio.timeout(30):
        while await count_pending(store):
            worker.wake()
            await worker.idle.wait()
    await worker.stop()


class Decisions(Decider):
    """Leaves a row behind in the transaction of each step, so that doubles can be counted."""

    def __init__(self, store: Store, settings: Settings, fails_for: str = "") -> None:
        super().__init__(store, Templates.load(), settings)
        self._fails_for = fails_for

    async def prepare(self, store: Store) -> None:
        async with store.transaction() as tx:
            await tx.execute(same("CREATE TABLE decisions (event_id text, type text)")())

    async def lock_claims(self, tx: Transaction, events: Sequence[EventInProgress]) -> LockedClaims:
        held = await super().lock_claims(tx, events)
        insert = same("INSERT INTO decisions (event_id, type) VALUES ($1, $2)")
        for event in events:
            if event.claim in held.claims:
                await tx.execute(insert(str(event.event_id), event.current_notice.type.name))
                if self._fails_for and event.claimed.event.ref_id == self._fails_for:
                    await tx.fetch(same("SELECT * FROM no_such_table")())
        return held

    async def made(self, store: Store) -> list[tuple[str, str]]:
        async with store.read() as tx:
            rows = await tx.fetch(same("SELECT event_id, type FROM decisions ORDER BY event_id")())
        return [(row["event_id"], row["type"]) for row in rows]


def worker_of(store: Store, rules: Rules, settings: Settings, decider: Decider | None = None) -> EventWorker:
    return EventWorker(store, rules, settings, decider or Decider(store, Templates.load(), settings))


def say(kind: str) -> Rules:
    rules = Rules()

    @rules.rule("test.said")
    def said(_event: Event) -> Iterable[Notice]:
        yield Notice(NoticeType(kind, (Channel.IN_APP,)), Listed(("a",)), title="t", body="b")

    return rules


async def test_an_event_that_comes_without_a_signal_is_found_before_the_next_poll(store: Store, quick: Settings) -> None:
    """As in a process of its own without Redis, which gets no signals."""
    first, second = Event(event_type="product.updated"), Event(event_type="product.updated")
    is_there = asyncio.Event()

    class Overtaken(EventWorker):
        async def _begin(self, claimed: Sequence[ClaimedEvent]) -> int:
            done = await super()._begin(claimed)
            if any(one.event.event_id == first.event_id for one in claimed):
                await add_events(store, second)
                is_there.set()
            return done

    seldom = quick.model_copy(update={"poll_seconds": 3600.0})
    worker = Overtaken(store, catalogue(seldom), seldom, Decider(store, Templates.load(), seldom))
    await add_events(store, first)
    await worker.start()
    async with asyncio.timeout(20):
        await is_there.wait()
        while await count_pending(store):
            await asyncio.sleep(0.01)
    assert (await find_event(store, second)).status is EventStatus.DONE
    await worker.stop()


async def test_an_event_that_no_rule_handles_ends_unhandled_until_a_rule_does(store: Store, quick: Settings) -> None:
    """As when a worker of the version before meets it during a deploy: it is found among the dead letters and replayed."""
    silent, unknown = Event(event_type="comment.deleted"), Event(event_type="test.said")
    await add_events(store, silent, unknown)
    await finish(worker_of(store, catalogue(quick), quick), store)
    for event, status in ((silent, EventStatus.DONE), (unknown, EventStatus.UNHANDLED)):
        row = await find_event(store, event)
        assert (row.status, row.attempts, row.error) == (status, 0, None)
        assert row.finished_at is not None
    async with store.read() as tx:
        counts = await outbox.count_unfinished(tx)
        (dead,), _ = await dead_letters.find_page(tx, dead_letters.Filters())
    assert (dead.state, dead.event_id) == (dead_letters.State.UNHANDLED, unknown.event_id)
    assert counts == {EventStatus.PENDING: 0, EventStatus.FAILED: 0, EventStatus.UNHANDLED: 1}
    async with store.transaction() as tx:
        assert await dead_replay.replay(tx, [dead]) == 1
    await finish(worker_of(store, say("SAID"), quick), store)
    assert (await find_event(store, unknown)).status is EventStatus.DONE


async def test_a_notice_is_decided_in_the_transaction_that_finishes_its_event(store: Store, quick: Settings) -> None:
    decisions = Decisions(store, quick)
    await decisions.prepare(store)
    events = [Event(event_type="test.said") for _ in range(3)]
    await add_events(store, *events)
    await finish(worker_of(store, say("SAID"), quick, decisions), store)
    assert await decisions.made(store) == sorted((str(event.event_id), "SAID") for event in events)


async def test_a_failing_rule_is_retried_and_ends_failed_with_the_tracebacks_last_line(
    store: Store, quick: Settings
) -> None:
    rules, asked = Rules(), []

    @rules.rule("test.broken")
    def broken(event: Event) -> Iterable[Notice]:
        asked.append(event.event_id)
        raise KeyError("previousPrice")

    bad, good = Event(event_type="test.broken"), Event(event_type="product.updated")
    await add_events(store, bad, good)
    await finish(worker_of(store, Rules(rules, catalogue(quick)), quick), store)
    row = await find_event(store, bad)
    assert (row.status, row.error) == (EventStatus.FAILED, "KeyError: 'previousPrice'")
    assert row.attempts == len(asked) == 1 + quick.max_retries
    assert (await find_event(store, good)).status is EventStatus.DONE


async def test_a_rule_that_recovers_is_done_with_its_failures_counted(store: Store, quick: Settings) -> None:
    rules = Rules()
    failures = [RuntimeError("first"), RuntimeError("second")]

    @rules.rule("test.shaky")
    def shaky(_event: Event) -> Iterable[Notice]:
        if failures:
            raise failures.pop()
        return ()

    event = Event(event_type="test.shaky")
    await add_events(store, event)
    await finish(worker_of(store, rules, quick), store)
    row = await find_event(store, event)
    assert (row.status, row.attempts, row.error) == (EventStatus.DONE, 2, None)


async def test_a_decision_that_fails_takes_only_its_own_event_along(store: Store, quick: Settings) -> None:
    decisions = Decisions(store, quick, fails_for="2")
    await decisions.prepare(store)
    events = [Event(event_type="test.said", ref_id=str(number)) for number in range(5)]

    await add_events(store, *events)
    await finish(worker_of(store, say("SAID"), quick, decisions), store)
    statuses = [(await find_event(store, event)).status.value for event in events]
    assert statuses == ["DONE", "DONE", "FAILED", "DONE", "DONE"]
    assert "no_such_table" in ((await find_event(store, events[2])).error or "")
    # What it had written before it failed is not there: the decision and the record are one.
    assert len(await decisions.made(store)) == 4


async def test_an_event_that_ends_every_worker_is_failed_without_being_tried_again(store: Store, quick: Settings) -> None:
    rules, asked = Rules(), []

    @rules.rule("test.poison")
    def poison(event: Event) -> Iterable[Notice]:
        asked.append(event)
        return ()

    event = Event(event_type="test.poison")
    await add_events(store, event)
    for _ in range(SUSPECT_AFTER):
        async with store.single() as tx:
            await outbox.claim(tx, 1, -1, "one that dies")
    for _ in range(CRASHES_ALONE):
        async with store.single() as tx:
            assert await outbox.claim_suspect(tx, -1, "one that dies")
    await finish(worker_of(store, rules, quick), store)
    row = await find_event(store, event)
    assert row.status is EventStatus.FAILED
    assert row.error == f"every worker that claimed it has crashed, {SUSPECT_AFTER + CRASHES_ALONE} in a row"
    assert asked == []


async def test_a_store_that_goes_away_again_and_again_is_no_events_fault(
    store: Store, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More often than an event may crash its workers: it has crashed none."""
    record_query, failures = outbox.record_query, [StoreUnreachable("gone")] * (SUSPECT_AFTER + CRASHES_ALONE + 3)

    def record_at_last(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return record_query(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(outbox, "record_query", record_at_last)
    monkeypatch.setattr("bongsu.runtime.loop.FIRST_BACKOFF", 0.001)
    event = Event(event_type="product.updated")
    await add_events(store, event)
    await finish(worker_of(store, catalogue(quick), quick), store)
    assert failures == []
    row = await find_event(store, event)
    assert (row.status, row.attempts, row.error) == (EventStatus.DONE, 0, None)


async def test_an_error_is_stored_without_what_may_be_personal_data(store: Store, quick: Settings) -> None:
    rules = Rules()

    @rules.rule("test.broken")
    def broken(_event: Event) -> Iterable[Notice]:
        raise ValueError("no good\x00\ud800\n[SQL: …]\n[parameters: {'phone': '010-1234-5678'}]")

    event = Event(event_type="test.broken")
    await add_events(store, event)
    await finish(worker_of(store, rules, quick.model_copy(update={"max_retries": 0})), store)
    assert (await find_event(store, event)).error == "ValueError: no good?"


async def test_a_row_that_cannot_be_read_fails_at_once_and_alone(store: Store, quick: Settings) -> None:
    async with store.transaction() as tx:
        await add_event(tx, event_type="bad", payload='{"n":' + "9" * 5000 + "}")
    good = Event(event_type="product.updated")
    await add_events(store, good)
    await finish(worker_of(store, catalogue(quick), quick), store)
    assert (await find_event(store, good)).status is EventStatus.DONE
    async with store.read() as tx:
        ((status, attempts, error),) = await tx.fetch(
            same("SELECT status, attempts, error FROM bongsu_events WHERE event_type = 'bad'")()
        )
    assert (status, attempts) == ("FAILED", 1)
    assert "cannot be read" in error


async def test_a_zombie_decides_nothing(store: Store, quick: Settings) -> None:
    decisions = Decisions(store, quick)
    await decisions.prepare(store)
    event = Event(event_type="test.said")
    await add_events(store, event)
    lapsed = quick.model_copy(update={"lease_seconds": 0.001})
    slow = worker_of(store, say("TOO LATE"), lapsed, decisions)
    zombies = await slow._claim()
    assert [one.event for one in zombies] == [event]
    await finish(worker_of(store, say("IN TIME"), quick, decisions), store)
    await slow._begin(zombies)
    assert await decisions.made(store) == [(str(event.event_id), "IN TIME")]


async def test_a_worker_survives_a_store_that_goes_away(
    store: Store, quick: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = worker_of(store, catalogue(quick), quick)
    claim, failures = outbox.claim, [ConnectionRefusedError("gone"), ConnectionRefusedError("still gone")]

    async def claim_sometimes(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return await claim(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(outbox, "claim", claim_sometimes)
    event = Event(event_type="product.updated")
    await add_events(store, event)
    await finish(worker, store)
    assert worker.crashed.is_set()
    assert (await find_event(store, event)).status is EventStatus.DONE


async def test_an_event_type_that_no_rule_handles_is_logged_once(store: Store, quick: Settings) -> None:
    events = [Event(event_type=one) for one in ("order.shiped", "order.shiped", "product.updated", "comment.deleted", "x")]
    await add_events(store, *events)
    before = REGISTRY.get_sample_value("bongsu_events_unhandled_total") or 0.0
    worker = worker_of(store, catalogue(quick), quick)
    with capture_logs() as lines:
        await finish(worker, store)
    logged = [line["event_type"] for line in lines if line["event"] == "no rule handles this event type"]
    assert sorted(logged) == ["order.shiped", "x"]
    assert REGISTRY.get_sample_value("bongsu_events_unhandled_total") == before + 3
    statuses = [(await find_event(store, one)).status.value for one in events]
    assert statuses == ["UNHANDLED", "UNHANDLED", "DONE", "DONE", "UNHANDLED"]
