"""Statements about dead letters: events that FAILED, deliveries that ended FAIL or UNKNOWN. Find, count, put back.

Both kinds have an index that holds the dead alone, so looking for them costs by how many there are and not by how much was
ever sent. Each kind is read newest first by its own key, the events before the deliveries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Channel
from bongsu.store.databases import dialect_named
from bongsu.store.dialect import Dialect, as_text
from bongsu.store.events import as_uuid
from bongsu.store.history import LARGEST_ID

_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_LARGEST_UUID = UUID(int=2**128 - 1)


class Kind(StrEnum):
    EVENT = "event"
    DELIVERY = "delivery"


class State(StrEnum):
    FAILED = "FAILED"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Filters:
    """What the dead letters asked for have in common. The times are those of their deaths."""

    id: int | UUID | None = None
    kind: Kind | None = None
    state: State | None = None
    code: str | None = None
    channel: Channel | None = None
    # A notification's type, or an event's.
    type: str | None = None
    member_id: str | None = None
    event_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Where dead letters that fit can be. Only deliveries have a channel and a member."""
        of_events = self.kind is Kind.EVENT or self.state is State.FAILED or isinstance(self.id, UUID)
        of_deliveries = self.kind is Kind.DELIVERY or self.state in (State.FAIL, State.UNKNOWN) or isinstance(self.id, int)
        of_deliveries = of_deliveries or self.channel is not None or self.member_id is not None
        return tuple(kind for kind, other in ((Kind.EVENT, of_deliveries), (Kind.DELIVERY, of_events)) if not other)


@dataclass(frozen=True)
class DeadRow:
    """A dead letter. What only a delivery has is None for an event."""

    kind: Kind
    id: str
    state: State
    code: str | None
    error: str | None
    type: str
    event_id: UUID
    tries: int
    created_at: datetime
    died_at: datetime
    rounds: int = 0
    is_retryable: bool = False
    message_id: int | None = None
    notification_id: int | None = None
    member_id: str | None = None
    channel: Channel | None = None
    device_id: str | None = None
    title: str | None = None


@dataclass(frozen=True)
class Place:
    """Behind which a page begins: an event's death and id, or a delivery's id."""

    kind: Kind = Kind.EVENT
    died_at: datetime = _LATEST
    event_id: UUID = _LARGEST_UUID
    delivery_id: int = LARGEST_ID


def place_of(row: DeadRow) -> Place:
    if row.kind is Kind.EVENT:
        return Place(Kind.EVENT, row.died_at, row.event_id)
    return Place(Kind.DELIVERY, delivery_id=int(row.id))


# --- find -------------------------------------------------------------------------------------------------------------


async def find_page(
    connection: AsyncConnection, filters: Filters, behind: Place | None = None, limit: int = 50
) -> list[DeadRow]:
    """The newest behind that place, events before deliveries."""
    dialect = dialect_named(connection.dialect.name)
    place = behind or Place()
    rows: list[DeadRow] = []
    for kind in filters.kinds:
        if kind is Kind.EVENT and place.kind is Kind.DELIVERY:
            continue
        asked = {**_parameters(dialect, filters), **_bounds(dialect, place), "limit": limit - len(rows)}
        found = (await connection.execute(as_text(page_statement(dialect, filters, kind)), asked)).all()
        rows += (_READ[kind](dialect, row) for row in found)
        if len(rows) == limit:
            break
    return rows


def page_statement(dialect: Dialect, filters: Filters, kind: Kind) -> str:
    """By the index of the dead, from the place on downwards; conditions on the message are one look by its key each."""
    if kind is Kind.EVENT:
        return f"""
            SELECT e.event_id, e.error, e.event_type, e.attempts, e.created_at, e.finished_at
            FROM {_source(dialect, filters, kind)} WHERE {_where(filters, kind)}
              AND (e.finished_at, e.event_id) < (:died_at, :before_event)
            ORDER BY e.finished_at DESC, e.event_id DESC LIMIT :limit"""
    # The words are looked up for the rows of the page and for no others.
    return f"""
        WITH page AS MATERIALIZED (
            SELECT d.* FROM {_source(dialect, filters, kind)} WHERE {_where(filters, kind)}
              AND d.delivery_id < :before_delivery
            ORDER BY d.delivery_id DESC LIMIT :limit)
        SELECT page.delivery_id, page.status, page.code, page.detail, m.type, m.event_id, page.attempts, page.created_at,
               coalesce(page.finished_at, page.created_at), page.rounds, page.is_retryable, page.message_id,
               page.notification_id, page.member_id, page.channel, page.device_id, m.title
        FROM page JOIN bongsu_messages m ON m.message_id = page.message_id ORDER BY page.delivery_id DESC"""


