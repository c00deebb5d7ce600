"""Events that have come so far, without a worker or a dispatcher: their rows, their messages, and counts that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from bongsu.model import Event
from bongsu.store import Transaction, outbox
from bongsu.store.core.query import in_both, same
from tests.support.notifications import say

_CHANGE_MESSAGE = same("UPDATE bongsu_messages SET notice_index = $2, locale = 'ko', is_bulk = $3 WHERE message_id = $1")
_ADD_COUNT = same("INSERT INTO bongsu_message_counts (message_id, channel, category, count) VALUES ($1, $2, $3, $4)")
_SET_AGE = in_both(
    lambda d: f"UPDATE bongsu_messages SET created_at = {d.after('-CAST($2 AS double precision)')} WHERE message_id = $1"
)
_ADD_CANCELLATION = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_cancellations (event_id, requested_at, requested_by, withdraw, cancelled, sent, withdrawn)
    VALUES ($1, {d.now}, $2, $3, $4, $5, $6)"""
    )
)


async def add_event(tx: Transaction, event_type: str = "product.price_changed", **columns: Any) -> UUID:
    """An event whose row has these columns."""
    event = Event(event_type=event_type)
    await outbox.add(tx, [event])
    if columns:
        changes = ", ".join(f"{name} = ${place}" for place, name in enumerate(columns, 2))
        update = same(f"UPDATE bongsu_events SET {changes} WHERE event_id = $1")
        await tx.execute(update(event.event_id, *columns.values()))
    return event.event_id


async def add_message(
    tx: Transaction, event_id: UUID, notice: int = 0, *, is_bulk: bool = False, seconds_ago: float = 0
) -> int:
    """A message of that event, for its notice of that number. Its id."""
    message_id = await say(tx, event_id=event_id, locale=f"notice {notice}")
    await tx.execute(_CHANGE_MESSAGE(message_id, notice, is_bulk), _SET_AGE(message_id, float(seconds_ago)))
    return message_id


async def keep_counts(tx: Transaction, message_id: int, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Counts by channel and what is counted, as they are kept of a message of many members."""
    for channel, each in counts.items():
        await tx.execute(*(_ADD_COUNT(message_id, channel, category, count) for category, count in each.items()))


async def add_cancellation(tx: Transaction, event_id: UUID, *, withdraw: bool = False) -> None:
    """A cancellation that stopped 5 deliveries and was too late for 7; with `withdraw` it took back 3 inbox rows."""
    await tx.execute(_ADD_CANCELLATION(event_id, "key:…abcd", withdraw, 5, 7, 3 * withdraw))
