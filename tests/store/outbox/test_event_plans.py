"""Where an index is the point: the plans of the outbox's statements, with many other rows in the table."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from bongsu.model import Event, EventStatus
from bongsu.store import Query, Statement, Store, Transaction, outbox
from bongsu.store.core.query import Table, same
from bongsu.store.outbox import EventResult
from bongsu.store.outbox.claims import CLAIM_DUE, CLAIM_SUSPECT, GIVE_BACK, RECORD, RENEW
from bongsu.store.outbox.progress import FIND_BEGUN, LOCK_CLAIMS, SAVE_CURSORS
from tests.support.rows import set_columns

MANY = 20_000


async def add(store: Store, count: int) -> None:
    await outbox.add_many(store, [Event(event_type="x") for _ in range(count)])


async def run(store: Store, text: str) -> None:
    async with store.single() as tx:
        await tx.execute(same(text)())


@pytest.fixture
async def full(store: Store) -> AsyncIterator[Store]:
    """Many finished events, a few that wait."""
    await add(store, MANY)
    await set_columns(store, "events", status="DONE")
    await add(store, 10)
    await run(store, "ANALYZE bongsu_events")
    yield store


async def sqlite_plan(tx: Transaction, query: Query) -> list[str]:
    explained = Statement("", f"EXPLAIN QUERY PLAN {query.statement.sqlite}")
    return [str(row["detail"]) for row in await tx.fetch(Query(explained, query.parameters))]


async def rows_read(tx: Transaction) -> int | None:
    """Of this table, by this transaction: as PostgreSQL counts them."""
    if tx.dialect.name == "sqlite":
        return None
    counted = "SELECT seq_tup_read + idx_tup_fetch AS rows FROM pg_stat_xact_user_tables WHERE relname = 'bongsu_events'"
    (row,) = await tx.fetch(same(counted)())
    return int(row["rows"])


TYPES = Table({"event_type": "text"}, [("critical",)])
CLAIMS = [
    (CLAIM_DUE(TYPES, 80, 100, 1, 60.0, "w"), ("due", "by_type", "large")),
    (CLAIM_SUSPECT(60.0, "w"), ("suspect",)),
]


async def test_a_claim_reads_only_the_index_of_due_events(full: Store) -> None:
    for query, indexes in CLAIMS:
        async with full.transaction() as tx:
            if full.dialect.name == "postgresql":
                explained = Statement(f"EXPLAIN (FORMAT JSON) {query.statement.postgres}", "")
                (row,) = await tx.fetch(Query(explained, query.parameters))
                plan = json.dumps(row["QUERY PLAN"])
                # The planner may choose either index for the few that wait: both have unfinished events only.
                assert "bongsu_events_" in plan
                assert "Seq Scan" not in plan
            else:
                steps = await sqlite_plan(tx, query)
                for index in indexes:
                    assert any(f"INDEX bongsu_events_{index}" in step for step in steps), steps
                assert not any(step in ("SCAN bongsu_events", "SCAN x", "SCAN e") for step in steps), steps


async def test_a_critical_event_is_found_without_reading_those_before_it(store: Store) -> None:
    """By plans that PostgreSQL has made when there were few."""
    async with store.transaction() as tx:
        await outbox.claim_critical(tx, 10, 60, "w", ["critical", "other"])
    await add(store, MANY)
    await outbox.add_many(store, [Event(event_type="critical")])
    async with store.transaction() as tx:
        before = await rows_read(tx)
        (claimed,) = await outbox.claim_critical(tx, 10, 60, "w", ["critical", "other"])
        after = await rows_read(tx)
    assert claimed.event.event_type == "critical"
    # Once to lock it, once to change it.
    assert before is None or after is None or after - before == 2


async def step(store: Store) -> int | None:
    """Every statement about two claims; how many rows of the table they read, on PostgreSQL."""
    async with store.transaction() as tx:
        claimed = await outbox.claim(tx, 2, 60, "w")
        first, second = claims = [(one.event.event_id, one.epoch) for one in claimed]
        before = await rows_read(tx)
        assert (await outbox.lock_claims(tx, claims, ["a name"], 2)).claims == set(claims)
        assert await outbox.renew(tx, claims, 60) == {event_id for event_id, _ in claims}
        assert await tx.execute(outbox.save_cursors_query({first: "[0, 'x']", second: "[0, 'y']"}, 60)) == [2]
        assert set(await outbox.find_begun(tx, [event_id for event_id, _ in claims])) == {first[0], second[0]}
        assert await tx.execute(outbox.record_query([EventResult(*first, EventStatus.DONE)])) == [1]
        await outbox.give_back(tx, claimed[1:], 0)
        after = await rows_read(tx)
    return None if before is None or after is None else after - before


async def test_a_step_reads_its_own_events_however_many_wait(store: Store) -> None:
    await add(store, 10)
    # PostgreSQL keeps these plans, made when there are few.
    for _ in range(3):
        await step(store)
    await add(store, MANY)
    # Two were locked, saved and found, and two were locked and then changed: renewed, and one recorded and one given back.
    assert await step(store) in (14, None)


@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
async def test_claimed_events_are_found_by_their_ids_on_sqlite(full: Store) -> None:
    for statement in (LOCK_CLAIMS, RENEW, SAVE_CURSORS, FIND_BEGUN, RECORD, GIVE_BACK):
        async with full.transaction() as tx:
            steps = await sqlite_plan(tx, statement(None, None, None, None))
        assert any("USING INDEX sqlite_autoindex_bongsu_events_1 (event_id=?)" in one for one in steps), steps
        assert not any(one.startswith(("SCAN bongsu_events", "SCAN e", "BLOOM")) for one in steps), steps
