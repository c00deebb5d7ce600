"""Statements for open streams: what a member missed, what is new for many, and the recipients of a message.

A member's notification ids and change ids are in commit order (see store/inbox/changes.py), so "above this cursor" never
skips a row that commits later. Only notifications with the IN_APP channel are in the inbox, count as unread and are sent to
streams.

Every unread count comes with `as_of`, a time at or before the snapshot it was read in: of two counts the one with the later
`as_of` is the newer, and none is taken for newer than it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import orjson

from bongsu.model import Channel
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import MEMBER_ID, MESSAGE_ID, Statement, Table, Transaction, fetch_one, in_both
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.inbox.changes import MARK_COLUMNS, Marks, marks_of
from bongsu.store.members.channel_bits import BITS

_IN_APP = BITS[Channel.IN_APP]


class NewNotification(NamedTuple):
    """One notification that is to be sent to its member's open streams."""

    member_id: str
    notification_id: int
    message_id: int
    created_at: datetime


@dataclass(frozen=True)
class NotificationGroup:
    """New notifications of many members that differ in nothing but the member: a broadcast is one group of thousands."""

    as_of: datetime
    message_id: int
    created_at: datetime
    # Whether these members want notifications at all; None for members without a row.
    is_enabled: bool | None
    # Of each notification its id, its member's position among those asked for, and that member's unread count.
    notification_ids: Sequence[int]
    positions: Sequence[int]
    unread: Sequence[int | None]
    # By position, the newest change id of the members for whom that is above their cursor.
    changed: Mapping[int, int]


class MemberCount(NamedTuple):
    """A member's unread count, and the newest change id (0: nothing was ever changed)."""

    unread: int
    changed: int


class InboxState(NamedTuple):
    """A member's unread count, whether they want notifications, and up to where their cursor can be now (0: nothing yet)."""

    unread: int
    is_enabled: bool
    newest: int
    marks: Marks
    as_of: datetime


@dataclass(frozen=True)
class Recipient:
    """One recipient of a message, with what the announcement of it carries."""

    notification: NewNotification
    # The member's cursor before this one: the notification before it, or a change that was committed since. A stream that is
    # not there yet reads the store. If the change came after this notification, every stream that has not sent it does.
    previous: int
    unread: int
    as_of: datetime


# --- a member opens a stream ------------------------------------------------------------------------------------------

# The unread count, the newest notification id, the newest change id and the marks of one snapshot, and a time not after it.
_FIND_INBOX_STATE = in_both(
    lambda d: (
        f"""
    SELECT m.unread, m.is_enabled, coalesce(m.changed_id, 0) AS changed, {MARK_COLUMNS}, {d.now} AS as_of, (
        SELECT coalesce(max(n.notification_id), 0)
        FROM bongsu_notifications n {d.index_hint("bongsu_notifications_inbox")}
        WHERE n.member_id = m.member_id) AS newest
    FROM bongsu_members m WHERE m.member_id = $1"""
    )
)

# The newest $4 with ids above $2, up to $3.
_FIND_MISSED = in_both(
    lambda d: (
        f"""
    SELECT notification_id, message_id, created_at
    FROM bongsu_notifications {d.index_hint("bongsu_notifications_inbox")}
    WHERE member_id = $1 AND notification_id > $2 AND notification_id <= $3 AND channels & {_IN_APP} <> 0
    ORDER BY notification_id DESC LIMIT $4"""
    )
)

# The same for the unread only, by the index that has nothing else.
_FIND_MISSED_UNREAD = in_both(
    lambda d: (
        f"""
    SELECT notification_id, message_id, created_at
    FROM bongsu_notifications {d.index_hint("bongsu_notifications_unread")}
    WHERE member_id = $1 AND notification_id > $2 AND notification_id <= $3 AND channels & {_IN_APP} <> 0
        AND read_at IS NULL
    ORDER BY notification_id DESC LIMIT $4"""
    )
)


async def find_inbox_state(tx: Transaction, member_id: str) -> InboxState | None:
    """None for an unknown member."""
    row = await fetch_one(tx, _FIND_INBOX_STATE(member_id))
    if row is None:
        return None
    newest = max(row["newest"], row["changed"])
    return InboxState(row["unread"], bool(row["is_enabled"]), newest, marks_of(row), tx.dialect.time(row["as_of"]))


