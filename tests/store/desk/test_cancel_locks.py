"""Locks of a cancellation on PostgreSQL: which transaction waits for which, no deadlocks. SQLite has one writer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from bongsu.decide.worker import EventWorker
from bongsu.desk.cancel import CancelWorker
from bongsu.model import Channel, Device, Everyone, Guarantee, NoticeType, Platform
from bongsu.rules import Rules
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Query, Row, Store, Transaction, inbox
from bongsu.store import deliveries as statements
from bongsu.store.core.query import same
from bongsu.store.deliveries import DeliveryStatus, Success, recovery
from bongsu.store.desk import cancel_steps, cancellations, dead_letters, dead_replay
from bongsu.store.members import devices
from tests.conftest import KEYS
from tests.support.cancellations import (
    SALE,
    add_members_with_devices,
    cancel_counts,
    counts_are_exact,
    decide_campaign,
    request_cancel,
    run_cancel_steps,
    statuses,
)
from tests.support.decisions import Clock, ClockedDecider, decide, rows, rules_notifying, trigger_event
from tests.support.deliveries import StoreInTransaction, claim, result
from tests.support.outbox import add_events
from tests.support.plans import rows_read_so_far
from tests.support.rows import set_columns
from tests.support.waiting import until_waiting

AGAIN = NoticeType("AGAIN", SALE.channels, guarantee=Guarantee.AT_LEAST_ONCE, duplicate_hours=0)
MORE = NoticeType("MORE", SALE.channels, duplicate_hours=0)
MANY = 5_000
READY, FAIL, UNKNOWN = DeliveryStatus.READY, DeliveryStatus.FAIL, DeliveryStatus.UNKNOWN


@pytest.fixture
def settings(migrated_postgres_url: str, tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path, database_url=migrated_postgres_url, poll_seconds=0.05, **KEYS)


async def test_a_cancellation_waits_for_a_claim_and_counts_what_it_took_as_sent(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 3)
    async with store.transaction() as tx:
        assert len(await claim(StoreInTransaction(tx), 1)) == 1
        cancelling = asyncio.create_task(cancel_counts(store, event_id))
        await until_waiting(store)
    assert await cancelling == (2, 1, 0)


async def test_a_claim_since_the_cancellation_began_is_counted_as_sent(store: Store, settings: Settings) -> None:
    """The time of a transaction is when it began, and the lease of a later claim ends later than one from that time."""
    event_id = await decide_campaign(store, settings, 5, chunk=2)
    async with store.transaction() as tx:
        assert len(await claim(store, 2)) == 2
        done = await cancellations.begin(tx, event_id, "w", withdraw=False)
        assert isinstance(done, cancellations.Cancellation)
    assert (done.cancelled, done.sent) == (3, 2)


class CommitAfterEachFetch:
    """A transaction that calls `work` after each fetch: another transaction commits there."""

    def __init__(self, tx: Transaction, work: Callable[[], Awaitable[None]]) -> None:
        self._tx = tx
        self._work = work
        self.dialect = tx.dialect

    async def fetch(self, *queries: Query) -> Sequence[Row]:
        found = await self._tx.fetch(*queries)
        await self._work()
        return found

    async def execute(self, *queries: Query) -> list[int]:
        return await self._tx.execute(*queries)


@pytest.mark.parametrize("chunk", [10, 100])
async def test_outcomes_recorded_while_it_counts_are_counted_once(store: Store, settings: Settings, chunk: int) -> None:
    event_id = await decide_campaign(store, settings, 30, chunk)
    on_the_wire = await claim(store, 20)

    async def record_one() -> None:
        one = on_the_wire.pop()
        success = Success(one.delivery_id, one.epoch, time.monotonic(), 1, bulk_message=one.message_id)
        assert await statements.record(store, Channel.PUSH, [success]) == {one.delivery_id}

    async with store.transaction() as tx:
        interleaved = CommitAfterEachFetch(tx, record_one)
        done = await cancellations.begin(interleaved, event_id, "w", withdraw=False)
    assert len(on_the_wire) < 18
    assert isinstance(done, cancellations.Cancellation)
    assert (done.cancelled, done.sent) == (10, 20)


async def test_a_claim_passes_over_what_is_being_cancelled_and_takes_others(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 3)
    other = trigger_event()
    await decide(store, settings, rules_notifying(Everyone(), MORE), other)
    async with store.transaction() as tx:
        done = await cancellations.begin(tx, event_id, "w", withdraw=False)
        assert isinstance(done, cancellations.Cancellation)
        async with asyncio.timeout(30):
            passed = await claim(store)
        assert {one.can_go for one in passed} == {True}
        assert len(passed) == 3
    assert [(one.can_go, one.is_cancelled) for one in await claim(store)] == [(False, True)] * 3
    assert done.cancelled == 3


async def test_a_cancellation_that_comes_to_nothing_leaves_what_was_passed_over_to_be_sent(
    store: Store, settings: Settings
) -> None:
    event_id = await decide_campaign(store, settings, 3)
    with pytest.raises(KeyError):
        async with store.transaction() as tx:
            await cancellations.begin(tx, event_id, "w", withdraw=False)
            assert await claim(store) == []
            raise KeyError
    assert [one.can_go for one in await claim(store)] == [True] * 3


async def test_claims_lock_messages_in_another_order_than_cancellations_and_neither_is_a_victim(
    store: Store, settings: Settings
) -> None:
    """A claim has locked the event's second message when a cancellation locks the first, and wants that one too."""
    await add_members_with_devices(store, 1)
    event = trigger_event()
    await decide(store, settings, Rules(rules_notifying(Everyone(), SALE), rules_notifying(Everyone(), MORE)), event)
    first, second = [row[0] for row in await rows(store, "SELECT message_id FROM bongsu_messages ORDER BY message_id")]
    await set_columns(store, "deliveries", {"message_id": second}, rank=0)
    async with store.transaction() as tx:
        (held,) = await claim(StoreInTransaction(tx), 1)
        assert held.message_id == second
        cancelling = asyncio.create_task(cancel_counts(store, event.event_id))
        await until_waiting(store)
        assert await claim(StoreInTransaction(tx), 1) == []
    assert await cancelling == (1, 1, 0)
    assert first < second


