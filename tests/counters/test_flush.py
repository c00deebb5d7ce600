"""The flush: exact, in one transaction, by one process at a time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from bongsu.counters.flush import Flusher
from bongsu.store.counters import KeySum
from bongsu.store.counters.deltas import add_deltas
from bongsu.store.counters.flush import Scope, flush
from tests.support.counters import Counting, comment_created
from tests.support.decisions import rows


async def test_a_flush_moves_what_is_pending_into_the_values_and_adds_its_batch(counts: Counting) -> None:
    await counts.publish(*(comment_created(f"p-{number % 3}") for number in range(10)))
    await counts.call("p-0", -1)
    before = {f"p-{number}": await counts.value(f"p-{number}") for number in range(3)}
    await counts.flush()
    assert {key: value for (_, key), value in (await counts.stored()).items()} == before == {"p-0": 3, "p-1": 3, "p-2": 3}
    assert {key: await counts.value(key) for key in before} == before
    assert await counts.count_logged() == 0
    (batch,) = await counts.batches()
    assert (batch["keys"], batch["sum"]) == (3, 9)
    assert batch["processed_from"] <= batch["processed_to"]


async def test_the_next_batch_begins_where_the_last_one_ended_and_the_sums_add_up(counts: Counting) -> None:
    for delta in (5, -3, 7):
        await counts.call("p-1", delta)
        await counts.call("p-2", 1)
        await counts.flush()
    batches = await counts.batches()
    assert [batch["sum"] for batch in batches] == [6, -2, 8]
    assert [batch["processed_from"] for batch in batches[1:]] == [batch["processed_to"] for batch in batches[:-1]]
    assert sum((await counts.stored()).values()) == sum(batch["sum"] for batch in batches)


async def test_a_flush_with_nothing_to_do_adds_no_batch(counts: Counting) -> None:
    await counts.flush()
    assert await counts.batches() == []


async def test_deltas_that_come_to_nothing_are_deleted_and_make_no_counter(counts: Counting) -> None:
    await counts.call("p-1", 4)
    await counts.call("p-1", -4)
    await counts.flush()
    assert (await counts.stored(), await counts.count_logged()) == ({}, 0)
    (batch,) = await counts.batches()
    assert (batch["keys"], batch["sum"]) == (0, 0)


async def test_a_flush_that_dies_before_its_commit_loses_nothing_and_doubles_nothing(counts: Counting) -> None:
    await counts.call("p-1", 5)
    with pytest.raises(ZeroDivisionError):
        async with counts.store.transaction() as tx:
            batch = await flush(tx, Scope(), 100, with_applied=True)
            assert batch is not None
            assert batch.applied == [KeySum("comments", "p-1", 5)]
            _ = 1 / 0
    assert (await counts.stored(), await counts.value("p-1"), await counts.batches()) == ({}, 5, [])
    await counts.flush()
    assert (await counts.stored(), await counts.value("p-1")) == ({("comments", "p-1"): 5}, 5)


async def test_of_two_flushes_at_once_one_works(counts: Counting) -> None:
    """On SQLite the other waits for its turn to write, and then finds nothing."""
    await counts.call("p-1", 5)
    async with counts.store.transaction() as tx:
        assert await flush(tx, Scope(), 100, with_applied=False) is not None
        other = asyncio.ensure_future(Flusher(counts.store, counts.settings).tick())
        if counts.store.dialect.name == "postgresql":
            await other
    await other
    assert len(await counts.batches()) == 1
    assert await counts.value("p-1") == 5


async def test_deltas_that_commit_after_a_later_one_was_flushed_are_not_lost(counts: Counting) -> None:
    """Ids are not in commit order on PostgreSQL."""
    if counts.store.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer")
    async with counts.store.transaction() as slow:
        await add_deltas(slow, [KeySum("comments", "slow", 1)])
        await counts.call("fast", 1)
        await counts.flush()
        assert await counts.stored() == {("comments", "fast"): 1}
    assert await counts.value("slow") == 1
    await counts.flush()
    assert await counts.stored() == {("comments", "fast"): 1, ("comments", "slow"): 1}


async def test_more_than_a_batch_is_flushed_in_several(counts: Counting) -> None:
    for number in range(7):
        await counts.call(f"p-{number}", 1)
    small = Flusher(counts.store, counts.settings, batch=3)
    assert [await small.tick() for _ in range(3)] == [1, 1, 0]
    assert [batch["keys"] for batch in await counts.batches()] == [3, 3, 1]
    assert len(await counts.stored()) == 7


async def test_one_loop_flushes_by_itself_every_few_seconds(counts: Counting) -> None:
    from bongsu.runtime.loop import running

    await counts.call("p-1", 1)
    often = counts.settings.model_copy(update={"counter_flush_seconds": 0.01})
    async with running(Flusher(counts.store, often)), asyncio.timeout(60):
        while await counts.count_logged():
            await asyncio.sleep(0)
        await counts.call("p-1", 1)
        while await counts.count_logged():
            await asyncio.sleep(0)
    assert await counts.stored() == {("comments", "p-1"): 2}


async def test_what_is_as_of_is_the_time_of_the_store(counts: Counting) -> None:
    from bongsu.store.core.clock import find_now

    async with counts.store.read() as tx:
        before = await find_now(tx)
    _, as_of = await counts.calls.find("comments", "p-1")
    assert timedelta(0) <= as_of - before < timedelta(minutes=1)


async def test_two_counters_with_the_same_key_are_two(counts: Counting) -> None:
    from bongsu.model import Event

    await counts.publish(Event(event_type="counter.changed", ref_id="p-1", payload={"counter": "views", "delta": 2}))
    await counts.call("p-1", 1)
    for _ in range(2):
        assert (await counts.value("p-1"), await counts.value("p-1", "views")) == (1, 2)
        await counts.flush()
    assert len(await rows(counts.store, "SELECT 1 FROM bongsu_counters")) == 2
