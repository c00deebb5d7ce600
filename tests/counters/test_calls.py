"""Calls that count: durable when answered, once for each event id, and within 64 bits."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from bongsu.counters.calls import Counters
from bongsu.errors import CounterOverflow, NoSuchCounter
from bongsu.model import Event
from bongsu.runtime.loop import running
from bongsu.store import Store
from tests.support.counters import Counting, comment_created
from tests.support.decisions import rows
from tests.support.waiting import until_waiting

LARGEST, SMALLEST = 2**63 - 1, -(2**63)


async def test_a_call_is_seen_by_the_next_read_of_another_process(counts: Counting) -> None:
    answer = await counts.call("p-1", 3)
    assert (answer.value, answer.is_duplicate) == (3, False)
    other = Counters(counts.store)
    for expected in (3, 3):
        assert (await other.find("comments", "p-1"))[0] == expected
        await counts.flush()


async def test_the_same_event_id_counts_once_whichever_way_it_comes(counts: Counting) -> None:
    event = comment_created()
    await counts.publish(event)
    assert (await counts.call("p-1", 5, event.event_id)).is_duplicate
    first = uuid4()
    assert (await counts.call("p-1", 5, first)).value == 6
    repeated = await counts.call("p-1", 5, first)
    assert (repeated.value, repeated.is_duplicate, repeated.event_id) == (6, True, first)
    await counts.publish(Event(event_type="comment.created", event_id=first, ref_id="p-1"))
    changed = Event(event_type="counter.changed", ref_id="p-1", payload={"counter": "comments", "delta": 10})
    await counts.publish(changed)
    assert (await counts.call("p-1", 10, changed.event_id)).is_duplicate
    assert await counts.value("p-1") == 16


async def test_of_calls_at_once_with_one_event_id_one_counts(counts: Counting) -> None:
    event_id = uuid4()
    answers = await asyncio.gather(*(counts.call("p-1", 1, event_id) for _ in range(20)))
    assert [answer.is_duplicate for answer in answers].count(False) == 1
    assert await counts.value("p-1") == 1


async def test_calls_at_once_about_one_key_share_a_row_of_the_log(counts: Counting) -> None:
    await asyncio.gather(*(counts.call("p-1", 1) for _ in range(100)))
    assert await counts.value("p-1") == 100
    assert await counts.count_logged() < 10


async def test_a_call_is_an_event_that_is_done(counts: Counting) -> None:
    answer = await counts.call("p-1", -2)
    (row,) = await rows(counts.store, "SELECT event_id, event_type, ref_id, status, finished_at FROM bongsu_events")
    assert str(row["event_id"]) == str(answer.event_id)
    assert (row["event_type"], row["ref_id"], row["status"]) == ("counter.changed", "p-1", "DONE")
    assert row["finished_at"] is not None


async def test_both_ends_of_64_bits_can_be_reached_and_not_passed(counts: Counting) -> None:
    for flushes in (False, True):
        for limit, step in ((LARGEST, 1), (SMALLEST, -1)):
            key = f"{limit} {flushes}"
            await counts.call(key, limit)
            if flushes:
                await counts.flush()
            event_id = uuid4()
            for beyond in (step, limit):
                with pytest.raises(CounterOverflow, match="comments of"):
                    await counts.call(key, beyond, event_id)
            # Nothing was changed by it: its id was not stored.
            assert not (await counts.call(key, -step, event_id)).is_duplicate
            assert await counts.value(key) == limit - step
    await counts.flush()
    stored = await counts.stored()
    assert set(stored.values()) == {LARGEST - 1, SMALLEST + 1}


async def test_sums_that_pass_64_bits_on_the_way_are_exact(counts: Counting) -> None:
    for delta in (LARGEST, SMALLEST, LARGEST, SMALLEST, LARGEST, 2):
        await counts.call("p-1", delta)
    await counts.flush()
    assert await counts.value("p-1") == LARGEST
    assert (await counts.stored())["comments", "p-1"] == LARGEST


async def test_a_call_that_passes_the_limit_does_not_fail_others_of_its_batch(counts: Counting) -> None:
    await counts.call("full", LARGEST)
    answers = await asyncio.gather(*(counts.call(key, 1) for key in ("a", "full", "b", "full", "a")), return_exceptions=True)
    assert [isinstance(answer, CounterOverflow) for answer in answers] == [False, True, False, True, False]
    assert [await counts.value(key) for key in ("a", "full", "b")] == [2, LARGEST, 1]


async def test_two_processes_do_not_pass_the_limit_together(counts: Counting, store: Store) -> None:
    """The later one waits for the other's commit, and looks again."""
    async with running(Counters(store)) as other:
        answers = await asyncio.gather(
            counts.call("p-1", LARGEST), other.count("comments", "p-1", LARGEST), return_exceptions=True
        )
    assert sorted(isinstance(answer, CounterOverflow) for answer in answers) == [False, True]
    assert await counts.value("p-1") == LARGEST


@pytest.mark.parametrize("name", ["unknown", "comment", "", "no spaces", "x" * 65, "1st", "a/b", "\0"])
async def test_a_counter_that_is_not_known_is_refused(counts: Counting, name: str) -> None:
    with pytest.raises(NoSuchCounter):
        await counts.calls.find(name, "p-1")
    with pytest.raises(NoSuchCounter):
        await counts.calls.count(name, "p-1", 1)
    assert await rows(counts.store, "SELECT 1 FROM bongsu_events") == []


async def test_a_counter_that_a_rule_has_counted_is_known(counts: Counting) -> None:
    changed = Event(event_type="counter.changed", ref_id="p-1", payload={"counter": "views", "delta": 2})
    await counts.publish(changed)
    assert (await counts.call("p-1", 1, counter="views")).value == 3


async def test_a_call_waits_for_one_that_stores_the_same_event_id(counts: Counting) -> None:
    """And learns that it is a duplicate."""
    from bongsu.store.counters.events import Call, count_calls

    event_id = uuid4()
    async with counts.store.transaction() as tx:
        await count_calls(tx, [Call(event_id, "comments", "p-1", 1)])
        waiting = asyncio.ensure_future(counts.call("p-1", 1, event_id))
        await until_waiting(counts.store)
    assert (await waiting).is_duplicate
    assert await counts.value("p-1") == 1
