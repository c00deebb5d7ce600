"""Statements about what open streams are told: what a member missed, what is new, and whom a message went to.

A member's ids are in the order of commits (see store/inbox.py), so "after this id" never skips a row that commits late.
Only notifications that go by IN_APP are told; the inbox lists the others too, so they count as unread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Channel
from bongsu.store.databases import dialect_named
from bongsu.store.decisions import BITS
from bongsu.store.dialect import Binder, Dialect, as_text

_TOLD = f"channels & {BITS[Channel.IN_APP]} <> 0"


@dataclass(frozen=True)
class Words:
    """What a message says, to everybody who reads it."""

    message_id: int
    type: str
    title: str
    body: str
    ref_id: str | None
    # JSON, as the fan-out wrote it.
    data: str
    is_critical: bool


class News(NamedTuple):
    """One notification that an open stream is to be told of."""

    member_id: str
    notification_id: int
    message_id: int
    created_at: datetime


@dataclass(frozen=True)
class Fresh:
    """Notifications beyond their readers' cursors that are alike but for the reader: there may be thousands."""

    # When that was so.
    as_of: datetime
    message_id: int
    created_at: datetime
    # Whether the readers want anything at all; None when they are nobody.
    is_enabled: bool | None
    # For each notification its id, its reader's place among those who were asked for, and how many that one has not read.
    notification_ids: Sequence[int]
    places: Sequence[int]
    unread: Sequence[int | None]


class Standing(NamedTuple):
    """How a member's inbox stands, and when it stood so: of two counts the later one holds."""

    unread: int
    is_enabled: bool
    newest: int
    as_of: datetime


@dataclass(frozen=True)
class Told:
    """One recipient of a message, as its announcement needs it."""

    news: News
    is_live: bool
    # The one that a stream must have told before this one, or else look for what it missed.
    previous: int
    unread: int
    as_of: datetime


# --- one member comes -------------------------------------------------------------------------------------------------

_NEWEST = """
    SELECT coalesce(max(notification_id), 0) FROM bongsu_notifications {index} WHERE member_id = m.member_id"""


async def find_standing(connection: AsyncConnection, member_id: str) -> Standing | None:
    """None when nobody has ever spoken of the member."""
    dialect = dialect_named(connection.dialect.name)
    newest = _NEWEST.format(index=dialect.by_index("bongsu_notifications_inbox"))
    found = await connection.execute(
        as_text(f"""
            SELECT m.unread, m.is_enabled, ({newest}), {dialect.now}
            FROM bongsu_members m WHERE m.member_id = :member_id"""),
        {"member_id": member_id},
    )
    row = found.one_or_none()
    return None if row is None else Standing(row[0], bool(row[1]), row[2], dialect.moment(row[3]))


async def find_missed(
    connection: AsyncConnection, member_id: str, after: int, last: int, limit: int, only_unread: bool
) -> list[News]:
    """The newest of those between the two ids, the first excluded and the last included; oldest first."""
    dialect = dialect_named(connection.dialect.name)
    found = await connection.execute(
        as_text(missed_statement(dialect, only_unread)),
        {"member_id": member_id, "after_id": after, "last_id": last, "limit": limit},
    )
    return [News(member_id, row[0], row[1], dialect.moment(row[2])) for row in found.all()][::-1]


def missed_statement(dialect: Dialect, only_unread: bool) -> str:
    index = dialect.by_index("bongsu_notifications_unread" if only_unread else "bongsu_notifications_inbox")
    return f"""
        SELECT notification_id, message_id, created_at FROM bongsu_notifications {index}
        WHERE member_id = :member_id AND notification_id > :after_id AND notification_id <= :last_id AND {_TOLD}
            {"AND read_at IS NULL" if only_unread else ""}
        ORDER BY notification_id DESC LIMIT :limit"""


# --- many are here ----------------------------------------------------------------------------------------------------


async def find_news(connection: AsyncConnection, cursors: Mapping[str, int], limit: int) -> list[Fresh]:
    """What these members have beyond their cursors, in no order; of more than so many, the oldest."""
    dialect = dialect_named(connection.dialect.name)
    binder = Binder(dialect)
    given = dialect.pairs(binder.value(dialect.written(cursors)), "member_id", "cursor", "bigint")
    newer = dialect.newer("given", ("member_id", "notification_id", "message_id", "channels", "created_at"))
    inboxes = dialect.look_up("bongsu_members", "m", "n", ["member_id"], ["unread", "is_enabled"])
    # SQLite looks at the clock when it comes to that; above the groups it would be when all counts have long been read.
    moment = f"(SELECT {dialect.now} AS as_of) AS moment"
    # As few rows as there are different ones: a row takes a driver longer than to tell of it takes us.
    alike = "as_of, message_id, created_at, is_enabled"
    lists = ", ".join(dialect.listed(column) for column in ("notification_id", "place", "unread"))
    statement = f"""
        SELECT {alike}, {lists} FROM (
            SELECT moment.as_of, given.place, n.notification_id, n.message_id, n.created_at, m.unread, m.is_enabled
            FROM {moment} CROSS JOIN {given} {newer} {inboxes}
            WHERE n.{_TOLD} ORDER BY n.notification_id LIMIT {binder.value(limit)}) AS news
        GROUP BY {alike}"""
    rows = await dialect.rows(connection, statement, tuple(binder.parameters))
    return [
        Fresh(dialect.moment(now), message_id, dialect.moment(at), is_enabled, *map(orjson.loads, each))
        for now, message_id, at, is_enabled, *each in rows
    ]


