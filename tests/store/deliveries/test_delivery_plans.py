"""Where an index is the point: the plans of the deliveries' statements, with many other rows in the table."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bongsu.model import Channel
from bongsu.store import Store, Transaction, deliveries
from bongsu.store.core.query import same
from bongsu.store.deliveries import DeliveryResult, DeliveryStatus, Success, recovery
from bongsu.store.deliveries.continuity import ALWAYS
from tests.support.deliveries import StoreInTransaction, add_delivery_in_state, add_guaranteed_message
from tests.support.notifications import add_many_deliveries, add_many_recipients
from tests.support.plans import generic_plan, keep_statistics, rows_read, rows_read_so_far
from tests.support.rows import Sql, add_delivery_for_each

MANY = 20_000


async def add_deliveries(tx: Transaction, status: str) -> None:
    """One more for each notification."""
    times = {"due": Sql("created_at"), "created_at": Sql("created_at")}
    await add_delivery_for_each(tx, "notifications", device_id="d", status=status, **times)


@pytest.fixture
async def full(store: Store) -> AsyncIterator[Store]:
    """Many finished deliveries, a few that wait."""
    async with store.transaction() as tx:
        message_id = await add_guaranteed_message(tx)
        await add_many_recipients(tx, message_id, MANY)
        await add_deliveries(tx, "SUCCESS")
        for number in range(300):
            await add_delivery_in_state(tx, message_id, "READY", f"new-{number}")
    async with store.single() as tx:
        await tx.execute(same("ANALYZE")())
    yield store


async def test_a_claim_reads_only_what_is_due(full: Store) -> None:
    plan = await generic_plan(full, deliveries.CLAIM)
    if full.dialect.name == "sqlite":
        assert "USING INDEX bongsu_deliveries_due (channel=? AND rank=? AND due<?)" in plan
        assert "SCAN bongsu_deliveries" not in plan
        assert "TEMP B-TREE" not in plan
    else:
        assert "using bongsu_deliveries_due" in plan
        assert re.search(r"Index Cond: \(\(channel = \$1\) AND \(rank = .*\) AND \(due <= now\(\)\)\)", plan)
        assert "using bongsu_deliveries_pkey" in plan
        assert "Seq Scan on bongsu_deliveries" not in plan
        assert "Sort" not in plan


async def test_claims_are_found_by_their_ids(full: Store) -> None:
    statements = (deliveries.RENEW, deliveries.RECORD_SUCCESSES, deliveries.RECORD_OTHERS, deliveries.LEASE)
    for statement in statements:
        plan = await generic_plan(full, statement)
        if full.dialect.name == "sqlite":
            assert "SEARCH bongsu_deliveries USING INTEGER PRIMARY KEY (rowid=?)" in plan
            assert "SCAN bongsu_deliveries" not in plan
        else:
            assert "using bongsu_deliveries_pkey" in plan
            assert "bongsu_deliveries_due" not in plan
            # There is one message: it may be read either way.
            assert "Seq Scan on bongsu_deliveries" not in plan


async def test_abandoned_claims_are_found_among_many_that_wait(store: Store) -> None:
    """Of a backlog that is newer than the statistics, as after a crash in a campaign."""
    async with store.transaction() as tx:
        await add_delivery_in_state(tx, await add_guaranteed_message(tx), "SUCCESS", "old")
    await keep_statistics(store)
    async with store.transaction() as tx:
        message_id = await add_guaranteed_message(tx)
        await add_many_recipients(tx, message_id, MANY)
        await add_many_deliveries(tx, message_id, "READY")
        for number in range(3):
            await add_delivery_in_state(tx, message_id, "SENDING", f"lost-{number}")
    if store.dialect.name == "postgresql":
        # Those that are found, their message, and the rows to be changed.
        assert await rows_read(store, recovery.SETTLE_ABANDONED(1_000, ALWAYS)) <= 5 * 3
    else:
        plan = await generic_plan(store, recovery.SETTLE_ABANDONED)
        assert "USING INDEX bongsu_deliveries_sending (due<?)" in plan
    async with store.transaction() as tx:
        assert (await recovery.settle_abandoned(tx, 1_000)).total() == 3


async def test_the_recovery_job_reads_only_what_waits(full: Store) -> None:
    for statement in (recovery.EXPIRE_STALE, recovery.FIND_STALE):
        plan = await generic_plan(full, statement)
        if full.dialect.name == "sqlite":
            assert "USING INDEX bongsu_deliveries_due (channel=? AND rank=? AND due" in plan
            assert "SCAN d" not in plan
        else:
            assert "using bongsu_deliveries_due" in plan
            assert "Seq Scan on bongsu_deliveries" not in plan


async def test_a_plan_from_when_few_waited_reads_no_others_when_many_do(store: Store) -> None:
    """PostgreSQL keeps the plans of statements that a connection has run before."""
    if store.dialect.name == "sqlite":
        return  # plans do not depend on the number of rows unless ANALYZE has counted them

    async def step() -> int:
        """Claim, renew and record; how many rows were read for the last two. Each is read to be locked and to be changed."""
        async with store.transaction() as tx:
            inside: Any = StoreInTransaction(tx)
            claims = [(one.delivery_id, one.epoch) for one in await deliveries.claim(inside, Channel.PUSH, (1,), 6, 60, "w")]
            assert len(claims) == 6
            before = await rows_read_so_far(tx, "bongsu_deliveries")
            await deliveries.renew(tx, claims[:2], 60)
            await deliveries.record(inside, "PUSH", [Success(*one, time.monotonic(), 1, "x") for one in claims[2:4]])
            await deliveries.record(inside, "PUSH", [DeliveryResult(*one, DeliveryStatus.FAIL, "X") for one in claims[4:]])
            return await rows_read_so_far(tx, "bongsu_deliveries") - before

    async with store.transaction() as tx:
        message_id = await add_guaranteed_message(tx)
        for number in range(30):
            await add_delivery_in_state(tx, message_id, "READY", f"first-{number}")
    for _ in range(3):
        assert await step() == 12
    async with store.transaction() as tx:
        await add_many_recipients(tx, message_id, MANY)
        await add_deliveries(tx, "READY")
    assert await step() == 12
