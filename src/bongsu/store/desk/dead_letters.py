"""Dead letters: events that FAILED or were UNHANDLED, deliveries that ended FAIL or UNKNOWN. Find and count them.

Both tables have a partial index of the dead rows only, so a search costs by how many dead letters there are and not by how
much was ever sent. A page lists events before deliveries, each kind newest first. It looks at SCAN_LIMIT of each at most,
however rarely its filters match: then it has fewer rows, or none, and says where the next one begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

from bongsu.store.core.query import LARGEST_ID, Dialect, Query, Row, Transaction, as_uuid, fetch_one, in_both

# Dead letters that one page looks at: work for a fifth of a second.
SCAN_LIMIT = 20_000

_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_SMALLEST_UUID = UUID(int=0)
_LARGEST_UUID = UUID(int=2**128 - 1)


class Kind(StrEnum):
    EVENT = "event"
    DELIVERY = "delivery"
    # Of another system than the store.
    MESSAGE = "message"


class State(StrEnum):
    FAILED = "FAILED"
    UNHANDLED = "UNHANDLED"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    # Of a message, in another system than the store.
    REJECTED = "REJECTED"


# The states of each kind, as in the predicates of the partial indexes.
DEAD_EVENT = "e.status IN ('FAILED', 'UNHANDLED')"
DEAD_DELIVERY = "d.status IN ('FAIL', 'UNKNOWN')"


@dataclass(frozen=True)
class Filters:
    """What the dead letters have in common. `since` and `until` are about when they failed or ended."""

    id: int | UUID | None = None
    kind: Kind | None = None
    state: State | None = None
    code: str | None = None
    channel: str | None = None
    # A notification's type, or an event's.
    type: str | None = None
    member_id: str | None = None
    event_id: UUID | None = None
    since: datetime | None = None
    until: datetime | None = None
    # Whether deliveries of cancelled events match too.
    with_cancelled: bool = True

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that can match. Only deliveries have a channel and a member."""
        if self.kind is Kind.MESSAGE or self.state is State.REJECTED:
            return ()
        of_events = self.kind is Kind.EVENT or self.state in (State.FAILED, State.UNHANDLED) or isinstance(self.id, UUID)
        of_deliveries = self.kind is Kind.DELIVERY or self.state in (State.FAIL, State.UNKNOWN) or isinstance(self.id, int)
        of_deliveries = of_deliveries or self.channel is not None or self.member_id is not None
        return tuple(kind for kind, other in ((Kind.EVENT, of_deliveries), (Kind.DELIVERY, of_events)) if not other)


@dataclass(frozen=True)
class DeadRow:
    """A dead letter. Fields that only a delivery has are None for an event."""

    kind: Kind
    id: str
    state: State
    code: str | None
    error: str | None
    type: str
    event_id: UUID
    attempts: int
    created_at: datetime
    finished_at: datetime
    rounds: int = 0
    is_retryable: bool = False
    message_id: int | None = None
    notification_id: int | None = None
    member_id: str | None = None
    channel: str | None = None
    device_id: str | None = None
    title: str | None = None


@dataclass(frozen=True)
class PageCursor:
    """The last row of a page; the next page begins after it. When an event was finished and its id, or a delivery's id."""

    kind: Kind = Kind.EVENT
    finished_at: datetime = _LATEST
    event_id: UUID = _LARGEST_UUID
    delivery_id: int = LARGEST_ID


def cursor_of(row: DeadRow) -> PageCursor:
    if row.kind is Kind.EVENT:
        return PageCursor(Kind.EVENT, row.finished_at, row.event_id)
    return PageCursor(Kind.DELIVERY, delivery_id=int(row.id))


# --- events -----------------------------------------------------------------------------------------------------------

_EVENT_COLUMNS = "e.event_id, e.status, e.error, e.event_type, e.attempts, e.created_at, e.finished_at"
# $1 type, $2 code, $3 since, $4 until, $5 state. The code of an event is what its error has before the first colon: the kind
# of error.
_EVENT_MATCHES = f"""{DEAD_EVENT}
      AND (CAST($1 AS text) IS NULL OR e.event_type = $1)
      AND (CAST($2 AS text) IS NULL OR e.error = $2 OR substr(e.error, 1, length($2) + 1) = $2 || ':')
      AND e.finished_at >= $3 AND e.finished_at < $4 AND (CAST($5 AS text) IS NULL OR e.status = $5)"""

