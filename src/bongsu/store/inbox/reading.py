"""Pages of the inbox and of the archive, the unread count, and the newest that is unread or unseen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from bongsu.model.channels import Channel
from bongsu.model.payload import read_payload
from bongsu.store.core.query import Dialect, Row, Statement, Transaction, fetch_one, in_both, optional_time, same
from bongsu.store.members.channel_bits import BITS

# The row of a notification is in its member's inbox.
IS_IN_APP = f"channels & {BITS[Channel.IN_APP]} <> 0"


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
    seen_at: datetime | None
    archived_at: datetime | None
    updated_at: datetime | None


class PageKind(Enum):
    """Which notifications a page has: those in the inbox, the unread of them, or the archived."""

    INBOX = "inbox"
    UNREAD = "unread"
    ARCHIVE = "archive"


# A digest has a text of its own.
_PAGE_COLUMNS = """m.unread, n.*, w.type, w.ref_id, coalesce(g.title, w.title) AS title, coalesce(g.body, w.body) AS body,
           coalesce(g.data, w.data) AS data"""
_CONTENT = """LEFT JOIN bongsu_messages w ON w.message_id = n.message_id
    LEFT JOIN bongsu_digests g ON w.is_digest AND g.notification_id = n.notification_id"""
_ROW_COLUMNS = "notification_id, message_id, created_at, read_at, seen_at, archived_at, updated_at"


def _page(d: Dialect, index: str, condition: str) -> str:
    """The newest $3 notifications of member $1 below id $2 that meet the condition, by the index that has only those, and
    the unread count of the same snapshot. The page is cut before the messages are joined: an index range of the page's
    length, then one lookup by key per row. Locks nothing."""
    return f"""
    SELECT {_PAGE_COLUMNS}
    FROM bongsu_members m
    LEFT JOIN (
        SELECT {_ROW_COLUMNS}
        FROM bongsu_notifications {d.index_hint(index)}
        WHERE member_id = $1 AND notification_id < $2 AND {condition}
        ORDER BY notification_id DESC LIMIT $3
    ) n ON true
    {_CONTENT}
    WHERE m.member_id = $1
    ORDER BY n.notification_id DESC"""


_PAGES: dict[PageKind, Statement] = {
    PageKind.INBOX: in_both(lambda d: _page(d, "bongsu_notifications_inbox", IS_IN_APP)),
    PageKind.UNREAD: in_both(lambda d: _page(d, "bongsu_notifications_unread", f"read_at IS NULL AND {IS_IN_APP}")),
    PageKind.ARCHIVE: in_both(lambda d: _page(d, "bongsu_notifications_archived", "archived_at IS NOT NULL")),
}

# The stored count: one row by its key, however many are unread.
_COUNT_UNREAD = same("SELECT unread FROM bongsu_members WHERE member_id = $1")

# The end of the index of unread notifications.
_FIND_NEWEST_UNREAD = in_both(
    lambda d: (
        f"""
    SELECT notification_id FROM bongsu_notifications {d.index_hint("bongsu_notifications_unread")}
    WHERE member_id = $1 AND read_at IS NULL AND {IS_IN_APP} ORDER BY notification_id DESC LIMIT 1"""
    )
)

# The newest in the inbox of member $1 behind the last that they have seen, by the index of the inbox from its end. Locks
# nothing.
_FIND_NEWEST_UNSEEN = in_both(
    lambda d: (
        f"""
    SELECT notification_id FROM bongsu_notifications {d.index_hint("bongsu_notifications_inbox")}
    WHERE member_id = $1
      AND notification_id > coalesce((SELECT seen_up_to FROM bongsu_members WHERE member_id = $1), 0)
      AND {IS_IN_APP} ORDER BY notification_id DESC LIMIT 1"""
    )
)


async def find_page(
    tx: Transaction, member_id: str, below: int, limit: int, kind: PageKind = PageKind.INBOX
) -> tuple[list[InboxRow], int]:
    """The newest notifications with ids below the given one, and the unread count of the same snapshot."""
    rows = await tx.fetch(_PAGES[kind](member_id, below, limit))
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
        optional_time(dialect, row["read_at"]),
        optional_time(dialect, row["seen_at"]),
        optional_time(dialect, row["archived_at"]),
        optional_time(dialect, row["updated_at"]),
    )


async def count_unread(tx: Transaction, member_id: str) -> int:
    """An unknown member has none."""
    row = await fetch_one(tx, _COUNT_UNREAD(member_id))
    return 0 if row is None else row["unread"]


async def find_newest_unread(tx: Transaction, member_id: str) -> int | None:
    row = await fetch_one(tx, _FIND_NEWEST_UNREAD(member_id))
    return None if row is None else row["notification_id"]


async def find_newest_unseen(tx: Transaction, member_id: str) -> int | None:
    row = await fetch_one(tx, _FIND_NEWEST_UNSEEN(member_id))
    return None if row is None else row["notification_id"]
