"""Deliveries and events in any state, for tests of what becomes of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from bongsu.model import Channel
from bongsu.store import Store, Transaction, deliveries
from bongsu.store.core.query import same
from bongsu.store.deliveries import ClaimedDelivery, DeliveryResult, DeliveryStatus
from bongsu.store.ranks import RANKS
from tests.support.notifications import add_past_message, add_past_notification
from tests.support.rows import NOW, add_event, set_columns

SOON, LONG_AGO = timedelta(hours=1), timedelta(hours=-1)

_FIND_DELIVERY = same("SELECT delivery_id FROM bongsu_deliveries WHERE notification_id = $1")


async def add_guaranteed_message(
    tx: Transaction, guarantee: str = "at_least_once", expires: timedelta | None = None, **said: Any
) -> int:
    """A message of that guarantee that expires then, counted from now."""
    message_id = await add_past_message(tx, **said)
    await set_columns(tx, "messages", {"message_id": message_id}, guarantee=guarantee, expires_at=expires)
    return message_id


async def add_delivery_in_state(tx: Transaction, message_id: int, status: str, member: str = "m-1", **columns: Any) -> int:
    """A delivery to that member with these columns. A timedelta is a time counted from now."""
    notification_id = await add_past_notification(tx, message_id, member, status)
    columns = {"code": "X", "due": timedelta(), "epoch": 3, "attempts": 4, "finished_at": timedelta(), **columns}
    if status in ("READY", "SENDING"):
        columns |= {"code": None, "finished_at": None}
    await set_columns(tx, "deliveries", {"notification_id": notification_id}, **columns)
    (row,) = await tx.fetch(_FIND_DELIVERY(notification_id))
    return int(row["delivery_id"])


async def add_one_delivery(store: Store, status: str, guarantee: str = "at_least_once", expires: timedelta | None = None,
                       **columns: Any) -> int:  # fmt: skip
    async with store.transaction() as tx:
        return await add_delivery_in_state(tx, await add_guaranteed_message(tx, guarantee, expires), status, **columns)


# The rank of a delivery as it was decided, and as one of many that are sent again.
RANK_AGAIN = {0: 0, 1: 1, 2: 5, 3: 6, 4: 7, 5: 5, 6: 6, 7: 7}


async def dead_of_every_rank(store: Store, count: int, **columns: Any) -> dict[int, int]:
    """So many deliveries that have failed, of each rank in turn: the rank of each as it was decided."""
    found = {}
    async with store.transaction() as tx:
        for number in range(count):
            rank = number % len(RANK_AGAIN)
            message_id = await add_guaranteed_message(tx)
            priority = max(0, rank - 2) % 3
            await set_columns(tx, "messages", {"message_id": message_id}, priority=priority, is_critical=rank < 2)
            found[await add_delivery_in_state(tx, message_id, "FAIL", f"m-{number}", rank=rank, **columns)] = rank
    return found


async def delivery_columns(store: Store, delivery_id: int, *names: str) -> Any:
    """The values of these columns now: one value, or a tuple of them."""
    async with store.read() as tx:
        (row,) = await tx.fetch(
            same(f"SELECT {', '.join(names)} FROM bongsu_deliveries WHERE delivery_id = $1")(delivery_id)
        )
    return row[names[0]] if len(names) == 1 else tuple(row)


async def failed_event(
    store: Store, error: str = "KeyError: 'x'", event_type: str = "x", finished_at: datetime | None = None, **columns: Any
) -> UUID:
    columns = {
        "attempts": 4,
        "claim_count": 2,
        "epoch": 9,
        "fanout_cursor": "1:m-7",
        "finished_at": finished_at or NOW,
        **columns,
    }
    async with store.transaction() as tx:
        return await add_event(tx, event_type=event_type, status="FAILED", error=error, **columns)


# --- claims -----------------------------------------------------------------------------------------------------------


async def claim(store: Any, limit: int = 10) -> list[ClaimedDelivery]:
    """Pushes of any rank, for a minute."""
    return await deliveries.claim(store, Channel.PUSH, RANKS, limit, 60, "w")


def result(claimed: ClaimedDelivery, status: DeliveryStatus, **more: Any) -> DeliveryResult:
    return DeliveryResult(claimed.delivery_id, claimed.epoch, status, "X", bulk_message=claimed.message_id, **more)


class StoreInTransaction:
    """Passes one open transaction to functions that take a store and begin a transaction themselves."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.dialect = tx.dialect

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        yield self._tx

    single = transaction
