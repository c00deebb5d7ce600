"""Every statement of the outbox, on both databases."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from bongsu.model import Event, EventStatus, new_id
from bongsu.store import Store, progress
from bongsu.store import events as statements
from bongsu.store.events import SUSPECT_AFTER, Claimed, Verdict


def an_event(**fields: object) -> Event:
    return Event.model_validate({"event_type": "product.updated", **fields})


async def add(store: Store, *events: Event) -> set[UUID]:
    async with store.write() as tx:
        return await statements.add(tx, events)


async def claim(store: Store, limit: int = 100, lease: float = 60) -> list[Claimed]:
    async with store.write() as tx:
        return await statements.claim(tx, limit, lease, "w")


async def record(store: Store, *verdicts: Verdict) -> set[UUID]:
    async with store.write() as tx:
        return await statements.record(tx, verdicts)


async def find(store: Store, event: Event) -> statements.EventRow:
    async with store.read() as connection:
        row = await statements.find(connection, event.event_id)
    assert row is not None
    return row


async def end_all_leases(store: Store) -> None:
    async with store.write() as tx:
        await tx.execute(text(f"UPDATE bongsu_events SET due = {store.dialect.now} WHERE status = 'PENDING'"))


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
    row = await find(store, event)
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
    assert (await find(store, first)).event.ref_id == "1"


async def test_one_statement_stores_ten_thousand(store: Store) -> None:
    events = [an_event(ref_id=str(number)) for number in range(10_000)]
    assert await add(store, *events) == {event.event_id for event in events}
    assert len(await claim(store, limit=20_000)) == 10_000


async def test_many_are_loaded_and_the_known_among_them_told_apart(store: Store) -> None:
    known = [an_event(ref_id="first") for _ in range(3)]
    assert await statements.add_many(store, known) == [True] * 3
    fresh = [an_event(ref_id="이름\\N\"'", payload={"a": "\t\\"}) for _ in range(statements.LOAD_FROM)]
    assert await statements.add_many(store, fresh) == [True] * len(fresh)
    assert (await find(store, fresh[0])).event == fresh[0]
    more = [an_event() for _ in range(statements.STATEMENT_EVENTS * 2)]
    again = [an_event(event_id=event.event_id, ref_id="changed") for event in known]
    assert await statements.add_many(store, [*again, *more, more[0]]) == [False] * 3 + [True] * len(more) + [False]
    assert (await find(store, known[0])).event.ref_id == "first"
    assert len(await claim(store, limit=1000)) == len([*known, *fresh, *more])


async def test_a_claimed_event_is_nobody_elses_until_its_lease_ends(store: Store) -> None:
    event = an_event()
    await add(store, event)
    (first,) = await claim(store)
    assert (first.epoch, first.attempts, first.claims) == (1, 0, 1)
    assert await claim(store) == []
    await end_all_leases(store)
    (second,) = await claim(store)
    assert (second.epoch, second.claims) == (2, 2)


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
    assert await record(store, Verdict(event.event_id, zombie.epoch, EventStatus.FAILED, "late")) == set()
    assert (await find(store, event)).status is EventStatus.PENDING
    assert await record(store, Verdict(event.event_id, living.epoch, EventStatus.DONE)) == {event.event_id}
    assert await record(store, Verdict(event.event_id, living.epoch, EventStatus.FAILED, "twice")) == set()
    row = await find(store, event)
    assert (row.status, row.attempts, row.error) == (EventStatus.DONE, 0, None)
    assert row.finished_at is not None


async def test_a_zombie_that_has_waited_for_the_next_claim_finishes_nothing(store: Store) -> None:
    event = an_event()
    await add(store, event)
    (zombie,) = await claim(store, lease=-1)
    async with store.write() as tx:
        (next_one,) = await statements.claim(tx, 1, 60, "w")
        late = asyncio.create_task(record(store, Verdict(event.event_id, zombie.epoch, EventStatus.DONE)))
        # Until it waits for us: on PostgreSQL for the row, which it has found as it was before.
        await asyncio.sleep(0.2)
        assert not late.done()
    assert await late == set()
    assert (await find(store, event)).status is EventStatus.PENDING
    assert await record(store, Verdict(event.event_id, next_one.epoch, EventStatus.DONE)) == {event.event_id}


async def test_a_claim_that_is_renewed_at_this_moment_can_be_recorded(store: Store) -> None:
    event = an_event()
    await add(store, event)
    (claimed,) = await claim(store)
    async with store.write() as tx:
        assert await progress.renew(tx, [(event.event_id, claimed.epoch)], 60) == {event.event_id}
        recorded = asyncio.create_task(record(store, Verdict(event.event_id, claimed.epoch, EventStatus.DONE)))
        await asyncio.sleep(0.2)
        assert not recorded.done()
    assert await recorded == {event.event_id}
    assert (await find(store, event)).status is EventStatus.DONE


async def test_a_failed_attempt_is_counted_and_waits(store: Store) -> None:
    event = an_event()
    await add(store, event)
    (claimed,) = await claim(store)
    await record(store, Verdict(event.event_id, claimed.epoch, EventStatus.PENDING, "KeyError: 'x'", 30))
    row = await find(store, event)
    assert (row.status, row.attempts, row.error) == (EventStatus.PENDING, 1, "KeyError: 'x'")
    assert await claim(store) == []
    await end_all_leases(store)
    (again,) = await claim(store)
    assert (again.attempts, again.claims, again.epoch) == (1, 1, 2)
    await record(store, Verdict(event.event_id, again.epoch, EventStatus.FAILED, "KeyError: 'x'"))
    row = await find(store, event)
    assert (row.status, row.attempts, row.error) == (EventStatus.FAILED, 2, "KeyError: 'x'")


async def test_one_record_judges_many_each_its_own_way(store: Store) -> None:
    events = [an_event(ref_id=str(number)) for number in range(3)]
    await add(store, *events)
    done, later, failed = await claim(store)
    ours = await record(
        store,
        Verdict(done.event.event_id, done.epoch, EventStatus.DONE),
        Verdict(later.event.event_id, later.epoch, EventStatus.PENDING, "later", 60),
        Verdict(failed.event.event_id, failed.epoch, EventStatus.FAILED, "never"),
        Verdict(new_id(), 1, EventStatus.DONE),
    )
    assert ours == {one.event.event_id for one in (done, later, failed)}
    found = [(await find(store, one.event)).status.value for one in (done, later, failed)]
    assert found == ["DONE", "PENDING", "FAILED"]
    async with store.read() as connection:
        counts = await statements.count_unfinished(connection)
    assert counts == {EventStatus.PENDING: 1, EventStatus.FAILED: 1}


async def test_an_event_that_workers_die_with_is_set_apart_and_taken_alone(store: Store) -> None:
    await add(store, *(an_event(ref_id=str(number)) for number in range(3)))
    for _ in range(SUSPECT_AFTER):
        assert len(await claim(store, lease=-1)) == 3
    assert await claim(store) == []
    async with store.write() as tx:
        (suspect,) = await statements.claim_suspect(tx, 60, "w")
    assert suspect.claims == SUSPECT_AFTER + 1
    assert suspect.hopeless is None
    await record(store, Verdict(suspect.event.event_id, suspect.epoch, EventStatus.PENDING, "an outcome at last", 0))
    await end_all_leases(store)
    assert [one.claims for one in await claim(store)] == [1]


async def test_a_row_that_cannot_be_read_is_one_events_fault(store: Store) -> None:
    """What got past the database's checks in plain SQL must not stop what stands beside it."""
    payload = '{"n":' + "9" * 5000 + "}"
    async with store.write() as tx:
        value = "CAST(:payload AS jsonb)" if store.dialect.name == "postgresql" else ":payload"
        await tx.execute(
            text(f"INSERT INTO bongsu_events (event_type, payload) VALUES ('bad', {value})"), {"payload": payload}
        )
    await add(store, an_event(event_type="good"))
    claimed = {one.event.event_type: one for one in await claim(store)}
    assert claimed["good"].hopeless is None
    assert "cannot be read" in (claimed["bad"].hopeless or "")
    assert "cannot be read" in ((await find(store, claimed["bad"].event)).error or "")