# Dead events, newest first, by the index of the dead ones. $6 finished_at and $7 event_id of the last one seen, $8 and $9
# of the last one to look at, $10 limit.
_EVENTS_BETWEEN = "(e.finished_at, e.event_id) < ($6, $7) AND (e.finished_at, e.event_id) >= ($8, $9)"
EVENTS = in_both(
    lambda d: (
        f"""
    SELECT {_EVENT_COLUMNS} FROM bongsu_events e {d.index_hint("bongsu_events_dead")}
    WHERE {_EVENT_MATCHES} AND {_EVENTS_BETWEEN}
    ORDER BY e.finished_at DESC, e.event_id DESC LIMIT $10"""
    )
)
# The number of dead events, by the same index. $6 to $9 as for a page.
COUNT_EVENTS = in_both(
    lambda d: (
        f"""
    SELECT count(*) AS count FROM bongsu_events e {d.index_hint("bongsu_events_dead")}
    WHERE {_EVENT_MATCHES} AND {_EVENTS_BETWEEN}"""
    )
)
# The dead event that $3 - 1 others come before, newest first, by the same index. $1 finished_at and $2 event_id of the last
# one seen.
EVENTS_FLOOR = in_both(
    lambda d: (
        f"""
    SELECT e.finished_at, e.event_id FROM bongsu_events e {d.index_hint("bongsu_events_dead")}
    WHERE {DEAD_EVENT} AND e.finished_at <= $1 AND (e.finished_at, e.event_id) < ($1, $2)
    ORDER BY e.finished_at DESC, e.event_id DESC LIMIT 1 OFFSET CAST($3 AS bigint) - 1"""
    )
)
# One event if it is dead, by the primary key. $6 finished_at and $7 event_id of the last one seen, $8 and $9 its id by both
# filters.
EVENT_BY_ID = in_both(
    lambda d: (
        f"""
    SELECT {_EVENT_COLUMNS} FROM bongsu_events e {d.index_hint("sqlite_autoindex_bongsu_events_1")}
    WHERE {_EVENT_MATCHES} AND (e.finished_at, e.event_id) < ($6, $7) AND e.event_id = $8 AND e.event_id = $9"""
    )
)
# Whether it is: 1 or 0. The same parameters.
COUNT_EVENT_BY_ID = in_both(
    lambda d: (
        f"""
    SELECT count(*) AS count FROM bongsu_events e {d.index_hint("sqlite_autoindex_bongsu_events_1")}
    WHERE {_EVENT_MATCHES} AND (e.finished_at, e.event_id) < ($6, $7) AND e.event_id = $8 AND e.event_id = $9"""
    )
)


def _of_events(filters: Filters) -> tuple[Any, ...]:
    state = filters.state and filters.state.value
    return filters.type, filters.code, filters.since or _EARLIEST, filters.until or _LATEST, state


def _event_row(dialect: Dialect, row: Row) -> DeadRow:
    event_id, error = as_uuid(row["event_id"]), row["error"]
    return DeadRow(
        kind=Kind.EVENT,
        id=str(event_id),
        state=State(row["status"]),
        code=(error or "").partition(":")[0] or None,
        error=error,
        type=row["event_type"],
        event_id=event_id,
        attempts=row["attempts"],
        created_at=dialect.time(row["created_at"]),
        finished_at=dialect.time(row["finished_at"]),
    )


# --- deliveries -------------------------------------------------------------------------------------------------------