async def find_missed(
    tx: Transaction, member_id: str, after: int, last: int, limit: int, only_unread: bool
) -> list[NewNotification]:
    """Of the notifications with ids above `after`, up to `last`, the newest `limit`; oldest first."""
    statement = _FIND_MISSED_UNREAD if only_unread else _FIND_MISSED
    rows = await tx.fetch(statement(member_id, after, last, limit))
    time = tx.dialect.time
    return [NewNotification(member_id, row["notification_id"], row["message_id"], time(row["created_at"])) for row in rows][
        ::-1
    ]


# --- many members have streams open -----------------------------------------------------------------------------------

_CURSOR = {"member_id": "text", "cursor": "bigint", "position": "integer"}

# The oldest $2 notifications above the members' cursors, grouped: to decode a row costs more than to send it, and a
# broadcast has thousands that are alike. LATERAL: by the index for each member; a join would read the whole table. The
# newest change id is on the member's row, which is read anyway, and is of the same snapshot as the notifications.
_FIND_NEW = Statement(
    postgres=f"""
        SELECT as_of, message_id, created_at, is_enabled,
               CAST(json_agg(notification_id) AS text) AS notification_ids,
               CAST(json_agg(position) AS text) AS positions,
               CAST(json_agg(unread) AS text) AS unread,
               CAST(json_object_agg(position, changed_id) FILTER (WHERE changed_id > cursor) AS text) AS changed
        FROM (
            SELECT now() AS as_of, given.position, given.cursor,
                   n.notification_id, n.message_id, n.created_at, m.unread, m.is_enabled, m.changed_id
            FROM {POSTGRES.table("given", _CURSOR, 1)}
            CROSS JOIN LATERAL (
                SELECT x.notification_id, x.message_id, x.created_at FROM bongsu_notifications x
                WHERE x.member_id = given.member_id AND x.notification_id > given.cursor AND x.channels & {_IN_APP} <> 0
                ORDER BY x.notification_id LIMIT 10000) AS n
            LEFT JOIN LATERAL (
                SELECT x.unread, x.is_enabled, x.changed_id FROM bongsu_members x
                WHERE x.member_id = given.member_id OFFSET 0) AS m ON true
            ORDER BY n.notification_id LIMIT $2) AS oldest
        GROUP BY as_of, message_id, created_at, is_enabled""",
    # The time is read in the outermost loop, before the first count; in the select list it would be read after the last.
    sqlite=f"""
        SELECT as_of, message_id, created_at, is_enabled,
               json_group_array(notification_id) AS notification_ids,
               json_group_array(position) AS positions,
               json_group_array(unread) AS unread,
               json_group_object(position, changed_id) FILTER (WHERE changed_id > cursor) AS changed
        FROM (
            SELECT moment.as_of, given.position, given.cursor,
                   n.notification_id, n.message_id, n.created_at, m.unread, m.is_enabled, m.changed_id
            FROM (SELECT {SQLITE.now} AS as_of) AS moment
            CROSS JOIN {SQLITE.table("given", _CURSOR, 1)}
            CROSS JOIN bongsu_notifications AS n INDEXED BY bongsu_notifications_inbox
                ON n.member_id = given.member_id AND n.notification_id > given.cursor AND n.channels & {_IN_APP} <> 0
            LEFT JOIN bongsu_members AS m ON m.member_id = given.member_id
            ORDER BY n.notification_id LIMIT $2) AS oldest
        GROUP BY as_of, message_id, created_at, is_enabled""",
)

# The unread counts and newest change ids of these members, each found by its key; unknown members are left out.
_FIND_COUNTS = Statement(
    postgres=f"""
        SELECT given.member_id, m.unread, coalesce(m.changed_id, 0) AS changed
        FROM {POSTGRES.table("given", MEMBER_ID, 1)}
        CROSS JOIN LATERAL (
            SELECT x.unread, x.changed_id FROM bongsu_members x WHERE x.member_id = given.member_id OFFSET 0) AS m""",
    sqlite=f"""
        SELECT given.member_id, m.unread, coalesce(m.changed_id, 0) AS changed
        FROM {SQLITE.table("given", MEMBER_ID, 1)}
        CROSS JOIN bongsu_members AS m ON m.member_id = given.member_id""",
)