@pytest.mark.parametrize("column", ["created_at", "due", "occurred_at"])
async def test_a_time_that_could_not_be_read_back_is_refused_at_the_door(store: Store, column: str) -> None:
    values = {"postgresql": ["'infinity'", "'0044-03-15 BC'"], "sqlite": ["'2026-01-01 00:00:00'", "9e18", "-1"]}
    for value in values[store.dialect.name]:
        with pytest.raises(DBAPIError, match="(?i)check"):
            async with store.write() as tx:
                await tx.execute(text(f"INSERT INTO bongsu_events (event_type, {column}) VALUES ('x', {value})"))


async def test_the_same_many_events_in_another_order_wait_instead_of_locking_up(store: Store) -> None:
    events = [an_event() for _ in range(statements.STATEMENT_EVENTS * 3)]
    async with store.write() as tx:
        await statements.add(tx, events[:1])  # so that loading does not suffice
    for _ in range(5):
        orders = [events, events[::-1], sorted(events, key=lambda one: str(one.event_id)[::-1])]
        answers = await asyncio.gather(*(statements.add_many(store, order) for order in orders))
        assert sum(sum(answer) for answer in answers) == len(events) - 1
        async with store.write() as tx:
            await tx.execute(text("DELETE FROM bongsu_events"))
            await statements.add(tx, events[:1])


