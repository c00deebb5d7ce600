"""Statements of the history: what each member was told or not told, why, and by which ways, newest first.

A page is found in one of three ways. Asked about a member, it reads that member's rows. Asked for what failed, is unknown or
waits, it reads the index of such deliveries if they are few. Else it goes through the messages from the newest on, and
through the members of each, by keys that both have in this order; so it stops when the page is full, and messages of other
types, events and times cost one look each, however many members they were for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Channel, Reason
from bongsu.store.databases import dialect_named
from bongsu.store.decisions import BITS
from bongsu.store.dialect import Dialect, as_text
from bongsu.store.events import as_uuid
from bongsu.store.postgres import POSTGRES
from bongsu.store.ways import DeliveryRow, find_deliveries

# Where a page begins that begins with the newest. No id is larger: the text is the last character there is, more often than
# an id is long.
LARGEST_ID = 2**63 - 1
_LAST_MEMBER = "\U0010ffff" * 256
# Ids of messages are drawn in the order of time, but for transactions under way together and clocks that differ a little.
_SLACK = timedelta(minutes=10)
# Messages looked at together at first: a page's worth when each is for one member, and then always more.
SLAB = 200
# Deliveries under way that are looked through one by one: a tenth of a second's work.
FEW = 10_000


class Status(StrEnum):
    """What became of one notification, or why there is none."""

    SENT = "SENT"
    FAILED = "FAILED"
    PENDING = "PENDING"
    UNKNOWN = "UNKNOWN"
    RATE_LIMITED = "RATE_LIMITED"
    DUPLICATE = "DUPLICATE"
    USER_OPTED_OUT = "USER_OPTED_OUT"
    NO_ADDRESS = "NO_ADDRESS"


@dataclass(frozen=True)
class Filters:
    """What the rows asked for have in common. The times are those of the message, as the order is."""

    member_id: str | None = None
    type: str | None = None
    event_id: UUID | None = None
    status: Status | None = None
    channel: Channel | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True)
class Place:
    """The last row of a page; the next page begins behind it."""

    message_id: int = LARGEST_ID
    member_id: str = _LAST_MEMBER


@dataclass(frozen=True)
class HistoryRow:
    """One member and one message: told, with its deliveries, or not told."""

    message_id: int
    member_id: str
    event_id: UUID
    type: str
    subject: str
    title: str
    body: str
    locale: str
    is_critical: bool
    # Told: by which channels. Not told: by which it would have been.
    channels: tuple[Channel, ...]
    notification_id: int | None
    status: Status
    created_at: datetime
    read_at: datetime | None
    deliveries: tuple[DeliveryRow, ...] = ()

    @property
    def place(self) -> Place:
        return Place(self.message_id, self.member_id)


async def find_page(
    connection: AsyncConnection, filters: Filters, behind: Place | None = None, limit: int = 50
) -> list[HistoryRow]:
    """The newest rows behind that place, each with its deliveries."""
    dialect = dialect_named(connection.dialect.name)
    asked = _parameters(dialect, filters, behind or Place(), limit)
    find = await _way(connection, dialect, filters)
    rows = [_history_row(dialect, row) for row in await find(connection, dialect, filters, asked)]
    deliveries = await find_deliveries(connection, [row.notification_id for row in rows if row.notification_id])
    return [replace(row, deliveries=tuple(deliveries.get(row.notification_id or 0, ()))) for row in rows]


_Find = Callable[[AsyncConnection, Dialect, Filters, dict[str, Any]], Awaitable[Sequence[Sequence[Any]]]]


async def _way(connection: AsyncConnection, dialect: Dialect, filters: Filters) -> _Find:
    if filters.member_id is not None:
        return _find_by_member if filters.event_id is None else _find_by_messages
    # To look for one of these among all that was ever sent could take for ever in vain.
    match filters.status:
        case Status.FAILED | Status.UNKNOWN:
            return _find_by_deliveries
        case Status.PENDING if await _are_few_open(connection, dialect):
            return _find_by_deliveries
    return _find_by_messages


async def _are_few_open(connection: AsyncConnection, dialect: Dialect) -> bool:
    """Many, as after a large fan-out, are found among the newest messages. Few may be anywhere."""
    states, index = _SOURCES[Status.PENDING]
    found = await connection.execute(
        as_text(f"""
            SELECT count(*) FROM (SELECT 1 FROM bongsu_deliveries d {dialect.by_index(index)}
                                  WHERE d.status IN {states} LIMIT :few) AS open"""),
        {"few": FEW},
    )
    return int(found.scalar_one()) < FEW


async def _find_by_deliveries(
    connection: AsyncConnection, dialect: Dialect, filters: Filters, asked: dict[str, Any]
) -> Sequence[Sequence[Any]]:
    lowest, highest = await _bounds(connection, dialect, filters, asked)
    within = {"lowest": lowest, "highest": min(highest, asked["message_id"])}
    statement = page_statement([_of_deliveries(dialect, filters)])
    return (await connection.execute(as_text(statement), {**asked, **within})).all()


async def _find_by_member(
    connection: AsyncConnection, _dialect: Dialect, filters: Filters, asked: dict[str, Any]
) -> Sequence[Sequence[Any]]:
    statement = page_statement([_of_the_member(filters, table) for table in _tables(filters)])
    return (await connection.execute(as_text(statement), asked)).all()


async def _find_by_messages(
    connection: AsyncConnection, dialect: Dialect, filters: Filters, asked: dict[str, Any]
) -> Sequence[Sequence[Any]]:
    """A slab of messages after the other until the page is full: each statement looks for both who was told and who was not,
    and without a floor it would go on to the oldest message for the kind that is rare."""
    statement = as_text(page_statement([_through_messages(dialect, filters, table) for table in _tables(filters)]))
    lowest, highest = await _bounds(connection, dialect, filters, asked)
    highest = min(highest, asked["message_id"])
    rows: list[Sequence[Any]] = []
    slab = SLAB
    while len(rows) < asked["limit"]:
        within = {"lowest": lowest, "highest": highest}
        floor = await _floor(connection, filters, {**asked, **within, "slab": slab})
        if floor is None:
            break
        rest = {"lowest": floor, "highest": highest, "limit": asked["limit"] - len(rows)}
        rows += (await connection.execute(statement, {**asked, **rest})).all()
        highest, slab = floor - 1, slab * 4
    return rows


# --- the page ---------------------------------------------------------------------------------------------------------

# An operator must not take for settled what may still change, nor for done what nobody knows. So what is under way comes
# first, then what is unknown. After that one way that reached the member is enough; and a way that failed counts as failed
# even though the inbox has it, because that is what the operator looks for. The inbox alone cannot fail.
_RANK = "CASE d.status WHEN 'FAIL' THEN 1 WHEN 'SUCCESS' THEN 2 WHEN 'UNKNOWN' THEN 3 ELSE 4 END"
_OUTCOME = f"""CASE (SELECT max({_RANK}) FROM bongsu_deliveries d WHERE d.notification_id = {{row}}.notification_id)
    WHEN 4 THEN 'PENDING' WHEN 3 THEN 'UNKNOWN' WHEN 1 THEN 'FAILED' ELSE 'SENT' END"""

# The two tables a page is made of, and what it takes from each.
_COLUMNS = {
    "bongsu_notifications": """
        t.message_id, t.member_id, t.notification_id, t.channels, t.created_at, t.read_at, CAST(NULL AS text) AS reason""",
    "bongsu_suppressions": """
        t.message_id, t.member_id, CAST(NULL AS bigint) AS notification_id, m.channels, t.created_at,
        CAST(NULL AS timestamptz) AS read_at, t.reason""",
}
_WORDS = "m.event_id, m.type, m.subject, m.title, m.body, m.locale, m.is_critical"


def page_statement(shares: Sequence[str]) -> str:
    # The status is worked out for the rows of the page and for no others.
    return f"""
        WITH page AS MATERIALIZED (
            {" UNION ALL ".join(f"SELECT * FROM ({share}) AS share" for share in shares)}
            ORDER BY message_id DESC, member_id DESC LIMIT :limit)
        SELECT page.message_id, page.member_id, {_WORDS}, page.channels, page.notification_id,
               coalesce(page.reason, {_OUTCOME.format(row="page")}), page.created_at, page.read_at
        FROM page JOIN bongsu_messages m ON m.message_id = page.message_id
        ORDER BY page.message_id DESC, page.member_id DESC"""


def _tables(filters: Filters) -> Sequence[str]:
    """Where rows of that status can be. In the other table, all would be looked at in vain."""
    told, not_told = _COLUMNS
    if filters.status is None:
        return told, not_told
    return (not_told,) if filters.status.value in set(Reason) else (told,)


def _parameters(dialect: Dialect, filters: Filters, behind: Place, limit: int) -> dict[str, Any]:
    return {
        "message_id": behind.message_id,
        "member": behind.member_id,
        "last_member": _LAST_MEMBER,
        "limit": limit,
        "user": filters.member_id,
        "type": filters.type,
        "event_id": filters.event_id and dialect.plain({"event_id": "uuid"}, [(filters.event_id,)])[0][0],
        "status": filters.status and filters.status.value,
        "channel": filters.channel and filters.channel.value,
        "since": filters.since and dialect.stored(filters.since),
        "until": filters.until and dialect.stored(filters.until),
    }


def _through_messages(dialect: Dialect, filters: Filters, table: str) -> str:
    """The page's share of one of the two tables, message by message."""
    of_rows = [
        # A sum, which keeps SQLite from carrying the bounds of messages over to the rows and taking them for the better key.
        "t.message_id = +m.message_id",
        # Behind the place: in its own message the members after it, in older ones all. As one bound, so that the index
        # begins there and nothing is read to be passed over.
        "t.member_id < CASE WHEN m.message_id = :message_id THEN :member ELSE :last_member END",
        *_conditions(filters, table),
    ]
    if filters.member_id is not None:
        of_rows.append("t.member_id = :user")
    where = " AND ".join(("m.message_id BETWEEN :lowest AND :highest", *_conditions_of_messages(filters)))
    return f"""
        SELECT {_COLUMNS[table]} FROM {_each(dialect, table, " AND ".join(of_rows))}
        WHERE {where} ORDER BY m.message_id DESC, t.member_id DESC LIMIT :limit"""


