"""The history: for each member and message whether it was sent or suppressed and why, with the deliveries, newest first.

A page is found by one of three indexes. Filtered by member, it reads that member's rows. Filtered by a status that only a
dead or open delivery gives, it reads the partial index of such deliveries, if they are few. Else it goes through the
messages from the newest on, and through the rows of each, by keys in this order: it stops when the page is full, and a
message that does not match costs one look, however many members it was for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from bongsu.channel_table import from_bits
from bongsu.store.delivery_history import DeliveryRow, find_deliveries
from bongsu.store.history import postgres, sqlite
from bongsu.store.history.filters import LARGEST_ID, LAST_MEMBER, MESSAGE_FITS, OPEN, Filters, Place, Status
from bongsu.store.query import Dialect, Row, Statement, Transaction, as_uuid, fetch_one, in_both, same

__all__ = ["LARGEST_ID", "Filters", "HistoryRow", "Place", "Status", "find_daily_count", "find_page"]

# Ids of messages are in the order of time, except for concurrent transactions and small corrections of the store's clock.
_SLACK = timedelta(minutes=10)
# Messages read together at first: a page's worth when each is for one member. Each further slab is larger.
SLAB = 200
# Open deliveries that are read one by one: work for a tenth of a second.
FEW = 10_000

# One member's rows, newest first.
BY_MEMBER = Statement(postgres.BY_MEMBER, sqlite.BY_MEMBER)
# The messages of a range of ids, newest first, and the rows of each.
BY_MESSAGES = Statement(postgres.BY_MESSAGES, sqlite.BY_MESSAGES)
# Notifications that have a dead delivery, newest first.
BY_DEAD_DELIVERIES = Statement(postgres.BY_DEAD_DELIVERIES, sqlite.BY_DEAD_DELIVERIES)
# Notifications that have an open delivery, newest first.
BY_OPEN_DELIVERIES = Statement(postgres.BY_OPEN_DELIVERIES, sqlite.BY_OPEN_DELIVERIES)


@dataclass(frozen=True)
class HistoryRow:
    """One member and one message: a notification with its deliveries, or a suppression."""

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
    deliveries: tuple[DeliveryRow, ...] = ()

    @property
    def place(self) -> Place:
        return Place(self.message_id, self.member_id)


async def find_page(tx: Transaction, filters: Filters, behind: Place | None = None, limit: int = 50) -> list[HistoryRow]:
    """The newest rows behind that place, each with its deliveries."""
    found = await _find_rows(tx, filters, behind or Place(), limit)
    rows = [_history_row(tx.dialect, row) for row in found]
    deliveries = await find_deliveries(tx, [row.notification_id for row in rows if row.notification_id])
    return [replace(row, deliveries=tuple(deliveries.get(row.notification_id or 0, ()))) for row in rows]


async def _find_rows(tx: Transaction, filters: Filters, behind: Place, limit: int) -> Sequence[Row]:
    if filters.member_id is not None:
        return await tx.fetch(BY_MEMBER(*filters.parameters(limit), filters.member_id, behind.message_id))
    lowest, highest = await _find_bounds(tx, filters)
    highest = min(highest, behind.message_id)
    # A search for one of these among all messages could read everything and find nothing.
    by_deliveries = None
    if filters.status in (Status.FAILED, Status.UNKNOWN):
        by_deliveries = BY_DEAD_DELIVERIES
    elif filters.status is Status.PENDING and await _are_few_open(tx):
        by_deliveries = BY_OPEN_DELIVERIES
    if by_deliveries is None:
        return await _find_by_messages(tx, filters, behind, limit, lowest, highest)
    place = (behind.message_id, behind.member_id)
    return await tx.fetch(by_deliveries(*filters.parameters(limit), lowest, highest, *place))


async def _find_by_messages(
    tx: Transaction, filters: Filters, behind: Place, limit: int, lowest: int, highest: int
) -> Sequence[Row]:
    """Slab by slab of messages until the page is full. The statement searches for notifications and for suppressions:
    without a lower bound it would go on to the oldest message for those of the two that are rare."""
    rows: list[Row] = []
    slab = SLAB
    place = (behind.message_id, behind.member_id, LAST_MEMBER)
    while len(rows) < limit:
        floor = await _find_floor(tx, filters, slab, lowest, highest)
        if floor is None:
            break
        rows += await tx.fetch(BY_MESSAGES(*filters.parameters(limit - len(rows)), floor, highest, *place))
        highest, slab = floor - 1, slab * 4
    return rows


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
        read_at=None if row["read_at"] is None else dialect.time(row["read_at"]),
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
    (row,) = await tx.fetch(COUNT_OPEN(FEW))
    return int(row["count"]) < FEW


# --- which messages ---------------------------------------------------------------------------------------------------

# The lowest id of the newest $1 messages that match, by the primary key. $2 to $5 as in filters.py, $6 lowest and $7
# highest id.
FLOOR = same(f"""
    SELECT min(message_id) AS floor FROM (
        SELECT m.message_id FROM bongsu_messages m
        WHERE m.message_id BETWEEN $6 AND $7
          AND {MESSAGE_FITS}
        ORDER BY m.message_id DESC LIMIT $1) AS slab""")
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


async def _find_floor(tx: Transaction, filters: Filters, slab: int, lowest: int, highest: int) -> int | None:
    """How far down that many matching messages reach; None if no message is left."""
    (row,) = await tx.fetch(FLOOR(slab, *filters.of_message, lowest, highest))
    floor: int | None = row["floor"]
    return floor


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
