"""Every statement of the outbox, on both databases."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from bongsu.model import Event, EventStatus, new_id
from bongsu.store import Store, outbox
from bongsu.store.core.locks import lock_names
from bongsu.store.core.query import same
from bongsu.store.outbox import STATEMENT_EVENTS, SUSPECT_AFTER, ClaimedEvent, EndedEvent, EventResult
from tests.support.outbox import find_event
from tests.support.rows import NOW, Sql, add_event, add_message, set_columns
from tests.support.waiting import until_waiting


def an_event(**fields: object) -> Event:
    return Event.model_validate({"event_type": "product.updated", **fields})


async def add(store: Store, *events: Event) -> set[UUID]:
    async with store.transaction() as tx:
        return await outbox.add(tx, events)


async def claim(store: Store, limit: int = 100, lease: float = 60) -> list[ClaimedEvent]:
    async with store.transaction() as tx:
        return await outbox.claim(tx, limit, lease, "w")


async def record(store: Store, *results: EventResult) -> set[UUID]:
    async with store.transaction() as tx:
        return await outbox.record(tx, results)


async def end_all_leases(store: Store) -> None:
    await set_columns(store, "events", {"status": "PENDING"}, due=NOW)


async def test_an_event_comes_back_as_it_was(store: Store) -> None:
    event = Event(
        event_type="product.price_changed",
        occurred_at=datetime(2026, 3, 1, 9, 30, 15, 123456, tzinfo=UTC),
        actor_id="a",
        target_id="b'\"\\;--",
        ref_id="상품 1 🔥",
        payload={"previousPrice": 10000.5, "이름": "사과", "nested": {"list": [1, None, True, "x\ny\t\"'"]}, "big": 2**60},
    )
    assert await add(store, event) == {event.event_id}
    row = await find_event(store, event)
    assert row.event == event
    assert row.status is EventStatus.PENDING
    assert (row.attempts, row.error, row.finished_at) == (0, None, None)
    assert abs(row.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    (claimed,) = await claim(store)
    assert claimed.event == event


async def test_the_same_id_is_stored_once_and_keeps_the_first_content(store: Store) -> None:
    first, other = an_event(ref_id="1"), an_event(ref_id="2")
    assert await add(store, first) == {first.event_id}
    again = an_event(event_id=first.event_id, ref_id="changed")
    assert await add(store, again, other) == {other.event_id}
    assert (await find_event(store, first)).event.ref_id == "1"


async def test_one_statement_stores_ten_thousand(store: Store) -> None:
    events = [an_event(ref_id=str(number)) for number in range(10_000)]
    assert await add(store, *events) == {event.event_id for event in events}
    assert len(await claim(store, limit=20_000)) == 10_000


async def test_of_many_those_that_are_known_are_reported_as_known(store: Store) -> None:
    known = [an_event(ref_id="first") for _ in range(3)]
    assert await outbox.add_many(store, known) == [True] * 3
    fresh = [an_event(ref_id="이름\\N\"'", payload={"a": "\t\\"}) for _ in range(50)]
    assert await outbox.add_many(store, fresh) == [True] * len(fresh)
    assert (await find_event(store, fresh[0])).event == fresh[0]
    more = [an_event() for _ in range(STATEMENT_EVENTS * 2)]
    again = [an_event(event_id=event.event_id, ref_id="changed") for event in known]
    assert await outbox.add_many(store, [*again, *more, more[0]]) == [False] * 3 + [True] * len(more) + [False]
    assert (await find_event(store, known[0])).event.ref_id == "first"
    assert len(await claim(store, limit=1000)) == len([*known, *fresh, *more])


async def test_an_event_that_has_ended_is_stored_with_its_end_and_never_claimed(store: Store) -> None:
    known = an_event(ref_id="first")
    await add(store, known)
    payload = '{"text": "이름\\"\\t🔥"}'
    failed = EndedEvent(new_id(), "chat.message_sent", "a", "b", "r-1", payload, EventStatus.FAILED, 5, "StoreBusy: it was")
    done = EndedEvent(new_id(), "counter.changed", None, None, "p-1", "{}", EventStatus.DONE)
    again = done._replace(event_id=known.event_id)
    async with store.transaction() as tx:
        assert await outbox.add_ended(tx, [failed, again, done]) == {failed.event_id, done.event_id}
        stored = [await outbox.find(tx, given.event_id) for given in (failed, done, again)]
    assert [row and (row.status, row.attempts, row.error, row.event.ref_id) for row in stored] == [
        (EventStatus.FAILED, 5, "StoreBusy: it was", "r-1"),
        (EventStatus.DONE, 0, None, "p-1"),
        (EventStatus.PENDING, 0, None, "first"),
    ]
    assert stored[0] is not None
    assert (stored[0].event.actor_id, stored[0].event.target_id) == ("a", "b")
    assert stored[0].event.payload == {"text": '이름"\t🔥'}
    assert [row and row.finished_at is not None for row in stored] == [True, True, False]
    assert [claimed.event.event_id for claimed in await claim(store)] == [known.event_id]


async def test_a_claimed_event_cannot_be_claimed_until_its_lease_ends(store: Store) -> None:
    event = an_event()
    await add(store, event)
    (first,) = await claim(store)
    assert (first.epoch, first.attempts, first.claim_count) == (1, 0, 1)
    assert await claim(store) == []
    await end_all_leases(store)
    (second,) = await claim(store)
    assert (second.epoch, second.claim_count) == (2, 2)


async def test_a_lease_that_has_run_out_is_claimed_again_by_the_same_predicate(store: Store) -> None:
    await add(store, an_event())
    assert len(await claim(store, lease=-1)) == 1
    assert len(await claim(store)) == 1


async def test_claims_come_oldest_first_and_no_more_than_asked(store: Store) -> None:
    events = [an_event(ref_id=str(number)) for number in range(5)]
    for event in events:
        await add(store, event)
    assert [one.event.ref_id for one in await claim(store, limit=2)] == ["0", "1"]
    assert [one.event.ref_id for one in await claim(store, limit=10)] == ["2", "3", "4"]


async def test_a_zombie_finishes_nothing(store: Store) -> None:
    event = an_event()
    await add(store, event)
    (zombie,) = await claim(store, lease=-1)
    (living,) = await claim(store)
    assert await record(store, EventResult(event.event_id, zombie.epoch, EventStatus.FAILED, "late")) == set()
    assert (await find_event(store, event)).status is EventStatus.PENDING
    assert await record(store, EventResult(event.event_id, living.epoch, EventStatus.DONE)) == {event.event_id}
    assert await record(store, EventResult(event.event_id, living.epoch, EventStatus.FAILED, "twice")) == set()
    row = await find_event(store, event)
    assert (row.status, row.attempts, row.error) == (EventStatus.DONE, 0, None)
    assert row.finished_at is not None


async def test_a_zombie_that_has_waited_for_the_next_claim_finishes_nothing(store: Store) -> None:
    event = an_event()
    await add(store, event)
    (zombie,) = await claim(store, lease=-1)
    async with store.transaction() as tx:
        (next_one,) = await outbox.claim(tx, 1, 60, "w")
        late = asyncio.create_task(record(store, EventResult(event.event_id, zombie.epoch, EventStatus.DONE)))
        # Until it waits for us: on PostgreSQL for the row, which it has found as it was before.
        await until_waiting(store)
        assert not late.done()
    assert await late == set()
    assert (await find_event(store, event)).status is EventStatus.PENDING
    assert await record(store, EventResult(event.event_id, next_one.epoch, EventStatus.DONE)) == {event.event_id}


async def test_a_claim_that_is_renewed_at_this_moment_can_be_recorded(store: Store) -> None:
    event = an_event()
    await add(store, event)
    (claimed,) = await claim(store)
    async with store.transaction() as tx:
        assert await outbox.renew(tx, [(event.event_id, claimed.epoch)], 60) == {event.event_id}
        recorded = asyncio.create_task(record(store, EventResult(event.event_id, claimed.epoch, EventStatus.DONE)))
        await until_waiting(store)
        assert not recorded.done()
    assert await recorded == {event.event_id}
    assert (await find_event(store, event)).status is EventStatus.DONE


async def test_a_claim_is_recorded_once(store: Store) -> None:
    event = an_event()
    await add(store, event)
    (claimed,) = await claim(store)
    later = EventResult(event.event_id, claimed.epoch, EventStatus.PENDING, "later", 60)
    assert await record(store, later) == {event.event_id}
    # It waits again under the same epoch, but the claim is over.
    assert await record(store, later) == set()
    assert await record(store, EventResult(event.event_id, claimed.epoch, EventStatus.DONE)) == set()
    async with store.transaction() as tx:
        assert await outbox.renew(tx, [(event.event_id, claimed.epoch)], 60) == set()
        assert (await outbox.lock_claims(tx, [(event.event_id, claimed.epoch)])).claims == set()
        assert await tx.execute(outbox.save_cursors_query({(event.event_id, claimed.epoch): "x"}, 60)) == [0]
        assert await outbox.find_begun(tx, [event.event_id]) == {}
    row = await find_event(store, event)
    assert (row.status, row.attempts) == (EventStatus.PENDING, 1)


async def test_a_step_locks_open_claims_and_draws_message_ids(store: Store) -> None:
    events = [an_event() for _ in range(3)]
    await add(store, *events)
    stale, *others = [(one.event.event_id, one.epoch) for one in await claim(store, lease=-1)]
    await claim(store, limit=1)
    async with store.transaction() as tx:
        held = await outbox.lock_claims(tx, [*others[::-1], stale], ["b", "a"], 3)
        assert held.claims == set(others)
        assert len(set(held.message_ids)) == 3
        assert abs(held.now - datetime.now(UTC)) < timedelta(minutes=1)
        more = await outbox.lock_claims(tx, others)
    assert (more.claims, more.message_ids) == (set(others), [])


async def test_what_a_step_has_locked_cannot_be_recorded_meanwhile(store: Store) -> None:
    event = an_event()
    await add(store, event)
    (claimed,) = await claim(store)
    async with store.transaction() as tx:
        assert (await outbox.lock_claims(tx, [(event.event_id, claimed.epoch)], ["a name"])).claims
        other = asyncio.create_task(record(store, EventResult(event.event_id, claimed.epoch, EventStatus.DONE)))
        named = asyncio.create_task(lock(store, "a name"))
        await until_waiting(store, 2)
        assert not other.done()
        assert not named.done()
    assert await other == {event.event_id}
    await named


async def lock(store: Store, name: str) -> None:
    async with store.transaction() as tx:
        await tx.fetch(lock_names([name]))


async def test_how_far_a_claim_came_is_found_by_the_next(store: Store) -> None:
    event, other = an_event(), an_event()
    await add(store, event, other)
    claims = {one.event.event_id: one.epoch for one in await claim(store)}
    async with store.transaction() as tx:
        saved = await tx.execute(outbox.save_cursors_query({(event.event_id, claims[event.event_id]): "[1, 'm']"}, 60))
        assert saved == [1]
        (first, second) = (await outbox.lock_claims(tx, [], messages=2)).message_ids
        for message_id, locale in ((first, "ko"), (second, "en")):
            await add_message(tx, message_id=message_id, event_id=event.event_id, locale=locale)
        begun = await outbox.find_begun(tx, [event.event_id, other.event_id])
    assert begun == {event.event_id: outbox.Begun("[1, 'm']", {(0, "ko"): first, (0, "en"): second}, Counter({0: 0}))}


async def test_a_failed_attempt_is_counted_and_waits(store: Store) -> None:
    event = an_event()
    await add(store, event)
    (claimed,) = await claim(store)
    await record(store, EventResult(event.event_id, claimed.epoch, EventStatus.PENDING, "KeyError: 'x'", 30))
    row = await find_event(store, event)
    assert (row.status, row.attempts, row.error) == (EventStatus.PENDING, 1, "KeyError: 'x'")
    assert await claim(store) == []
    await end_all_leases(store)
    (again,) = await claim(store)
    assert (again.attempts, again.claim_count, again.epoch) == (1, 1, 2)
    await record(store, EventResult(event.event_id, again.epoch, EventStatus.FAILED, "KeyError: 'x'"))
    row = await find_event(store, event)
    assert (row.status, row.attempts, row.error) == (EventStatus.FAILED, 2, "KeyError: 'x'")


async def test_one_record_gives_each_of_many_its_own_result(store: Store) -> None:
    events = [an_event(ref_id=str(number)) for number in range(3)]
    await add(store, *events)
    done, later, failed = await claim(store)
    ours = await record(
        store,
        EventResult(done.event.event_id, done.epoch, EventStatus.DONE),
        EventResult(later.event.event_id, later.epoch, EventStatus.PENDING, "later", 60),
        EventResult(failed.event.event_id, failed.epoch, EventStatus.FAILED, "never"),
        EventResult(new_id(), 1, EventStatus.DONE),
    )
    assert ours == {one.event.event_id for one in (done, later, failed)}
    found = [(await find_event(store, one.event)).status.value for one in (done, later, failed)]
    assert found == ["DONE", "PENDING", "FAILED"]
    async with store.read() as tx:
        counts = await outbox.count_unfinished(tx)
    assert counts == {EventStatus.PENDING: 1, EventStatus.FAILED: 1, EventStatus.UNHANDLED: 0}


async def test_an_event_that_workers_crash_with_is_set_apart_and_claimed_alone(store: Store) -> None:
    await add(store, *(an_event(ref_id=str(number)) for number in range(3)))
    for _ in range(SUSPECT_AFTER):
        assert len(await claim(store, lease=-1)) == 3
    assert await claim(store) == []
    async with store.transaction() as tx:
        (suspect,) = await outbox.claim_suspect(tx, 60, "w")
    assert suspect.claim_count == SUSPECT_AFTER + 1
    assert suspect.hopeless is None
    await record(store, EventResult(suspect.event.event_id, suspect.epoch, EventStatus.PENDING, "an outcome at last", 0))
    await end_all_leases(store)
    assert [one.claim_count for one in await claim(store)] == [1]


async def test_a_row_that_cannot_be_read_fails_only_its_own_event(store: Store) -> None:
    """What got past the database's checks in plain SQL must not stop what stands beside it."""
    payload = '{"n":' + "9" * 5000 + "}"
    async with store.transaction() as tx:
        await add_event(tx, event_type="bad", payload=payload)
    await add(store, an_event(event_type="good"))
    claimed = {one.event.event_type: one for one in await claim(store)}
    assert claimed["good"].hopeless is None
    assert "cannot be read" in (claimed["bad"].hopeless or "")
    assert "cannot be read" in ((await find_event(store, claimed["bad"].event)).error or "")