# $1 lowest and $2 highest id, $3 state, $4 code, $5 channel, $6 member, $7 type, $8 event, $9 since, $10 until, $11 whether
# those of cancelled events match too.
# The message's columns are scalar subqueries: as a join, a planner might read all messages.
_DELIVERY_MATCHES = f"""{DEAD_DELIVERY} AND d.delivery_id BETWEEN $1 AND $2
      AND (CAST($3 AS text) IS NULL OR d.status = $3)
      AND (CAST($4 AS text) IS NULL OR d.code = $4)
      AND (CAST($5 AS text) IS NULL OR d.channel = $5)
      AND (CAST($6 AS text) IS NULL OR d.member_id = $6)
      AND (CAST($7 AS text) IS NULL OR (SELECT m.type FROM bongsu_messages m WHERE m.message_id = d.message_id) = $7)
      AND (CAST($8 AS uuid) IS NULL OR (SELECT m.event_id FROM bongsu_messages m WHERE m.message_id = d.message_id) = $8)
      AND (CAST($9 AS timestamptz) IS NULL OR d.finished_at >= $9)
      AND (CAST($10 AS timestamptz) IS NULL OR d.finished_at < $10)
      AND (CAST($11 AS boolean) OR NOT EXISTS (
          SELECT 1 FROM bongsu_messages m JOIN bongsu_cancellations c ON c.event_id = m.event_id
          WHERE m.message_id = d.message_id))"""

# Dead deliveries, newest first, by the index of the dead ones; content is joined to the rows of the page only. $12 limit.
DELIVERIES = in_both(
    lambda d: (
        f"""
    WITH page AS MATERIALIZED (
        SELECT d.* FROM bongsu_deliveries d {d.index_hint("bongsu_deliveries_dead")}
        WHERE {_DELIVERY_MATCHES}
        ORDER BY d.delivery_id DESC LIMIT $12)
    SELECT page.delivery_id, page.status, page.code, page.detail, m.type, m.event_id, page.attempts, page.created_at,
           coalesce(page.finished_at, page.created_at) AS finished_at, page.recovery_rounds AS rounds, page.is_retryable,
           page.message_id, page.notification_id, page.member_id, page.channel, page.device_id, m.title
    FROM page JOIN bongsu_messages m ON m.message_id = page.message_id ORDER BY page.delivery_id DESC"""
    )
)
# The dead delivery that $3 - 1 others come before, newest first, by the index alone. $1 lowest and $2 highest id.
DELIVERIES_FLOOR = in_both(
    lambda d: (
        f"""
    SELECT d.delivery_id FROM bongsu_deliveries d {d.index_hint("bongsu_deliveries_dead")}
    WHERE {DEAD_DELIVERY} AND d.delivery_id BETWEEN $1 AND $2
    ORDER BY d.delivery_id DESC LIMIT 1 OFFSET CAST($3 AS bigint) - 1"""
    )
)
# The number of dead deliveries, by the same index.
COUNT_DELIVERIES = in_both(
    lambda d: (
        f"""
    SELECT count(*) AS count FROM bongsu_deliveries d {d.index_hint("bongsu_deliveries_dead")} WHERE {_DELIVERY_MATCHES}"""
    )
)


def _of_deliveries(filters: Filters, lowest: int, highest: int) -> tuple[Any, ...]:
    state = filters.state and filters.state.value
    of_message = (filters.type, filters.event_id)
    return (
        lowest, highest, state, filters.code, filters.channel, filters.member_id, *of_message, filters.since, filters.until,
        filters.with_cancelled,
    )  # fmt: skip


def _delivery_ids(filters: Filters, after: PageCursor) -> tuple[int, int]:
    """The lowest and the highest id after the cursor."""
    if isinstance(filters.id, int):
        return filters.id, min(filters.id, after.delivery_id - 1)
    return 0, after.delivery_id - 1


def _delivery_row(dialect: Dialect, row: Row) -> DeadRow:
    return DeadRow(
        kind=Kind.DELIVERY,
        id=str(row["delivery_id"]),
        state=State(row["status"]),
        code=row["code"],
        error=row["detail"],
        type=row["type"],
        event_id=as_uuid(row["event_id"]),
        attempts=row["attempts"],
        created_at=dialect.time(row["created_at"]),
        finished_at=dialect.time(row["finished_at"]),
        rounds=row["rounds"],
        is_retryable=bool(row["is_retryable"]),
        message_id=row["message_id"],
        notification_id=row["notification_id"],
        member_id=row["member_id"],
        channel=row["channel"],
        device_id=row["device_id"],
        title=row["title"],
    )


