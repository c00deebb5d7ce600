"""Looking up events: one by its id, and how many are not finished."""

from __future__ import annotations

from uuid import UUID

from bongsu.model import EventStatus
from bongsu.store.outbox.rows import READ_COLUMNS, StoredEvent, read_event
from bongsu.store.query import Transaction, fetch_one, same

# Returns one event.
FIND = same(
    f"""
    SELECT {READ_COLUMNS}, status, attempts, error, created_at, finished_at
    FROM bongsu_events WHERE event_id = $1"""
)

# Returns how many events wait and how many have failed. Both have an index; those that are DONE have none.
COUNT_UNFINISHED = same(
    """
    SELECT (SELECT count(*) FROM bongsu_events WHERE status = 'PENDING') AS pending,
           (SELECT count(*) FROM bongsu_events WHERE status = 'FAILED') AS failed"""
)


async def find(tx: Transaction, event_id: UUID) -> StoredEvent | None:
    row = await fetch_one(tx, FIND(event_id))
    if row is None:
        return None
    event, unreadable = read_event(tx.dialect, row)
    return StoredEvent(
        event,
        EventStatus(row["status"]),
        row["attempts"],
        row["error"] or unreadable,
        tx.dialect.time(row["created_at"]),
        None if row["finished_at"] is None else tx.dialect.time(row["finished_at"]),
    )


async def count_unfinished(tx: Transaction) -> dict[EventStatus, int]:
    """How many events wait and how many have failed."""
    (row,) = await tx.fetch(COUNT_UNFINISHED())
    return {EventStatus.PENDING: row["pending"], EventStatus.FAILED: row["failed"]}