async def find_new(tx: Transaction, cursors: Mapping[str, int], limit: int) -> list[NotificationGroup]:
    """What these members have above their cursors, in no order; of more than `limit`, the oldest."""
    given = [(member_id, cursor, position) for position, (member_id, cursor) in enumerate(cursors.items())]
    rows = await tx.fetch(_FIND_NEW(Table(_CURSOR, given), limit))
    time = tx.dialect.time
    return [
        NotificationGroup(
            time(row["as_of"]),
            row["message_id"],
            time(row["created_at"]),
            None if row["is_enabled"] is None else bool(row["is_enabled"]),
            orjson.loads(row["notification_ids"]),
            orjson.loads(row["positions"]),
            orjson.loads(row["unread"]),
            {int(position): changed for position, changed in orjson.loads(row["changed"] or "{}").items()},
        )
        for row in rows
    ]


async def find_counts(tx: Transaction, member_ids: Sequence[str]) -> dict[str, MemberCount]:
    """Of the members that are known. Read the time before it (`find_now`): in each of thousands of rows it would cost more
    than the counts."""
    rows = await tx.fetch(_FIND_COUNTS(Table.of(MEMBER_ID, member_ids)))
    return {row["member_id"]: MemberCount(row["unread"], row["changed"]) for row in rows}


# --- a message was stored ---------------------------------------------------------------------------------------------

# Counts no further than $2: beyond that it does not matter how many more there are.
_COUNT_RECIPIENTS = in_both(
    lambda d: (
        f"""
    SELECT given.message_id, (
        SELECT count(*) FROM (
            SELECT 1 FROM bongsu_notifications n WHERE n.message_id = given.message_id LIMIT $2) AS counted) AS recipients
    FROM {d.table("given", MESSAGE_ID, 1)}"""
    )
)

# Everyone who has these messages in the inbox, each with the notification before it or the newest change id, whichever is
# greater, so that a stream can see a gap.
_FIND_RECIPIENTS = Statement(
    postgres=f"""
        SELECT n.member_id, n.notification_id, given.message_id, n.created_at,
               m.unread, now() AS as_of, greatest(coalesce(m.changed_id, 0), coalesce((
                   SELECT p.notification_id FROM bongsu_notifications p
                   WHERE p.member_id = n.member_id AND p.notification_id < n.notification_id
                       AND p.channels & {_IN_APP} <> 0
                   ORDER BY p.notification_id DESC LIMIT 1), 0)) AS previous
        FROM {POSTGRES.table("given", MESSAGE_ID, 1)}
        CROSS JOIN LATERAL (
            SELECT x.member_id, x.notification_id, x.created_at FROM bongsu_notifications x
            WHERE x.message_id = given.message_id AND x.channels & {_IN_APP} <> 0 OFFSET 0) AS n
        CROSS JOIN LATERAL (
            SELECT x.unread, x.changed_id FROM bongsu_members x WHERE x.member_id = n.member_id OFFSET 0) AS m
        ORDER BY n.notification_id""",
    sqlite=f"""
        SELECT n.member_id, n.notification_id, given.message_id, n.created_at,
               m.unread, moment.as_of, max(coalesce(m.changed_id, 0), coalesce((
                   SELECT p.notification_id FROM bongsu_notifications p INDEXED BY bongsu_notifications_inbox
                   WHERE p.member_id = n.member_id AND p.notification_id < n.notification_id
                       AND p.channels & {_IN_APP} <> 0
                   ORDER BY p.notification_id DESC LIMIT 1), 0)) AS previous
        FROM (SELECT {SQLITE.now} AS as_of) AS moment
        CROSS JOIN {SQLITE.table("given", MESSAGE_ID, 1)}
        CROSS JOIN bongsu_notifications AS n ON n.message_id = given.message_id AND n.channels & {_IN_APP} <> 0
        CROSS JOIN bongsu_members AS m ON m.member_id = n.member_id
        ORDER BY n.notification_id""",
)


async def count_recipients(tx: Transaction, message_ids: Sequence[int], limit: int) -> dict[int, int]:
    """How many members each message went to, counted up to `limit`."""
    rows = await tx.fetch(_COUNT_RECIPIENTS(Table.of(MESSAGE_ID, message_ids), limit))
    return {row["message_id"]: row["recipients"] for row in rows}


async def find_recipients(tx: Transaction, message_ids: Sequence[int]) -> list[Recipient]:
    """Everyone who has these messages in the inbox, oldest notification first."""
    rows = await tx.fetch(_FIND_RECIPIENTS(Table.of(MESSAGE_ID, message_ids)))
    time = tx.dialect.time
    return [
        Recipient(
            NewNotification(row["member_id"], row["notification_id"], row["message_id"], time(row["created_at"])),
            row["previous"],
            row["unread"],
            time(row["as_of"]),
        )
        for row in rows
    ]
