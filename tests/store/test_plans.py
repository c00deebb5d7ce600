"""Where an index is the point: the plans of the hot statements, with many finished rows in the table."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Channel, Event, EventStatus
from bongsu.store import Store, deliveries
from bongsu.store import events as statements
from bongsu.store.events import Verdict
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


async def test_a_claim_of_deliveries_reads_only_what_is_due(store: Store) -> None:
    async with store.write() as tx:
        said = await message(tx)
        await tell_many(tx, said, FINISHED)
        await tx.execute(
            text("""
                INSERT INTO bongsu_deliveries
                    (notification_id, member_id, message_id, channel, device_id, status, lane, due, created_at)
                SELECT notification_id, member_id, message_id, 'PUSH', 'd', 'SUCCESS', 1, created_at, created_at
                FROM bongsu_notifications""")
        )
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