# --- find and count ---------------------------------------------------------------------------------------------------


class DeadPage(NamedTuple):
    """Dead letters and the cursor of the next page. A page with few rows, or none, need not be the last."""

    rows: list[DeadRow]
    next: PageCursor | None


class DeadCount(NamedTuple):
    """How many match among those that were looked at, and the cursor after which the others begin."""

    matched: int
    next: PageCursor | None


class _Slab(NamedTuple):
    """A query of dead letters of one kind, and the last one it looks at if there are more."""

    query: Query
    end: PageCursor | None


async def find_page(
    tx: Transaction, filters: Filters, after: PageCursor | None = None, limit: int = 50, *, scan_limit: int = SCAN_LIMIT
) -> DeadPage:
    """The newest after the cursor, events before deliveries, among at most `scan_limit` of each kind."""
    cursor = after or PageCursor()
    rows: list[DeadRow] = []
    for kind in _kinds_from(filters, cursor):
        # One more than asked for, to know whether there is a next page.
        slab = await _slab(tx, kind, filters, cursor, scan_limit, limit + 1 - len(rows))
        read = _event_row if kind is Kind.EVENT else _delivery_row
        rows += [read(tx.dialect, row) for row in await tx.fetch(slab.query)]
        if len(rows) > limit:
            return DeadPage(rows[:limit], cursor_of(rows[limit - 1]))
        if slab.end is not None:
            return DeadPage(rows, slab.end)
    return DeadPage(rows, None)


async def count_page(
    tx: Transaction, filters: Filters, after: PageCursor | None = None, *, scan_limit: int = SCAN_LIMIT
) -> DeadCount:
    """How many match after the cursor, among at most `scan_limit` of each kind."""
    cursor, total = after or PageCursor(), 0
    for kind in _kinds_from(filters, cursor):
        slab = await _slab(tx, kind, filters, cursor, scan_limit, None)
        (row,) = await tx.fetch(slab.query)
        total += row["count"]
        if slab.end is not None:
            return DeadCount(total, slab.end)
    return DeadCount(total, None)


def _kinds_from(filters: Filters, cursor: PageCursor) -> list[Kind]:
    return [kind for kind in filters.kinds if kind is Kind.DELIVERY or cursor.kind is Kind.EVENT]


async def _slab(
    tx: Transaction, kind: Kind, filters: Filters, after: PageCursor, scan_limit: int, limit: int | None
) -> _Slab:
    """What to fetch of one kind: at most `limit` rows, or their number if it is None."""
    if kind is Kind.DELIVERY:
        lowest, highest = _delivery_ids(filters, after)
        floor = await fetch_one(tx, DELIVERIES_FLOOR(lowest, highest, scan_limit))
        end = None if floor is None else PageCursor(Kind.DELIVERY, delivery_id=floor["delivery_id"])
        given = _of_deliveries(filters, end.delivery_id if end else lowest, highest)
        return _Slab(COUNT_DELIVERIES(*given) if limit is None else DELIVERIES(*given, limit), end)
    position = (after.finished_at, after.event_id)
    if filters.id is not None or filters.event_id is not None:
        ids = (filters.id or filters.event_id, filters.event_id or filters.id)
        by_id = COUNT_EVENT_BY_ID if limit is None else EVENT_BY_ID
        return _Slab(by_id(*_of_events(filters), *position, *ids), None)
    floor = await fetch_one(tx, EVENTS_FLOOR(*position, scan_limit))
    end = (
        None if floor is None else PageCursor(Kind.EVENT, tx.dialect.time(floor["finished_at"]), as_uuid(floor["event_id"]))
    )
    last = (end.finished_at, end.event_id) if end else (_EARLIEST, _SMALLEST_UUID)
    given = (*_of_events(filters), *position, *last)
    return _Slab(COUNT_EVENTS(*given) if limit is None else EVENTS(*given, limit), end)
