"""Events that have come so far, without a worker or a dispatcher: their rows, their messages, and counts that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from bongsu.store import Transaction
from tests.support import rows
from tests.support.notifications import add_past_message


async def add_event(tx: Transaction, event_type: str = "product.price_changed", **columns: Any) -> UUID:
    """An event whose row has these columns."""
    return await rows.add_event(tx, event_type=event_type, **columns)


async def add_message(
    tx: Transaction, event_id: UUID, notice: int = 0, *, is_bulk: bool = False, seconds_ago: float = 0
) -> int:
    """A message of that event, for its notice of that number. Its id."""
    message_id = await add_past_message(tx, event_id=event_id, locale=f"notice {notice}")
    columns = {"notice_index": notice, "locale": "ko", "is_bulk": is_bulk, "created_at": timedelta(seconds=-seconds_ago)}
    await rows.set_columns(tx, "messages", {"message_id": message_id}, **columns)
    return message_id


async def keep_counts(tx: Transaction, message_id: int, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Counts by channel and what is counted, as they are kept of a message of many members."""
    for channel, each in counts.items():
        for category, count in each.items():
            await rows.add_message_count(tx, message_id, channel=channel, category=category, count=count)


async def add_cancellation(tx: Transaction, event_id: UUID, *, withdraw: bool = False) -> None:
    """A cancellation that stopped 5 deliveries and was too late for 7; with `withdraw` it took back 3 inbox rows."""
    await rows.add_cancellation(tx, event_id, withdraw=withdraw, cancelled=5, sent=7, withdrawn=3 * withdraw)