async def count(connection: AsyncConnection, filters: Filters) -> int:
    dialect = dialect_named(connection.dialect.name)
    total = 0
    for kind in filters.kinds:
        found = await connection.execute(as_text(count_statement(dialect, filters, kind)), _parameters(dialect, filters))
        total += int(found.scalar_one())
    return total


def count_statement(dialect: Dialect, filters: Filters, kind: Kind) -> str:
    return f"SELECT count(*) FROM {_source(dialect, filters, kind)} WHERE {_where(filters, kind)}"


def _source(dialect: Dialect, filters: Filters, kind: Kind) -> str:
    if kind is Kind.EVENT:
        # One that is named is found by its name.
        by_id = filters.id is not None or filters.event_id is not None
        index = "sqlite_autoindex_bongsu_events_1" if by_id else "bongsu_events_failed"
        return f"bongsu_events e {dialect.by_index(index)}"
    return f"bongsu_deliveries d {dialect.by_index('bongsu_deliveries_dead')}"


# The message's column for a delivery. Scalar, so that no planner makes a join of it that reads all messages.
_OF_MESSAGE = "(SELECT m.{column} FROM bongsu_messages m WHERE m.message_id = d.message_id)"


def _where(filters: Filters, kind: Kind) -> str:
    if kind is Kind.EVENT:
        conditions = {
            "e.status = 'FAILED'": True,
            "e.event_id = :id": filters.id is not None,
            "e.event_id = :event_id": filters.event_id is not None,
            "e.event_type = :type": filters.type is not None,
            # The code is what stands before the first colon: the kind of error.
            "(e.error = :code OR substr(e.error, 1, :code_length) = :code_colon)": filters.code is not None,
            "e.finished_at >= :since": filters.since is not None,
            "e.finished_at < :until": filters.until is not None,
        }
    else:
        conditions = {
            "d.status IN ('FAIL', 'UNKNOWN')": True,
            "d.delivery_id = :id": filters.id is not None,
            "d.status = :state": filters.state is not None,
            "d.code = :code": filters.code is not None,
            "d.channel = :channel": filters.channel is not None,
            "d.member_id = :member_id": filters.member_id is not None,
            f"{_OF_MESSAGE.format(column='type')} = :type": filters.type is not None,
            f"{_OF_MESSAGE.format(column='event_id')} = :event_id": filters.event_id is not None,
            "d.finished_at >= :since": filters.since is not None,
            "d.finished_at < :until": filters.until is not None,
        }
    return " AND ".join(condition for condition, is_asked in conditions.items() if is_asked)


def _parameters(dialect: Dialect, filters: Filters) -> dict[str, Any]:
    code = filters.code or ""
    return {
        "id": _uuid(dialect, filters.id) if isinstance(filters.id, UUID) else filters.id,
        "state": filters.state and filters.state.value,
        "code": code,
        "code_length": len(code) + 1,
        "code_colon": f"{code}:",
        "channel": filters.channel and filters.channel.value,
        "type": filters.type,
        "member_id": filters.member_id,
        "event_id": filters.event_id and _uuid(dialect, filters.event_id),
        "since": filters.since and dialect.stored(filters.since),
        "until": filters.until and dialect.stored(filters.until),
    }


def _bounds(dialect: Dialect, place: Place) -> dict[str, Any]:
    return {
        "died_at": dialect.stored(place.died_at),
        "before_event": _uuid(dialect, place.event_id),
        "before_delivery": place.delivery_id,
    }


def _uuid(dialect: Dialect, value: UUID) -> Any:
    return dialect.plain({"event_id": "uuid"}, [(value,)])[0][0]


def _event_row(dialect: Dialect, row: Sequence[Any]) -> DeadRow:
    event_id, error, event_type, attempts, created_at, finished_at = row
    named = as_uuid(event_id)
    return DeadRow(
        Kind.EVENT, str(named), State.FAILED, (error or "").partition(":")[0] or None, error, event_type, named, attempts,
        dialect.moment(created_at), dialect.moment(finished_at),
    )  # fmt: skip


