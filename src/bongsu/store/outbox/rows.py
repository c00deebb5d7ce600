"""Rows of the outbox as Python values: what is inserted, what a claim returns, what is recorded, what a lookup finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from bongsu.model import Event, EventStatus, utc_now
from bongsu.model.payload import no_payload, read_payload
from bongsu.store.core.query import Dialect, Row, as_uuid, optional_time

# A worker that crashes ends all claims of its batch without a result, so a high count of claims does not prove that this
# event crashes it (poison message). From the third such claim on, an event is a suspect and is claimed alone. After three
# more crashes, alone, it ends as FAILED.
SUSPECT_AFTER = 3
CRASHES_ALONE = 3

# Names a claim.
CLAIM = {"event_id": "uuid", "epoch": "integer"}
# And how far it has come.
CURSOR = {**CLAIM, "cursor": "text"}
# The columns of a new event, in the order in which `NewEvent` has them. PostgreSQL reads an array of texts and casts each
# to jsonb in less time than an array of jsonb.
NEW_EVENT = {
    "event_id": "uuid",
    "event_type": "text",
    "occurred_at": "timestamptz",
    "actor_id": "text",
    "target_id": "text",
    "ref_id": "text",
    "payload": "text",
}
# And when it is due; NULL is now.
SCHEDULED_EVENT = {**NEW_EVENT, "due": "timestamptz"}
# The columns of an event that has ended when it is stored, in the order in which `EndedEvent` has them.
ENDED_EVENT = {
    "event_id": "uuid",
    "event_type": "text",
    "actor_id": "text",
    "target_id": "text",
    "ref_id": "text",
    "payload": "text",
    "status": "text",
    "attempts": "integer",
    "error": "text",
}
# The payload as text: drivers differ in what they make of JSON. By the table's name: SQLite knows no alias in RETURNING.
READ_COLUMNS = """
    bongsu_events.event_id, event_type, occurred_at, actor_id, target_id, ref_id, CAST(payload AS text) AS payload"""
# What every lookup and every list returns of bongsu_events AS e, for `EventRow`.
ROW_COLUMNS = """
    e.event_id, e.event_type, e.actor_id, e.target_id, e.ref_id, e.status, e.attempts, e.error, e.due,
    e.leased_by IS NOT NULL AS is_leased, e.fanout_cursor IS NOT NULL AS is_begun, e.created_at, e.finished_at"""
# What a claim returns.
CLAIM_COLUMNS = f"{READ_COLUMNS}, epoch, attempts, claim_count, is_large"
# The types of events.
EVENT_TYPE = {"event_type": "text"}


class NewEvent(NamedTuple):
    """A new event as it is stored. The code that makes one must have checked what `Event` checks."""

    event_id: UUID
    event_type: str
    occurred_at: datetime
    actor_id: str | None
    target_id: str | None
    ref_id: str | None
    payload_text: str
    # When workers may take it: at once if it is None, or lies in the past.
    due: datetime | None = None


class EndedEvent(NamedTuple):
    """An event that is stored when it has ended: a call that was counted, a chat message that could not be stored."""

    event_id: UUID
    event_type: str
    actor_id: str | None
    target_id: str | None
    ref_id: str | None
    payload_text: str
    status: EventStatus
    attempts: int = 0
    error: str | None = None


def as_rows(events: Sequence[Event | NewEvent]) -> list[NewEvent]:
    return [
        e
        if type(e) is NewEvent
        else NewEvent(e.event_id, e.event_type, e.occurred_at, e.actor_id, e.target_id, e.ref_id, e.payload_text)
        for e in events
    ]


def scheduled(event: Event, due: datetime) -> NewEvent:
    """The event, due at that time. Workers find it by the same index as any other, when the time comes."""
    return as_rows([event])[0]._replace(due=due)


# A NamedTuple, like EventResult, because one is made for every event: a frozen dataclass takes four times as long.
class ClaimedEvent(NamedTuple):
    """An event that a worker has leased."""

    event: Event
    epoch: int
    attempts: int
    claim_count: int
    unreadable: str | None = None
    # Its payload is long: a claim takes one such event at most, and decodes it outside the event loop.
    is_large: bool = False

    @property
    def hopeless(self) -> str | None:
        """Why another attempt would change nothing, if so."""
        if self.unreadable:
            return self.unreadable
        if self.claim_count > SUSPECT_AFTER + CRASHES_ALONE:
            return f"every worker that claimed it has crashed, {self.claim_count - 1} in a row"
        return None


class EventResult(NamedTuple):
    """What becomes of a claimed event. PENDING means: again, after that many seconds."""

    event_id: UUID
    epoch: int
    status: EventStatus
    error: str | None = None
    after_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """An event and its status, without the payload."""

    event_id: UUID
    event_type: str
    actor_id: str | None = None
    target_id: str | None = None
    ref_id: str | None = None
    status: EventStatus
    # How many attempts have failed.
    attempts: int = 0
    error: str | None = None
    # When workers may take it. If one has leased it, the end of the lease.
    due: datetime
    is_leased: bool = False
    # Whether part of its audience may be decided already.
    is_begun: bool = False
    created_at: datetime
    finished_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class StoredEvent(EventRow):
    """With the payload."""

    event: Event


def read_event_row(dialect: Dialect, row: Row) -> EventRow:
    return EventRow(**event_fields(dialect, row))


def event_fields(dialect: Dialect, row: Row) -> dict[str, Any]:
    """The fields of an `EventRow` from ROW_COLUMNS."""
    return {
        "event_id": as_uuid(row["event_id"]),
        "event_type": row["event_type"],
        "actor_id": row["actor_id"],
        "target_id": row["target_id"],
        "ref_id": row["ref_id"],
        "status": EventStatus(row["status"]),
        "attempts": row["attempts"],
        "error": row["error"],
        "due": dialect.time(row["due"]),
        "is_leased": bool(row["is_leased"]),
        "is_begun": bool(row["is_begun"]),
        "created_at": dialect.time(row["created_at"]),
        "finished_at": optional_time(dialect, row["finished_at"]),
    }


def read_event(dialect: Dialect, row: Row) -> tuple[Event, str | None]:
    """The Event of a row, not checked again; and, if the row cannot be read, why, with what could be read of it.

    A row written by plain SQL may hold what Python cannot read. Only that event fails then, not its batch.
    """
    unreadable = None
    try:
        payload = read_payload(row["payload"])
        occurred_at = dialect.time(row["occurred_at"])
    except (ValueError, OverflowError, RecursionError) as error:
        unreadable = f"the row cannot be read: {type(error).__name__}: {error}"[:500]
        payload, occurred_at = no_payload(), utc_now()
    event = Event.model_construct(
        event_type=row["event_type"],
        event_id=as_uuid(row["event_id"]),
        occurred_at=occurred_at,
        actor_id=row["actor_id"],
        target_id=row["target_id"],
        ref_id=row["ref_id"],
        payload=payload,
    )
    return event, unreadable