@pytest.mark.parametrize("column", ["created_at", "due", "occurred_at"])
async def test_a_time_that_could_not_be_read_back_is_refused(store: Store, column: str) -> None:
    values = {"postgresql": ["'infinity'", "'0044-03-15 BC'"], "sqlite": ["'2026-01-01 00:00:00'", "9e18", "-1"]}
    for value in values[store.dialect.name]:
        with pytest.raises((sqlite3.IntegrityError, asyncpg.CheckViolationError), match="(?i)check"):
            async with store.transaction() as tx:
                await add_event(tx, **{column: Sql(value)})


async def test_the_same_many_events_in_another_order_wait_instead_of_deadlocking(store: Store) -> None:
    events = [an_event() for _ in range(STATEMENT_EVENTS * 3)]
    async with store.transaction() as tx:
        await outbox.add(tx, events[:1])  # one of them is known
    for _ in range(5):
        orders = [events, events[::-1], sorted(events, key=lambda one: str(one.event_id)[::-1])]
        answers = await asyncio.gather(*(outbox.add_many(store, order) for order in orders))
        assert sum(sum(answer) for answer in answers) == len(events) - 1
        async with store.transaction() as tx:
            await tx.execute(same("DELETE FROM bongsu_events")())
            await outbox.add(tx, events[:1])