def _delivery_row(dialect: Dialect, row: Sequence[Any]) -> DeadRow:
    delivery_id, status, code, detail, type_name, event_id, attempts, created_at, died_at = row[:9]
    rounds, is_retryable, message_id, notification_id, member_id, channel, device_id, title = row[9:]
    return DeadRow(
        Kind.DELIVERY, str(delivery_id), State(status), code, detail, type_name, as_uuid(event_id), attempts,
        dialect.moment(created_at), dialect.moment(died_at), rounds, bool(is_retryable), message_id, notification_id,
        member_id, Channel(channel), device_id, title,
    )  # fmt: skip


_READ = {Kind.EVENT: _event_row, Kind.DELIVERY: _delivery_row}


# --- put back ---------------------------------------------------------------------------------------------------------

# READY as on the first day, but for the epoch, which is never lowered: whoever held it before can still not finish it.
_DELIVERY_AGAIN = """
    UPDATE bongsu_deliveries
    SET status = 'READY', due = {now}, attempts = 0, rounds = 0, claims = 0, code = NULL, detail = NULL,
        is_retryable = false, leased_by = NULL, finished_at = NULL{series}
    FROM {given} WHERE bongsu_deliveries.delivery_id = given.delivery_id
      AND bongsu_deliveries.status IN ('FAIL', 'UNKNOWN') RETURNING bongsu_deliveries.delivery_id"""
# The place its fan-out had come to is kept: those who were told are not told again.
_EVENT_AGAIN = """
    UPDATE bongsu_events {by_id}
    SET status = 'PENDING', due = {now}, attempts = 0, claims = 0, error = NULL, leased_by = NULL, finished_at = NULL
    FROM {given} WHERE bongsu_events.event_id = given.event_id AND bongsu_events.status = 'FAILED'
    RETURNING bongsu_events.event_id"""


async def replay(tx: AsyncConnection, rows: Sequence[DeadRow], *, new_series: bool = False) -> int:
    """Put these back to work; answer how many were still dead. Two replays at once take turns."""
    dialect = dialect_named(tx.dialect.name)
    await dialect.serialise(tx, "dead replay")
    again = 0
    events = [(row.event_id,) for row in rows if row.kind is Kind.EVENT]
    if events:
        words = {"by_id": dialect.by_index("sqlite_autoindex_bongsu_events_1"), "now": dialect.now}
        again += await _again(tx, dialect, _EVENT_AGAIN, words, {"event_id": "uuid"}, events)
    deliveries = [(int(row.id),) for row in rows if row.kind is Kind.DELIVERY]
    if deliveries:
        words = {"now": dialect.now, "series": ", series = series + 1" if new_series else ""}
        again += await _again(tx, dialect, _DELIVERY_AGAIN, words, {"delivery_id": "bigint"}, deliveries)
    return again


async def _again(
    tx: AsyncConnection,
    dialect: Dialect,
    statement: str,
    words: Mapping[str, str],
    columns: Mapping[str, str],
    ids: Sequence[tuple[Any, ...]],
) -> int:
    text = statement.format(**words, given=dialect.table(columns))
    return len(await dialect.rows(tx, text, tuple(dialect.parameters(columns, ids))))


# --- who did it -------------------------------------------------------------------------------------------------------


async def begin_audit(tx: AsyncConnection, who: str, what: str, filter_text: str) -> int:
    """Write down that a replay begins, before it does: its numbers follow with every batch."""
    now = dialect_named(tx.dialect.name).now
    added = await tx.execute(
        as_text(f"""
            INSERT INTO bongsu_replays (at, who, what, filter, matched, replayed)
            VALUES ({now}, :who, :what, :filter, 0, 0) RETURNING replay_id"""),
        {"who": who, "what": what, "filter": filter_text},
    )
    return int(added.scalar_one())


async def continue_audit(tx: AsyncConnection, replay_id: int, matched: int, replayed: int) -> None:
    await tx.execute(
        as_text("""
            UPDATE bongsu_replays SET matched = matched + :matched, replayed = replayed + :replayed
            WHERE replay_id = :replay_id"""),
        {"replay_id": replay_id, "matched": matched, "replayed": replayed},
    )