async def test_withdrawing_later_waits_for_a_step_before_it_locks_messages(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 4)
    await cancel_counts(store, event_id)
    async with store.transaction() as tx:
        assert await cancel_steps.stop_deliveries(tx, 2) is not None
        cancelling = asyncio.create_task(request_cancel(store, event_id, withdraw=True))
        await until_waiting(store)
        # A replay, or a claim, can have the messages meanwhile.
        async with asyncio.timeout(30):
            assert len(await claim(store)) == 2
    done = await cancelling
    assert isinstance(done, cancellations.Cancellation)
    assert (done.withdraw, done.withdrawn, done.is_finished) == (True, 4, False)


async def test_a_cancellation_waits_for_a_step_of_deciding_and_counts_what_it_made(store: Store, settings: Settings) -> None:
    await add_members_with_devices(store, 6)
    event = trigger_event()
    await add_events(store, event)
    locked, go_on = asyncio.Event(), asyncio.Event()

    class PausedAfterLocking(ClockedDecider):
        async def lock_claims(self, tx: Transaction, events: Any) -> Any:
            held = await super().lock_claims(tx, events)
            locked.set()
            await go_on.wait()
            return held

    worker = EventWorker(store, rules_notifying(Everyone(), SALE), settings, PausedAfterLocking(store, settings, Clock(), 2))
    ticking = asyncio.create_task(worker.tick())
    await locked.wait()
    cancelling = asyncio.create_task(cancel_counts(store, event.event_id))
    await until_waiting(store)
    go_on.set()
    await ticking
    while await worker.tick():
        pass
    await worker.stop()
    cancelled, sent, withdrawn = await cancelling
    await run_cancel_steps(store)
    assert (sent, withdrawn) == (0, 0)
    # The worker may have got the lock again before it, and taken further steps.
    assert 0 < cancelled <= 6
    assert await statuses(store) == {"CANCELLED": cancelled}