async def find_now(connection: AsyncConnection) -> datetime:
    """For counts read right after it: a time in each of thousands of rows takes longer to read than all the rest of it."""
    dialect = dialect_named(connection.dialect.name)
    [[now]] = await dialect.rows(connection, f"SELECT {dialect.now}", ())
    return dialect.moment(now)


async def find_counts(connection: AsyncConnection, member_ids: Sequence[str]) -> dict[str, int]:
    """How many these members have not read."""
    dialect = dialect_named(connection.dialect.name)
    binder = Binder(dialect)
    given = binder.table({"member_id": "text"}, [(one,) for one in member_ids])
    look_up = dialect.look_up("bongsu_members", "m", "given", ["member_id"], ["unread"])
    rows = await dialect.rows(
        connection, f"SELECT given.member_id, m.unread FROM {given} {look_up}", tuple(binder.parameters)
    )
    return {row[0]: row[1] for row in rows if row[1] is not None}


async def find_words(connection: AsyncConnection, message_ids: Sequence[int]) -> dict[int, Words]:
    dialect = dialect_named(connection.dialect.name)
    binder = Binder(dialect)
    given = binder.table({"message_id": "bigint"}, [(one,) for one in message_ids])
    columns = ["type", "title", "body", "ref_id", "data", "is_critical"]
    look_up = dialect.look_up("bongsu_messages", "w", "given", ["message_id"], columns)
    named = ", ".join(f"w.{column}" for column in columns)
    rows = await dialect.rows(
        connection, f"SELECT given.message_id, {named} FROM {given} {look_up}", tuple(binder.parameters)
    )
    return {
        message_id: Words(message_id, kind, title, body, ref_id, data, bool(is_critical))
        for message_id, kind, title, body, ref_id, data, is_critical in rows
        if kind is not None
    }


# --- a message went out -----------------------------------------------------------------------------------------------


async def count_told(connection: AsyncConnection, message_ids: Sequence[int], limit: int) -> dict[int, int]:
    """How many members each message went to; beyond the limit it does not matter how many more."""
    binder = Binder(dialect_named(connection.dialect.name))
    given = binder.table({"message_id": "bigint"}, [(one,) for one in message_ids])
    statement = f"""
        SELECT given.message_id, (SELECT count(*) FROM (
            SELECT 1 FROM bongsu_notifications n WHERE n.message_id = given.message_id LIMIT {limit}) AS few)
        FROM {given}"""
    rows = await binder.dialect.rows(connection, statement, tuple(binder.parameters))
    return {row[0]: row[1] for row in rows}


async def find_told(connection: AsyncConnection, message_ids: Sequence[int]) -> list[Told]:
    """Everybody these messages went to, and what each had been told before: so a gap can be seen by who has it."""
    dialect = dialect_named(connection.dialect.name)
    binder = Binder(dialect)
    given = binder.table({"message_id": "bigint"}, [(one,) for one in message_ids])
    columns = ["member_id", "notification_id", "message_id", "created_at", "channels"]
    readers = dialect.look_up("bongsu_notifications", "n", "given", ["message_id"], columns)
    inboxes = dialect.look_up("bongsu_members", "m", "n", ["member_id"], ["unread"])
    statement = f"""
        SELECT n.member_id, n.notification_id, n.message_id, n.created_at, n.{_TOLD}, m.unread, {dialect.now}, coalesce((
            SELECT p.notification_id FROM bongsu_notifications p {dialect.by_index("bongsu_notifications_inbox")}
            WHERE p.member_id = n.member_id AND p.notification_id < n.notification_id AND p.{_TOLD}
            ORDER BY p.notification_id DESC LIMIT 1), 0)
        FROM {given} {readers} {inboxes}
        WHERE m.unread IS NOT NULL ORDER BY n.notification_id"""
    return [_told(dialect, row) for row in await dialect.rows(connection, statement, tuple(binder.parameters))]


def _told(dialect: Dialect, row: Sequence[Any]) -> Told:
    member_id, notification_id, message_id, created_at, is_live, unread, as_of, previous = row
    news = News(member_id, notification_id, message_id, dialect.moment(created_at))
    return Told(news, bool(is_live), previous, unread, dialect.moment(as_of))