async def test_what_is_given_back_is_due_again_and_was_never_claimed(store: Store) -> None:
    await add(store, an_event(), an_event())
    claimed = await claim(store)
    async with store.transaction() as tx:
        await outbox.give_back(tx, claimed[:1], 0)
    (again,) = await claim(store)
    assert (again.event, again.claim_count, again.epoch) == (claimed[0].event, 1, 2)
    # By then it is another's: what comes late changes nothing.
    async with store.transaction() as tx:
        await outbox.give_back(tx, claimed[:1], 0)
    assert await claim(store) == []


async def test_bytes_that_are_no_text_do_not_stop_the_others(store: Store) -> None:
    if store.dialect.name == "postgresql":
        with pytest.raises(asyncpg.CharacterNotInRepertoireError, match="invalid byte sequence"):
            await store_ref(store, "convert_from('\\xff', 'UTF8')")
        return
    await store_ref(store, "CAST(x'ff41' AS TEXT)")
    await add(store, an_event(ref_id="good"))
    claimed = await claim(store)
    assert {one.event.ref_id for one in claimed} == {"\ufffdA", "good"}
    assert {(one.claim_count, one.epoch) for one in claimed} == {(1, 1)}


async def store_ref(store: Store, expression: str) -> None:
    async with store.transaction() as tx:
        await add_event(tx, ref_id=Sql(expression))


async def test_a_rolled_back_claim_never_was(store: Store) -> None:
    await add(store, an_event())
    try:
        async with store.transaction() as tx:
            assert len(await outbox.claim(tx, 10, 60, "w")) == 1
            raise RuntimeError("the worker crashed")
    except RuntimeError:
        pass
    (claimed,) = await claim(store)
    assert claimed.epoch == 1


async def test_what_is_not_there_is_not_found(store: Store) -> None:
    async with store.read() as tx:
        assert await outbox.find(tx, new_id()) is None