def _each(dialect: Dialect, table: str, condition: str) -> str:
    """Messages in the order of their ids, and for each the rows of the table in the order of theirs.

    SQLite has both in this order when it is made to read both by these keys. PostgreSQL sorts, and is told here that it need
    never sort more of a message than fits on the page.
    """
    if dialect is POSTGRES:
        return f"""bongsu_messages m CROSS JOIN LATERAL (
            SELECT * FROM {table} t WHERE {condition} ORDER BY t.message_id DESC, t.member_id DESC LIMIT :limit) AS t"""
    return f"bongsu_messages m NOT INDEXED CROSS JOIN {table} t INDEXED BY sqlite_autoindex_{table}_1 ON {condition}"


# Deliveries of which a notification of that status has one, and the index that holds no others.
_DEAD = "('FAIL', 'UNKNOWN')", "bongsu_deliveries_dead_by_message"
_OPEN = "('READY', 'SENDING')", "bongsu_deliveries_due"
_SOURCES = {Status.FAILED: _DEAD, Status.UNKNOWN: _DEAD, Status.PENDING: _OPEN}


def _of_deliveries(dialect: Dialect, filters: Filters) -> str:
    """The notifications that such deliveries are of, each once."""
    assert filters.status is not None
    states, index = _SOURCES[filters.status]
    table = "bongsu_notifications"
    conditions = [
        f"one.status IN {states}",
        "one.message_id BETWEEN :lowest AND :highest",
        "(one.message_id, one.member_id) < (:message_id, :member)",
        f"""(SELECT 1 FROM bongsu_deliveries d WHERE d.notification_id = one.notification_id
              AND d.status IN {states} AND d.delivery_id < one.delivery_id LIMIT 1) IS NULL""",
        *_conditions_of_messages(filters),
        *_conditions(filters, table),
    ]
    return f"""
        SELECT {_COLUMNS[table]} FROM bongsu_deliveries one {dialect.by_index(index)}
        {dialect.join_each("bongsu_messages", "m", "one", ["message_id"])}
        {dialect.join_each(table, "t", "one", ["message_id", "member_id"])}
        WHERE {" AND ".join(conditions)} ORDER BY one.message_id DESC, one.member_id DESC LIMIT :limit"""


