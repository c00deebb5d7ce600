"""Statements about a member's inbox: a page of it, the unread count, marking as read.

Only notifications with the channel IN_APP are in the inbox. The others are rows of the same table, which the history shows.

The unread count is a column of the member's row, so reading it costs one row however many are unread. Every transaction
that changes which notifications are unread locks that row first, so the count is exact in every snapshot. New
notifications get their ids under the same lock: a member's ids are in commit order, and a notification that commits later
is above every page and bound read so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bongsu.model.channels import Channel
from bongsu.model.payload import read_payload
from bongsu.store.core.query import Dialect, Row, Transaction, fetch_one, in_both, same
from bongsu.store.members.channel_bits import BITS

_IS_IN_APP = f"channels & {BITS[Channel.IN_APP]} <> 0"


@dataclass(frozen=True)
class InboxRow:
    """One notification as its member sees it."""

    notification_id: int
    type: str
    title: str
    body: str
    ref_id: str | None
    data: dict[str, Any]
    created_at: datetime
    read_at: datetime | None


@dataclass(frozen=True)
class MarkedRead:
    """How many notifications became read, and how many are unread after that."""

    read: int
    unread: int


@dataclass(frozen=True)
class ReadState:
    """When one notification was read (None: it is unread), and the member's unread count in the same snapshot."""

    read_at: datetime | None
    unread: int


# --- reading ----------------------------------------------------------------------------------------------------------

# The newest $3 notifications below id $2, and the unread count of the same snapshot. The page is cut before the messages
# are joined: an index range of the page's length, then one lookup by key per row. A digest has a text of its own.
_FIND_PAGE = in_both(
    lambda d: (
        f"""
    SELECT m.unread, n.notification_id, w.type, coalesce(g.title, w.title) AS title, coalesce(g.body, w.body) AS body,
           w.ref_id, coalesce(g.data, w.data) AS data, n.created_at, n.read_at
    FROM bongsu_members m
    LEFT JOIN (
        SELECT notification_id, message_id, created_at, read_at
        FROM bongsu_notifications {d.index_hint("bongsu_notifications_inbox")}
        WHERE member_id = $1 AND notification_id < $2 AND {_IS_IN_APP}
        ORDER BY notification_id DESC LIMIT $3
    ) n ON true
    LEFT JOIN bongsu_messages w ON w.message_id = n.message_id
    LEFT JOIN bongsu_digests g ON w.is_digest AND g.notification_id = n.notification_id
    WHERE m.member_id = $1
    ORDER BY n.notification_id DESC"""
    )
)

# The same for the unread only, by the index that has nothing else.
_FIND_UNREAD_PAGE = in_both(
    lambda d: (
        f"""
    SELECT m.unread, n.notification_id, w.type, coalesce(g.title, w.title) AS title, coalesce(g.body, w.body) AS body,
           w.ref_id, coalesce(g.data, w.data) AS data, n.created_at, n.read_at
    FROM bongsu_members m
    LEFT JOIN (
        SELECT notification_id, message_id, created_at, read_at
        FROM bongsu_notifications {d.index_hint("bongsu_notifications_unread")}
        WHERE member_id = $1 AND notification_id < $2 AND read_at IS NULL AND {_IS_IN_APP}
        ORDER BY notification_id DESC LIMIT $3
    ) n ON true
    LEFT JOIN bongsu_messages w ON w.message_id = n.message_id
    LEFT JOIN bongsu_digests g ON w.is_digest AND g.notification_id = n.notification_id
    WHERE m.member_id = $1
    ORDER BY n.notification_id DESC"""
    )
)

# The stored count: one row by its key, however many are unread.
_COUNT_UNREAD = same("SELECT unread FROM bongsu_members WHERE member_id = $1")

# The end of the index of unread notifications.
_FIND_NEWEST_UNREAD = in_both(
    lambda d: (
        f"""
    SELECT notification_id FROM bongsu_notifications {d.index_hint("bongsu_notifications_unread")}
    WHERE member_id = $1 AND read_at IS NULL AND {_IS_IN_APP} ORDER BY notification_id DESC LIMIT 1"""
    )
)