@pytest.mark.parametrize("withdraw", [False, True])
async def test_a_step_waits_for_no_delivery_and_looks_again_at_what_was_locked(
    store: Store, settings: Settings, withdraw: bool
) -> None:
    event_id = await decide_campaign(store, settings, 4, chunk=2)
    await cancel_counts(store, event_id, withdraw=withdraw)
    (locked,) = (await rows(store, "SELECT min(delivery_id) FROM bongsu_deliveries"))[0]
    async with store.transaction() as tx:
        await tx.execute(same("SELECT 1 FROM bongsu_deliveries WHERE delivery_id = $1 FOR UPDATE")(locked))
        async with asyncio.timeout(30):
            taken = [await cancel_steps.step(store, 3) for _ in range(3)]
        figures = [(one.cancelled, len(one.withdrawn), one.is_again, one.is_last) for one in taken if one is not None]
        # It is not passed by: a replay might send what was counted as cancelled.
        assert figures == [(2, 3 * withdraw, True, False), (0, 0, True, False), (0, 0, True, False)]
        async with asyncio.timeout(30):
            assert (await inbox.mark_read(tx, "m00000", 10**6, 10)).read == (not withdraw)
    assert [one.cancelled for one in await run_cancel_steps(store, 3)] == [1, 1, 0]
    assert await statuses(store) == {"CANCELLED": 4}
    assert await counts_are_exact(store)


async def test_devices_that_exchange_their_tokens_at_the_same_time_never_deadlock(store: Store) -> None:
    async def register(member_id: str, token: str) -> None:
        device = Device(token=token, platform=Platform.IOS, push_consent=True)
        async with store.transaction() as tx:
            await devices.put_device(tx, member_id, "d", device)

    for number in range(40):
        pairs = [("a", "one"), ("b", "two")] if number % 2 else [("a", "two"), ("b", "one")]
        await asyncio.gather(*(register(*pair) for pair in pairs))
    assert (await rows(store, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))[0][0] == 0


async def test_a_replay_counts_by_the_states_that_it_locked(store: Store, settings: Settings) -> None:
    """One that was found as FAIL has been sent again since, and is UNKNOWN."""
    await decide_campaign(store, settings, 3, chunk=2)
    (failed,) = await claim(store, 1)
    await statements.record(store, Channel.PUSH, [result(failed, FAIL, is_retryable=True)])
    async with store.transaction() as tx:
        found, _ = await dead_letters.find_page(tx, dead_letters.Filters())
        async with store.transaction() as other:
            await recovery.give_rounds(other, 0, 10)
        (again,) = [one for one in await claim(store, 10) if one.delivery_id == failed.delivery_id]
        await statements.record(store, Channel.PUSH, [result(again, UNKNOWN)])
        assert await dead_replay.replay(tx, found) == 1
    assert await counts_are_exact(store)


async def test_two_cancellations_at_once_give_one_answer(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 3)
    answers = await asyncio.gather(*(request_cancel(store, event_id, f"w{number}") for number in range(5)))
    assert len({repr(one) for one in answers}) == 1
    assert len(await rows(store, "SELECT event_id FROM bongsu_cancellations")) == 1


