"""Statements about events that go out at a set time: put one in, look when it is due, call it off.

A scheduled event is an event like any other whose due time lies ahead, so workers find it by the same index when it comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Event, EventStatus
from bongsu.store.databases import dialect_named
from bongsu.store.dialect import Dialect, as_text

# What a called-off event keeps as its error: it is DONE, because nothing more will come of it and nothing is to be replayed.
CANCELLED = "CANCELLED"

_SCHEDULED = {
    "event_id": "uuid",
    "event_type": "text",
    "occurred_at": "timestamptz",
    "ref_id": "text",
    "payload": "jsonb",
    "due": "timestamptz",
}


@dataclass(frozen=True)
class Progress:
    """How far an event has come. Held: a worker has it, and `due` is the end of its lease. Begun: some of its audience may
    have been decided already."""

    event_type: str
    status: EventStatus
    due: datetime
    attempts: int
    error: str | None
    is_held: bool
    is_begun: bool
    finished_at: datetime | None

    @property
    def is_cancelled(self) -> bool:
        return self.status is EventStatus.DONE and self.error == CANCELLED


@cache
def _insert(dialect: Dialect) -> str:
    places = enumerate(_SCHEDULED.values())
    values = ", ".join(dialect.typed(kind, dialect.placeholder(place)) for place, kind in places)
    return f"""
        INSERT INTO bongsu_events ({", ".join(_SCHEDULED)}) VALUES ({values})
        ON CONFLICT (event_id) DO NOTHING RETURNING event_id"""


async def add(tx: AsyncConnection, event: Event, due: datetime) -> bool:
    """Store an event for that moment; say whether its id was new. Waits for a rival transaction that holds the same id."""
    dialect = dialect_named(tx.dialect.name)
    row = event.event_id, event.event_type, event.occurred_at, event.ref_id, event.payload_text, due
    (plain,) = dialect.plain(_SCHEDULED, [row])
    return (await tx.exec_driver_sql(_insert(dialect), tuple(plain))).first() is not None


async def cancel(tx: AsyncConnection, event_id: UUID, event_type: str) -> bool:
    """Call off an event of that type that is not finished; say whether it was there to be called off.

    One statement: a worker that finishes it at this moment is first, and then nothing is changed here, or it is second, and
    then the epoch it holds is an old one and it records nothing more.
    """
    dialect = dialect_named(tx.dialect.name)
    changed = await tx.execute(
        as_text(f"""
            UPDATE bongsu_events
            SET status = 'DONE', error = '{CANCELLED}', finished_at = {dialect.now}, epoch = epoch + 1, claims = 0,
                leased_by = NULL
            WHERE event_id = :event_id AND event_type = :event_type AND status = 'PENDING'
            RETURNING event_id"""),
        {"event_id": dialect.plain({"event_id": "uuid"}, [(event_id,)])[0][0], "event_type": event_type},
    )
    return changed.first() is not None


async def find_progress(connection: AsyncConnection, event_id: UUID) -> Progress | None:
    dialect = dialect_named(connection.dialect.name)
    found = await connection.execute(
        as_text("""
            SELECT event_type, status, due, attempts, error, leased_by IS NOT NULL, fanout_cursor IS NOT NULL, finished_at
            FROM bongsu_events WHERE event_id = :event_id"""),
        {"event_id": dialect.plain({"event_id": "uuid"}, [(event_id,)])[0][0]},
    )
    row = found.one_or_none()
    if row is None:
        return None
    event_type, status, due, attempts, error, is_held, is_begun, finished_at = row
    return Progress(
        event_type,
        EventStatus(status),
        dialect.moment(due),
        attempts,
        error,
        bool(is_held),
        bool(is_begun),
        None if finished_at is None else dialect.moment(finished_at),
    )