def _of_the_member(filters: Filters, table: str) -> str:
    """One member's rows that fit: as many as the store keeps for one. Taken by the member's own index before anything else,
    because a planner in want of an order might rather read another index from end to end."""
    conditions = ["t.message_id < :message_id", *_conditions_of_messages(filters), *_conditions(filters, table)]
    return f"""
        WITH theirs AS MATERIALIZED (SELECT * FROM {table} WHERE member_id = :user)
        SELECT {_COLUMNS[table]} FROM theirs t JOIN bongsu_messages m ON m.message_id = t.message_id
        WHERE {" AND ".join(conditions)} ORDER BY t.message_id DESC LIMIT :limit"""


def _conditions_of_messages(filters: Filters) -> list[str]:
    given = {
        "m.event_id = :event_id": filters.event_id,
        "m.type = :type": filters.type,
        "m.created_at >= :since": filters.since,
        "m.created_at < :until": filters.until,
    }
    return [condition for condition, value in given.items() if value is not None]


def _conditions(filters: Filters, table: str) -> list[str]:
    conditions = []
    is_told = table == "bongsu_notifications"
    if filters.status is not None:
        conditions.append(f"({_OUTCOME.format(row='t')}) = :status" if is_told else "t.reason = :status")
    if filters.channel is not None:
        bit = f"& {BITS[filters.channel]} <> 0"
        if not is_told:
            conditions.append(f"m.channels {bit}")
        elif filters.channel is Channel.IN_APP:
            conditions.append(f"t.channels {bit}")
        else:
            # Whether it goes out by a channel is what the deliveries say: a member may have no device.
            theirs = "SELECT 1 FROM bongsu_deliveries d WHERE d.notification_id = t.notification_id"
            conditions.append(f"EXISTS ({theirs} AND d.channel = :channel)")
    return conditions