@pytest.mark.parametrize("seed", [1, 2])
async def test_cancellations_among_claims_records_steps_reads_and_recoveries_never_deadlock(
    store: Store, settings: Settings, seed: int
) -> None:
    dice = random.Random(seed)
    await add_members_with_devices(store, 40)
    generous = settings.model_copy(update={"daily_limit": 10_000})
    rules = Rules(rules_notifying(Everyone(), SALE), rules_notifying(Everyone(), AGAIN), rules_notifying(Everyone(), MORE))
    events = [trigger_event() for _ in range(12)]
    for event in events:
        await decide(store, generous, rules, event, chunk=dice.choice([15, 1_000]))
    done = asyncio.Event()

    async def dispatch() -> None:
        while not done.is_set():
            claimed = await claim(store, 30)
            dice.shuffle(claimed)
            outcomes = [(READY, False), (FAIL, True), (UNKNOWN, False)]
            await statements.record(
                store,
                Channel.PUSH,
                [result(one, status, is_retryable=again) for one in claimed for status, again in [dice.choice(outcomes)]],
            )

    async def step() -> None:
        while not done.is_set():
            await cancel_steps.step(store, 10)

    async def recover() -> None:
        while not done.is_set():
            async with store.transaction() as tx:
                await recovery.give_rounds(tx, 0, 50)

    async def read() -> None:
        while not done.is_set():
            async with store.transaction() as tx:
                await inbox.mark_read(tx, f"m{dice.randrange(40):05}", dice.randrange(1, 4000), 100)

    async def cancel() -> None:
        for event in dice.sample(events, len(events)):
            await asyncio.gather(*(request_cancel(store, event.event_id, withdraw=dice.random() < 0.5) for _ in range(2)))
            await request_cancel(store, event.event_id, withdraw=True)
        done.set()

    # A victim of a deadlock fails the group; the server has counted it as well.
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for work in (dispatch, dispatch, dispatch, step, step, recover, read, read, cancel):
            group.create_task(work())
    await run_cancel_steps(store)
    assert (await rows(store, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))[0][0] == 0
    assert await counts_are_exact(store)
    assert await rows(store, "SELECT 1 FROM bongsu_notifications WHERE channels & 8 <> 0") == []


# --- what is read ---------------------------------------------------------------------------------------------------------


async def test_neither_the_answer_nor_a_step_reads_all_deliveries_of_a_large_event(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, MANY, chunk=2_000)
    assert len(await claim(store, 7)) == 7
    async with store.single() as tx:
        await tx.execute(same("ANALYZE")())
    async with store.transaction() as tx:
        done = await cancellations.begin(tx, event_id, "w", withdraw=True)
        assert isinstance(done, cancellations.Cancellation)
        assert (done.cancelled, done.sent, done.withdrawn) == (MANY - 7, 7, MANY)
        assert await rows_read_so_far(tx, "bongsu_deliveries") < MANY / 50
    async with store.transaction() as tx:
        part = await cancel_steps.stop_deliveries(tx, 20)
        assert part is not None
        assert (part.cancelled, len(await cancel_steps.withdraw_part(tx, part))) == (13, 20)
        assert await rows_read_so_far(tx, "bongsu_deliveries") < MANY / 50


async def test_rows_that_others_have_locked_keep_no_other_cancellation_waiting(store: Store, settings: Settings) -> None:
    first = await decide_campaign(store, settings, 3)
    second = trigger_event()
    await decide(store, settings, rules_notifying(Everyone(), MORE), second)
    worker = CancelWorker(store, LocalSignals(), settings)
    async with store.transaction() as tx:
        await tx.fetch(same("SELECT 1 FROM bongsu_deliveries ORDER BY delivery_id LIMIT 1 FOR UPDATE")())
        await request_cancel(store, first)
        await request_cancel(store, second.event_id)
        while await worker.tick():
            pass
        assert await statuses(store) == {"CANCELLED": 5, "READY": 1}
    while await worker.tick():
        pass
    assert await statuses(store) == {"CANCELLED": 6}
    assert await rows(store, "SELECT event_id FROM bongsu_cancellations WHERE finished_at IS NULL") == []
