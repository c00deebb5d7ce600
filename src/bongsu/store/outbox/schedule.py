"""Events that are due at a set time: add one, see how far it has come.

A scheduled event is an event like any other whose due time lies ahead, so workers find it by the same index when it comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from bongsu.model import Event, EventStatus
from bongsu.store.core.query import Dialect, Row, Transaction, fetch_one, in_both, same

# Returns whether a time lies ahead.
_IS_AHEAD = in_both(lambda d: f"SELECT CAST($1 AS timestamptz) > {d.now} AS is_ahead")

# Inserts an event due at that time, if its id is not there yet. Waits for another transaction that inserts the same id.
_ADD = same("""
    INSERT INTO bongsu_events (event_id, event_type, occurred_at, ref_id, payload, due)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (event_id) DO NOTHING""")

PROGRESS_COLUMNS = """event_type, status, due, attempts, error, leased_by IS NOT NULL AS is_held,
           fanout_cursor IS NOT NULL AS is_begun, finished_at"""
# Returns how far one event has come.
_FIND_PROGRESS = same(f"SELECT {PROGRESS_COLUMNS} FROM bongsu_events WHERE event_id = $1")


@dataclass(frozen=True)
class Progress:
    """How far an event has come. Held: a worker has claimed it, and `due` is the end of its lease. Begun: part of its
    audience may be decided already."""

    event_type: str
    status: EventStatus
    due: datetime
    attempts: int
    error: str | None
    is_held: bool
    is_begun: bool
    finished_at: datetime | None


async def is_ahead(tx: Transaction, moment: datetime) -> bool:
    """Whether it lies ahead by the store's time, which is the time by which workers find what is due."""
    (row,) = await tx.fetch(_IS_AHEAD(moment))
    return bool(row["is_ahead"])


async def add(tx: Transaction, event: Event, due: datetime) -> bool:
    """Insert an event that is due at that time; return whether its id was new."""
    added = _ADD(event.event_id, event.event_type, event.occurred_at, event.ref_id, event.payload_text, due)
    return await tx.execute(added) == [1]


async def find_progress(tx: Transaction, event_id: UUID) -> Progress | None:
    row = await fetch_one(tx, _FIND_PROGRESS(event_id))
    return None if row is None else read_progress(tx.dialect, row)


def read_progress(dialect: Dialect, row: Row) -> Progress:
    return Progress(
        row["event_type"],
        EventStatus(row["status"]),
        dialect.time(row["due"]),
        row["attempts"],
        row["error"],
        bool(row["is_held"]),
        bool(row["is_begun"]),
        None if row["finished_at"] is None else dialect.time(row["finished_at"]),
    )
