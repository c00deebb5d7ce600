"""The history: for each member and message whether it was sent or suppressed and why, with the deliveries, newest first.

A page is found by one of three indexes. Filtered by member, it reads that member's rows. Filtered by a status that only a
dead or open delivery gives, it reads the partial index of such deliveries, if those that are open are few. Else it goes
through the messages from the newest on, and through the rows of each, by keys in this order: a message that does not match
costs one look, however many members it was for. It stops when the page is full, or when it has looked at as many rows as
one page may: then the page has fewer rows, or none, and says where the next one begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from bongsu.model.channels import from_bits
from bongsu.store.core.query import (
    LARGEST_ID,
    Dialect,
    Row,
    Statement,
    Transaction,
    as_uuid,
    fetch_one,
    in_both,
    optional_time,
    same,
)
from bongsu.store.desk.delivery_history import DeliveryRow, find_deliveries
from bongsu.store.desk.history import postgres, sqlite
from bongsu.store.desk.history.filters import DEAD, LAST_MEMBER, OPEN, Filters, PageCursor, Status

__all__ = ["Filters", "HistoryPage", "HistoryRow", "PageCursor", "Status", "find_daily_count", "find_page"]

# Ids of messages are in the order of time, except for concurrent transactions and small corrections of the store's clock.
_SLACK = timedelta(minutes=10)
# Rows that one page looks at: work for a fifth of a second. With fewer, a caller with a rare filter asks more often.
SCAN_LIMIT = 20_000
# Messages that may be looked at for each of those rows: one that does not match costs a fifth of a row.
MESSAGES_PER_ROW = 5
# Dead or open deliveries that one page looks at. Each costs four times as much as a row.
FEW_DELIVERIES = 5_000

# One member's rows, newest first.
BY_MEMBER = Statement(postgres.BY_MEMBER, sqlite.BY_MEMBER)
# The messages of a range of ids, newest first, and the rows of each.
BY_MESSAGES = Statement(postgres.BY_MESSAGES, sqlite.BY_MESSAGES)
# Where looking at a number of those rows ends.
ROWS_FLOOR = Statement(postgres.ROWS_FLOOR, sqlite.ROWS_FLOOR)
# Notifications that have a dead delivery, newest first.
BY_DEAD_DELIVERIES = Statement(postgres.BY_DEAD_DELIVERIES, sqlite.BY_DEAD_DELIVERIES)
# Notifications that have an open delivery, newest first.
BY_OPEN_DELIVERIES = Statement(postgres.BY_OPEN_DELIVERIES, sqlite.BY_OPEN_DELIVERIES)


@dataclass(frozen=True)
class HistoryRow:
    """One member and one message: a notification with its deliveries, a suppression, or what was merged into a digest."""

    message_id: int
    member_id: str
    event_id: UUID
    type: str
    subject: str
    title: str
    body: str
    locale: str
    is_critical: bool
    # Those of the notification; of a suppression, those it would have had.
    channels: tuple[str, ...]
    notification_id: int | None
    status: Status
    created_at: datetime
    read_at: datetime | None
    # When the member archived or deleted it, if it is so now.
    archived_at: datetime | None = None
    deleted_at: datetime | None = None
    # The notification that it was merged into, and when it was taken out of that, because its event was cancelled.
    merged_into: int | None = None
    left_at: datetime | None = None
    deliveries: tuple[DeliveryRow, ...] = ()

    @property
    def cursor(self) -> PageCursor:
        return PageCursor(self.message_id, self.member_id)


class HistoryPage(NamedTuple):
    """Rows, newest first, and the cursor of the next page. A page with few rows, or none, need not be the last."""

    rows: list[HistoryRow]
    next: PageCursor | None


async def find_page(
    tx: Transaction, filters: Filters, after: PageCursor | None = None, limit: int = 50, *, scan_limit: int = SCAN_LIMIT
) -> HistoryPage:
    """The newest rows after the cursor that match, each with its deliveries, among at most `scan_limit` of them."""
    # One more than asked for, to know whether there is a next page.
    found, end = await _find_rows(tx, filters, after or PageCursor(), limit + 1, scan_limit)
    rows = [_history_row(tx.dialect, row) for row in found[:limit]]
    deliveries = await find_deliveries(tx, [row.notification_id for row in rows if row.notification_id])
    rows = [replace(row, deliveries=tuple(deliveries.get(row.notification_id or 0, ()))) for row in rows]
    return HistoryPage(rows, rows[-1].cursor if len(found) > limit else end)


class _Found(NamedTuple):
    """Rows that match, and the last row that was looked at if there are more after it."""

    rows: Sequence[Row]
    end: PageCursor | None = None


async def _find_rows(tx: Transaction, filters: Filters, after: PageCursor, limit: int, scan_limit: int) -> _Found:
    if filters.member_id is not None:
        return _Found(await tx.fetch(BY_MEMBER(*filters.parameters(limit), filters.member_id, after.message_id)))
    lowest, highest = await _find_bounds(tx, filters)
    after = min(after, PageCursor(highest))
    # A search for one of these among all messages could look at everything and find nothing.
    if filters.status in (Status.FAILED, Status.UNKNOWN):
        return await _find_by_dead(tx, filters, after, limit, lowest, min(scan_limit, FEW_DELIVERIES))
    if filters.status is Status.PENDING and await _are_few_open(tx):
        bounds = (lowest, after.message_id, after.message_id, after.member_id)
        return _Found(await tx.fetch(BY_OPEN_DELIVERIES(*filters.parameters(limit), *bounds, 0, "")))
    return await _find_by_messages(tx, filters, after, limit, lowest, scan_limit)


async def _find_by_dead(
    tx: Transaction, filters: Filters, after: PageCursor, limit: int, lowest: int, scan_limit: int
) -> _Found:
    bounds = (lowest, after.message_id, after.message_id, after.member_id)
    row = await fetch_one(tx, DEAD_FLOOR(scan_limit, *bounds))
    end = None if row is None else PageCursor(row["message_id"], row["member_id"])
    floor = end or PageCursor(0, "")
    found = BY_DEAD_DELIVERIES(*filters.parameters(limit), *bounds, floor.message_id, floor.member_id)
    return _Found(await tx.fetch(found), end)


async def _find_by_messages(
    tx: Transaction, filters: Filters, after: PageCursor, limit: int, lowest: int, scan_limit: int
) -> _Found:
    """Slab by slab until the page is full: first as many rows as are asked for, then four times as many. The statement
    searches for notifications and for suppressions: without a lower bound it would go on to the oldest message for those of
    the two that are rare."""
    rows: list[Row] = []
    slab, looked = min(limit, scan_limit), 0
    while True:
        end = await _find_floor(tx, filters, slab, lowest, after)
        floor = end or PageCursor(lowest, "")
        bounds = (floor.message_id, after.message_id, after.message_id, after.member_id, LAST_MEMBER)
        page = BY_MESSAGES(*filters.parameters(limit - len(rows)), *bounds, floor.message_id, floor.member_id)
        rows += await tx.fetch(page)
        looked += slab
        if end is None or len(rows) >= limit or looked >= scan_limit:
            return _Found(rows, end)
        after, slab = end, min(slab * 4, scan_limit - looked)


def _history_row(dialect: Dialect, row: Row) -> HistoryRow:
    return HistoryRow(
        message_id=row["message_id"],
        member_id=row["member_id"],
        event_id=as_uuid(row["event_id"]),
        type=row["type"],
        subject=row["subject"],
        title=row["title"],
        body=row["body"],
        locale=row["locale"],
        is_critical=bool(row["is_critical"]),
        channels=from_bits(row["channels"]),
        notification_id=row["notification_id"],
        status=Status(row["status"]),
        created_at=dialect.time(row["created_at"]),
        read_at=optional_time(dialect, row["read_at"]),
        archived_at=optional_time(dialect, row["archived_at"]),
        deleted_at=optional_time(dialect, row["deleted_at"]),
        merged_into=row["merged_into"],
        left_at=optional_time(dialect, row["left_at"]),
    )


# --- which index ------------------------------------------------------------------------------------------------------

# The number of open deliveries, as far as $1, by their partial index.
COUNT_OPEN = in_both(
    lambda d: (
        f"""
    SELECT count(*) AS count FROM (
        SELECT 1 FROM bongsu_deliveries {d.index_hint("bongsu_deliveries_due")} WHERE status IN {OPEN} LIMIT $1) AS open"""
    )
)


async def _are_few_open(tx: Transaction) -> bool:
    """If many, as after a large fan-out, they are found among the newest messages. If few, they may be anywhere."""
    (row,) = await tx.fetch(COUNT_OPEN(FEW_DELIVERIES))
    return int(row["count"]) < FEW_DELIVERIES


# --- which messages ---------------------------------------------------------------------------------------------------

# The message that $1 - 1 others come before, newest first, by the primary key: whether they match or not. Locks nothing.
# $2 lowest and $3 highest id.
MESSAGES_FLOOR = same("""
    SELECT message_id FROM bongsu_messages WHERE message_id BETWEEN $2 AND $3
    ORDER BY message_id DESC LIMIT 1 OFFSET CAST($1 AS bigint) - 1""")
# The dead delivery that $1 - 1 others come before, newest message first, by the partial index alone. Locks nothing. $2
# lowest and $3 highest message id, $4 message and $5 member of the last row seen.
DEAD_FLOOR = in_both(
    lambda d: (
        f"""
    SELECT message_id, member_id FROM bongsu_deliveries {d.index_hint("bongsu_deliveries_dead_by_message")}
    WHERE status IN {DEAD} AND message_id BETWEEN $2 AND $3 AND (message_id, member_id) < ($4, $5)
    ORDER BY message_id DESC, member_id DESC LIMIT 1 OFFSET CAST($1 AS bigint) - 1"""
    )
)
# The first and last message of an event, by the unique key that begins with it. $1 event. OFFSET 0 keeps PostgreSQL from
# going through all messages by the primary key until it meets the event.
BOUNDS_OF_EVENT = Statement(
    postgres="""
    SELECT min(message_id) AS lowest, max(message_id) AS highest FROM (
        SELECT message_id FROM bongsu_messages WHERE event_id = $1 OFFSET 0) AS of_event""",
    sqlite="SELECT min(message_id) AS lowest, max(message_id) AS highest FROM bongsu_messages WHERE event_id = $1",
)
# The first and last id. Two selects: for both in one, SQLite reads the whole table.
BOUNDS = same("""
    SELECT (SELECT min(message_id) FROM bongsu_messages) AS lowest,
           (SELECT max(message_id) FROM bongsu_messages) AS highest""")
# When the first message from that id on was created. $1 id.
CREATED_AT = same("SELECT created_at FROM bongsu_messages WHERE message_id >= $1 ORDER BY message_id LIMIT 1")


async def _find_floor(tx: Transaction, filters: Filters, slab: int, lowest: int, after: PageCursor) -> PageCursor | None:
    """Where looking at that many rows of messages that match ends, or at five times as many messages; None if fewer are
    left."""
    message = await fetch_one(tx, MESSAGES_FLOOR(slab * MESSAGES_PER_ROW, lowest, after.message_id))
    lowest = lowest if message is None else message["message_id"]
    bounds = (lowest, after.message_id, after.message_id, after.member_id, LAST_MEMBER)
    row = await fetch_one(tx, ROWS_FLOOR(*filters.parameters(slab)[:6], *bounds))
    if row is not None:
        return PageCursor(row["message_id"], row["member_id"])
    return None if message is None else PageCursor(lowest, "")


async def _find_bounds(tx: Transaction, filters: Filters) -> tuple[int, int]:
    """Between which ids matching messages can be. Those of one event are close together: one fan-out wrote them."""
    if filters.event_id is not None:
        (row,) = await tx.fetch(BOUNDS_OF_EVENT(filters.event_id))
        return row["lowest"] or 0, row["highest"] or 0
    return (
        0 if filters.since is None else await _find_first_after(tx, filters.since - _SLACK),
        LARGEST_ID if filters.until is None else await _find_first_after(tx, filters.until + _SLACK),
    )


async def _find_first_after(tx: Transaction, moment: datetime) -> int:
    """The id from which on messages are from that time or later: found by a binary search, as ids grow with time."""
    (ends,) = await tx.fetch(BOUNDS())
    if ends["lowest"] is None:
        return 0
    low, high = ends["lowest"], ends["highest"] + 1
    while low < high:
        middle = (low + high) // 2
        row = await fetch_one(tx, CREATED_AT(middle))
        if row is None or tx.dialect.time(row["created_at"]) >= moment:
            high = middle
        else:
            low = middle + 1
    return int(low)


# --- the member -------------------------------------------------------------------------------------------------------

# How many notifications counted towards the daily cap, and on which day. $1 member.
_DAILY_COUNT = same("SELECT capped_day, capped_count FROM bongsu_members WHERE member_id = $1")


async def find_daily_count(tx: Transaction, member_id: str) -> tuple[int, int]:
    """The member's day that was counted last, and how many notifications counted towards its cap."""
    row = await fetch_one(tx, _DAILY_COUNT(member_id))
    return (0, 0) if row is None else (row["capped_day"], row["capped_count"])