async def test_what_is_given_back_is_due_again_and_was_never_claimed(store: Store) -> None:
    await add(store, an_event(), an_event())
    claimed = await claim(store)
    async with store.write() as tx:
        await statements.give_back(tx, claimed[:1], 0)
    (again,) = await claim(store)
    assert (again.event, again.claims, again.epoch) == (claimed[0].event, 1, 2)
    # By then it is another's: what comes late changes nothing.
    async with store.write() as tx:
        await statements.give_back(tx, claimed[:1], 0)
    assert await claim(store) == []


async def test_bytes_that_are_no_text_do_not_stop_the_others(store: Store) -> None:
    if store.dialect.name == "postgresql":
        with pytest.raises(DBAPIError, match="invalid byte sequence"):
            await store_ref(store, "convert_from('\\xff', 'UTF8')")
        return
    await store_ref(store, "CAST(x'ff41' AS TEXT)")
    await add(store, an_event(ref_id="good"))
    claimed = await claim(store)
    assert {one.event.ref_id for one in claimed} == {"\ufffdA", "good"}
    # Reading them took a second try, and the first has left nothing behind.
    assert {(one.claims, one.epoch) for one in claimed} == {(1, 1)}


async def test_what_fails_below_sqlalchemy_is_raised_like_all_else(store: Store) -> None:
    with pytest.raises((DBAPIError, asyncpg.PostgresError), match="nothing_here"):
        async with store.write() as tx:
            await store.dialect.rows(tx, "SELECT * FROM nothing_here", ())


async def store_ref(store: Store, expression: str) -> None:
    async with store.write() as tx:
        await tx.execute(text(f"INSERT INTO bongsu_events (event_type, ref_id) VALUES ('x', {expression})"))


async def test_a_rolled_back_claim_never_was(store: Store) -> None:
    await add(store, an_event())
    try:
        async with store.write() as tx:
            assert len(await statements.claim(tx, 10, 60, "w")) == 1
            raise RuntimeError("the worker crashed")
    except RuntimeError:
        pass
    (claimed,) = await claim(store)
    assert claimed.epoch == 1


async def test_members_are_locked_byte_by_byte_in_a_database_of_any_language(store: Store) -> None:
    if store.dialect.name == "sqlite":
        assert store.dialect.in_lock_order == ""  # the one writer has locked everything already
        return
    # As a list of ids compares there. Two who lock the same members in two orders would wait for each other.
    given = """SELECT CAST(one AS text) COLLATE "und-x-icu" AS member_id FROM unnest(ARRAY['a', 'B']) AS one"""
    async with store.read() as connection:
        if not (await connection.execute(text("SELECT 1 FROM pg_collation WHERE collname = 'und-x-icu'"))).all():
            pytest.skip("this PostgreSQL is built without ICU, and knows no other order than that of bytes for sure")
        found = await connection.execute(text(f"SELECT member_id FROM ({given}) AS given {store.dialect.in_lock_order}"))
        assert [row[0] for row in found] == ["B", "a"]


async def test_what_is_not_there_is_not_found(store: Store) -> None:
    async with store.read() as connection:
        assert await statements.find(connection, new_id()) is None