def _history_row(dialect: Dialect, row: Sequence[Any]) -> HistoryRow:
    message_id, member_id, event_id, type_name, subject, title, body, locale, is_critical = row[:9]
    channels, notification_id, status, created_at, read_at = row[9:]
    return HistoryRow(
        message_id,
        member_id,
        as_uuid(event_id),
        type_name,
        subject,
        title,
        body,
        locale,
        bool(is_critical),
        tuple(channel for channel, bit in BITS.items() if channels & bit),
        notification_id,
        Status(status),
        dialect.moment(created_at),
        None if read_at is None else dialect.moment(read_at),
    )


# --- which messages ---------------------------------------------------------------------------------------------------


async def _floor(connection: AsyncConnection, filters: Filters, asked: Mapping[str, Any]) -> int | None:
    """How far down so many messages that fit reach; None when there is none left."""
    where = " AND ".join(("m.message_id BETWEEN :lowest AND :highest", *_conditions_of_messages(filters)))
    found = await connection.execute(
        as_text(f"""
            SELECT min(message_id) FROM (
                SELECT m.message_id FROM bongsu_messages m WHERE {where} ORDER BY m.message_id DESC LIMIT :slab) AS slab"""),
        asked,
    )
    floor: int | None = found.scalar_one()
    return floor


async def _bounds(
    connection: AsyncConnection, dialect: Dialect, filters: Filters, asked: Mapping[str, Any]
) -> tuple[int, int]:
    """Between which ids the messages lie that can fit. Those of one event are close together: one fan-out wrote them."""
    if filters.event_id is not None:
        found = await connection.execute(
            as_text("SELECT min(message_id), max(message_id) FROM bongsu_messages WHERE event_id = :event_id"), asked
        )
        lowest, highest = found.one()
        return lowest or 0, highest or 0
    return (
        0 if filters.since is None else await _first_after(connection, dialect, filters.since - _SLACK),
        LARGEST_ID if filters.until is None else await _first_after(connection, dialect, filters.until + _SLACK),
    )


async def _first_after(connection: AsyncConnection, dialect: Dialect, moment: datetime) -> int:
    """The id at which messages are as late as that, but for a few. Found by halving, because ids and times grow together."""
    # Two selects: asked for both in one, SQLite reads the whole table.
    ends = await connection.execute(
        as_text("SELECT (SELECT min(message_id) FROM bongsu_messages), (SELECT max(message_id) FROM bongsu_messages)")
    )
    low, high = ends.one()
    if low is None:
        return 0
    high += 1
    look = as_text("SELECT created_at FROM bongsu_messages WHERE message_id >= :message_id ORDER BY message_id LIMIT 1")
    while low < high:
        middle = (low + high) // 2
        created_at = (await connection.execute(look, {"message_id": middle})).scalar_one_or_none()
        if created_at is None or dialect.moment(created_at) >= moment:
            high = middle
        else:
            low = middle + 1
    return int(low)


# --- the member -------------------------------------------------------------------------------------------------------


async def find_counted(connection: AsyncConnection, member_id: str) -> tuple[int, int]:
    """How many notifications were counted towards the daily limit, and on which of the member's days."""
    found = await connection.execute(
        as_text("SELECT capped_day, capped_count FROM bongsu_members WHERE member_id = :member_id"),
        {"member_id": member_id},
    )
    row = found.one_or_none()
    return (0, 0) if row is None else (row[0], row[1])
