"""Where an index is the point: the plans of the hot statements, with many finished rows in the table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from unittest.mock import ANY

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Channel, Event, EventStatus
from bongsu.store import Store, decisions, deliveries, progress
from bongsu.store import events as statements
from bongsu.store.deliveries import DeliveryStatus
from bongsu.store.events import Verdict
from bongsu.store.sqlite import SQLITE
from tests.dying import delivery, message
from tests.past import tell_many

FINISHED = 20_000


@pytest.fixture
async def full(store: Store) -> AsyncIterator[Store]:
    """Many finished events, a few that wait."""
    async with store.write() as tx:
        await statements.add(tx, [Event(event_type="x") for _ in range(FINISHED)])
        await tx.execute(text("UPDATE bongsu_events SET status = 'DONE'"))
        await statements.add(tx, [Event(event_type="x") for _ in range(10)])
    async with store.write() as tx:
        await tx.execute(text("ANALYZE bongsu_events"))
    yield store


async def test_a_record_finds_its_rows_by_their_ids(full: Store) -> None:
    if full.dialect.name == "postgresql":
        # Arrays have no length while a statement is planned, and few rows of a large table are read by their ids.
        async with full.write() as tx:
            claimed = await statements.claim(tx, 10, 60, "w")
            verdicts = [Verdict(one.event.event_id, one.epoch, EventStatus.DONE) for one in claimed]
            before = await reads(tx)
            await statements.record(tx, verdicts)
            assert await reads(tx) == before
        return
    async with full.write() as tx:
        plan = f"EXPLAIN QUERY PLAN {statements.record_statement(full.dialect)}"
        steps = [str(tuple(row)[3]) for row in await tx.exec_driver_sql(plan, ("[]",))]
    found = "SEARCH bongsu_events USING INDEX sqlite_autoindex_bongsu_events_1 (event_id=?)"
    assert any(found in step for step in steps), steps
    assert not any(step.startswith(("SCAN bongsu_events", "BLOOM")) for step in steps), steps


async def test_a_step_reads_its_own_events_however_many_wait(store: Store) -> None:
    """By plans from a time when few did: PostgreSQL keeps them."""

    async def step(count: int) -> Step:
        async with store.single() as tx:
            claims = [(one.event.event_id, one.epoch) for one in await statements.claim(tx, count, 60, "w")]
        assert len(claims) == count
        async with store.write(*decisions.beginning(store.dialect)) as tx, watched(tx, "bongsu_events", 4) as seen:
            assert await progress.hold(tx, claims, ["a name"], 2) == (set(claims), [ANY, ANY])
            assert await progress.renew(tx, claims, 60) == {event_id for event_id, _ in claims}
            done, others = claims[::2], claims[1::2]
            await store.dialect.run_together(
                tx,
                [
                    statements.recording(store.dialect, [Verdict(*one, EventStatus.DONE) for one in done]),
                    progress.advancing(store.dialect, dict.fromkeys(others, "[0, 'x']"), 60),
                ],
            )
        return seen

    await statements.add_many(store, [Event(event_type="x") for _ in range(10)])
    for _ in range(3):
        await step(2)
    await statements.add_many(store, [Event(event_type="x") for _ in range(FINISHED)])
    seen = await step(2)
    # Held two, renewed two, recorded one and brought one forward.
    assert seen.rows in (6, None)
    assert seen.whole == []


@dataclass
class Step:
    """What was read of a table: rows, as PostgreSQL counts them, and by what SQLite went through all of them."""

    rows: int | None = None
    whole: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def watched(tx: AsyncConnection, table: str, statements: int) -> AsyncIterator[Step]:
    """So many statements about that table."""
    seen = Step()
    if tx.dialect.name == "postgresql":
        before = await fetched(tx, table)
        yield seen
        seen.rows = await fetched(tx, table) - before
        return
    said: list[str] = []
    driver = SQLITE.driver(tx)
    await driver.set_trace_callback(said.append)
    yield seen
    await driver.set_trace_callback(lambda _said: None)
    assert sum(table in one for one in said) == statements
    for one in said:
        steps = [str(row[3]) for row in await SQLITE.rows(tx, f"EXPLAIN QUERY PLAN {one}", ())]
        seen.whole += [step for step in steps if f"{table}_due" in step or step.startswith(f"SCAN {table}")]


async def fetched(tx: AsyncConnection, table: str) -> int:
    """Of this table, this transaction included."""
    query = f"SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = '{table}'"
    return int((await tx.execute(text(query))).scalar_one())


async def test_what_is_recorded_of_deliveries_reads_no_others_however_many_wait(store: Store) -> None:
    async def step(count: int) -> Step:
        async with store.write() as tx:
            claimed = await deliveries.claim(tx, Channel.PUSH, (0, 1, 2), 3 * count, 60, "w")
            assert len(claimed) == 3 * count
            claims = [(one.delivery_id, one.epoch) for one in claimed]
            async with watched(tx, "bongsu_deliveries", 3) as seen:
                await deliveries.renew(tx, claims[:count], 60)
                await deliveries.record(
                    tx, [deliveries.Success(*one, 0.0, 1, "x", False) for one in claims[count : 2 * count]]
                )
                failed = [deliveries.Verdict(*one, DeliveryStatus.FAIL, "X") for one in claims[2 * count :]]
                await deliveries.record(tx, failed)
        return seen

    async with store.write() as tx:
        said = await message(tx)
        for number in range(30):
            await delivery(tx, said, "READY", f"first-{number}")
    # PostgreSQL keeps a plan for any values after it has made five for those it was given.
    for _ in range(7):
        await step(1)
    async with store.write() as tx:
        await tell_many(tx, said, FINISHED)
        await add_deliveries(tx, "READY")
    seen = await step(2)
    assert seen.rows in (6, None)
    assert seen.whole == []


async def reads(tx: AsyncConnection) -> int:
    """How often this table has been read from end to end, this transaction included."""
    query = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'bongsu_events'"
    return int((await tx.execute(text(query))).scalar_one())


@pytest.mark.parametrize(("suspects", "index"), [(False, "bongsu_events_due"), (True, "bongsu_events_suspect")])
async def test_a_claim_reads_only_the_index_of_what_is_due(full: Store, suspects: bool, index: str) -> None:
    statement = statements.claim_statement(full.dialect, suspects)
    asked = (100, 60.0, "w")
    async with full.write() as tx:
        if full.dialect.name == "postgresql":
            plan = (await tx.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", asked)).scalar_one()
            plan = plan if isinstance(plan, str) else json.dumps(plan)
            # The planner may take either index for the few that wait: both hold unfinished events only.
            assert '"Index Name": "bongsu_events_' in plan
            assert "Seq Scan" not in plan
        else:
            rows = (await tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", asked)).all()
            steps = [str(tuple(row)[3]) for row in rows]
            assert any(f"USING INDEX {index}" in step or f"USING COVERING INDEX {index}" in step for step in steps), steps
            assert not any(step == "SCAN bongsu_events" for step in steps), steps


async def add_deliveries(tx: AsyncConnection, status: str) -> None:
    """One more for each notification."""
    await tx.execute(
        text(f"""
            INSERT INTO bongsu_deliveries
                (notification_id, member_id, message_id, channel, device_id, status, lane, due, created_at)
            SELECT notification_id, member_id, message_id, 'PUSH', 'd', '{status}', 1, created_at, created_at
            FROM bongsu_notifications""")
    )


async def test_a_claim_of_deliveries_reads_only_what_is_due(store: Store) -> None:
    async with store.write() as tx:
        said = await message(tx)
        await tell_many(tx, said, FINISHED)
        await add_deliveries(tx, "SUCCESS")
        for number in range(300):
            await delivery(tx, said, "READY", f"new-{number}")
    async with store.write() as tx:
        for table in ("deliveries", "devices", "messages", "members"):
            await tx.execute(text(f"ANALYZE bongsu_{table}"))
    lanes = (0, 1, 2)
    async with store.write() as tx:
        if store.dialect.name == "postgresql":
            statement = deliveries.claim_statement(store.dialect, Channel.PUSH, lanes)
            plan = (await tx.exec_driver_sql(f"EXPLAIN {statement}", (200, 200, 200, 200, 60.0, "w"))).scalars().all()
            assert any("Tid Scan on bongsu_deliveries" in step for step in plan), plan
            assert any("using bongsu_deliveries_due" in step for step in plan), plan
            assert not any("Seq Scan on bongsu_deliveries" in step for step in plan), plan
        else:
            statement = deliveries.due_statement(store.dialect, Channel.PUSH, lanes)
            rows = (await tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", (200, 200, 200, 200))).all()
            steps = [str(tuple(row)[3]) for row in rows]
            assert any("USING INDEX bongsu_deliveries_due" in step for step in steps), steps
            assert not any(step.startswith("SCAN bongsu_deliveries") for step in steps), steps
