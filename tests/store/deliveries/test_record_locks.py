"""Locks of recording and renewing on PostgreSQL: in the order of ids, so that nobody deadlocks. SQLite has one writer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bongsu.model import Channel
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.core.query import same
from bongsu.store.deliveries import ClaimedDelivery, DeliveryResult, DeliveryStatus, Success
from bongsu.store.ranks import RANKS
from tests.store.desk.test_cancel_locks import settings
from tests.support.decisions import rows
from tests.support.dispatching import MOST_ONCE, one_delivery
from tests.support.waiting import until_waiting

__all__ = ["settings"]


def success(claimed: ClaimedDelivery) -> Success:
    return Success(claimed.delivery_id, claimed.epoch, time.monotonic(), 1)


def failure(claimed: ClaimedDelivery) -> DeliveryResult:
    # With a device to invalidate too.
    gone = (claimed.member_id, claimed.device_id or "", claimed.address or "")
    return DeliveryResult(claimed.delivery_id, claimed.epoch, DeliveryStatus.FAIL, "GONE", invalid_device=gone)


async def renew(store: Store, claimed: Sequence[ClaimedDelivery]) -> None:
    async with store.single() as tx:
        await statements.renew(tx, [(one.delivery_id, one.epoch) for one in claimed], 60)


async def record_mixed(store: Store, claimed: Sequence[ClaimedDelivery]) -> None:
    """The lower id has the result that is stored later."""
    low, high = sorted(claimed)
    await statements.record(store, "PUSH", [success(high), failure(low)])


async def record_successes(store: Store, claimed: Sequence[ClaimedDelivery]) -> None:
    await statements.record(store, "PUSH", [success(one) for one in claimed])


async def record_failures(store: Store, claimed: Sequence[ClaimedDelivery]) -> None:
    await statements.record(store, "PUSH", [failure(one) for one in claimed])


@pytest.mark.parametrize("change", [renew, record_mixed, record_successes, record_failures])
async def test_deliveries_are_locked_in_the_order_of_their_ids(
    store: Store, settings: Settings, change: Callable[[Store, Sequence[ClaimedDelivery]], Awaitable[None]]
) -> None:
    await one_delivery(store, settings, MOST_ONCE, "a", "b")
    # Given in the other order.
    claimed = sorted(await statements.claim(store, Channel.PUSH, RANKS, 2, 60, "w"), reverse=True)
    high, low = (one.delivery_id for one in claimed)
    async with store.transaction() as tx:
        await tx.fetch(same(f"SELECT 1 FROM bongsu_deliveries WHERE delivery_id = {low} FOR UPDATE")())
        changing = asyncio.ensure_future(change(store, claimed))
        await until_waiting(store)
        # It waits for the first and holds nothing behind it: this would fail if the row were locked.
        await tx.fetch(same(f"SELECT 1 FROM bongsu_deliveries WHERE delivery_id = {high} FOR UPDATE NOWAIT")())
    await changing
    assert len(await rows(store, "SELECT 1 FROM bongsu_deliveries WHERE leased_by IS NULL")) == (0 if change is renew else 2)