# One notification of this member (no row if it is another's), with the unread count of the same snapshot.
_FIND_READ_STATE = same(f"""
    SELECT n.read_at, m.unread
    FROM bongsu_notifications n JOIN bongsu_members m ON m.member_id = n.member_id
    WHERE n.member_id = $1 AND n.notification_id = $2 AND n.{_IS_IN_APP}""")


async def find_page(
    tx: Transaction, member_id: str, below: int, limit: int, only_unread: bool
) -> tuple[list[InboxRow], int]:
    """The newest notifications with ids below the given one, and the unread count of the same snapshot."""
    statement = _FIND_UNREAD_PAGE if only_unread else _FIND_PAGE
    rows = await tx.fetch(statement(member_id, below, limit))
    # A member without notifications is one row without a notification id; an unknown member is no row.
    page = [_inbox_row(tx.dialect, row) for row in rows if row["notification_id"] is not None]
    return page, rows[0]["unread"] if rows else 0


def _inbox_row(dialect: Dialect, row: Row) -> InboxRow:
    return InboxRow(
        row["notification_id"],
        row["type"],
        row["title"],
        row["body"],
        row["ref_id"],
        read_payload(row["data"]),
        dialect.time(row["created_at"]),
        None if row["read_at"] is None else dialect.time(row["read_at"]),
    )


async def count_unread(tx: Transaction, member_id: str) -> int:
    """An unknown member has none."""
    row = await fetch_one(tx, _COUNT_UNREAD(member_id))
    return 0 if row is None else row["unread"]


async def find_newest_unread(tx: Transaction, member_id: str) -> int | None:
    row = await fetch_one(tx, _FIND_NEWEST_UNREAD(member_id))
    return None if row is None else row["notification_id"]


async def find_read_state(tx: Transaction, member_id: str, notification_id: int) -> ReadState | None:
    """None when the member has no such notification."""
    row = await fetch_one(tx, _FIND_READ_STATE(member_id, notification_id))
    if row is None:
        return None
    return ReadState(None if row["read_at"] is None else tx.dialect.time(row["read_at"]), row["unread"])


# --- marking as read --------------------------------------------------------------------------------------------------

# Locks the member's row. A statement of its own: only the statements after it see what was committed under the lock before.
_LOCK_MEMBER = in_both(lambda d: f"SELECT unread FROM bongsu_members WHERE member_id = $1 {d.lock_row}")

# Marks the unread with ids above $2, up to $3. Run under the member's lock.
_MARK_READ = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_notifications {d.index_hint("bongsu_notifications_unread")} SET read_at = {d.now}
    WHERE member_id = $1 AND notification_id > $2 AND notification_id <= $3 AND read_at IS NULL AND {_IS_IN_APP}"""
    )
)

# Keeps the count equal to the unread rows. Run under the member's lock.
_SUBTRACT_UNREAD = same("UPDATE bongsu_members SET unread = unread - $2 WHERE member_id = $1")

# The id of the unread notification that is $4 places after the first of those above $2, up to $3.
_FIND_END = in_both(
    lambda d: (
        f"""
    SELECT notification_id FROM bongsu_notifications {d.index_hint("bongsu_notifications_unread")}
    WHERE member_id = $1 AND notification_id > $2 AND notification_id <= $3 AND read_at IS NULL AND {_IS_IN_APP}
    ORDER BY notification_id LIMIT 1 OFFSET $4"""
    )
)


async def mark_read(tx: Transaction, member_id: str, after: int, last: int) -> MarkedRead:
    """Mark the unread with ids above `after`, up to `last`. The member's row stays locked until the transaction ends."""
    member = await fetch_one(tx, _LOCK_MEMBER(member_id))
    unread = 0 if member is None else member["unread"]
    (read,) = await tx.execute(_MARK_READ(member_id, after, last))
    if read:
        await tx.execute(_SUBTRACT_UNREAD(member_id, read))
    return MarkedRead(read, unread - read)


async def find_end(tx: Transaction, member_id: str, after: int, last: int, limit: int) -> int:
    """The id up to which `limit` unread notifications lie above `after`; `last` if there are fewer."""
    row = await fetch_one(tx, _FIND_END(member_id, after, last, limit - 1))
    return last if row is None else row["notification_id"]
