"""Looking up events: one by its id, and how many are not finished."""

from __future__ import annotations

from uuid import UUID

from bongsu.model import EventStatus
from bongsu.store.core.query import Transaction, fetch_one, in_both, same
from bongsu.store.outbox.rows import ROW_COLUMNS, StoredEvent, event_fields, read_event

# Returns one event.
FIND = same(f"""
    SELECT {ROW_COLUMNS}, e.occurred_at, CAST(e.payload AS text) AS payload
    FROM bongsu_events AS e WHERE e.event_id = $1""")

# Returns how many events wait, have failed or were not handled, by the partial indexes of them; those that are DONE are in
# none.
COUNT_UNFINISHED = in_both(
    lambda d: (
        f"""
    SELECT 'PENDING' AS status, count(*) AS count FROM bongsu_events {d.index_hint("bongsu_events_due")}
    WHERE status = 'PENDING'
    UNION ALL
    SELECT status, count(*) AS count FROM bongsu_events {d.index_hint("bongsu_events_dead")}
    WHERE status IN ('FAILED', 'UNHANDLED') GROUP BY status"""
    )
)


async def find(tx: Transaction, event_id: UUID) -> StoredEvent | None:
    row = await fetch_one(tx, FIND(event_id))
    if row is None:
        return None
    event, unreadable = read_event(tx.dialect, row)
    fields = event_fields(tx.dialect, row)
    return StoredEvent(**{**fields, "error": fields["error"] or unreadable}, event=event)


async def count_unfinished(tx: Transaction) -> dict[EventStatus, int]:
    """How many events wait, have failed or were not handled."""
    counts = dict.fromkeys((EventStatus.PENDING, EventStatus.FAILED, EventStatus.UNHANDLED), 0)
    return counts | {EventStatus(row["status"]): row["count"] for row in await tx.fetch(COUNT_UNFINISHED())}
