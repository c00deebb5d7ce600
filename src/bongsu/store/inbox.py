"""Statements about a member's inbox: a page of it, how much is unread, what has been read.

The unread count is kept on the member's row, so that it costs one row however much is unread. Whoever changes which
notifications are unread holds that row first: the count is exact whenever it is seen. A member's ids are drawn under the
same lock, so they are in the order of commits: what comes later stands above every page and bound taken so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import read_payload
from bongsu.store.databases import dialect_named
from bongsu.store.dialect import Dialect, as_text

# Ids of both databases end here; a page that begins with the newest begins below it.
LARGEST_ID = 2**63 - 1


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
class Changed:
    """How many notifications have become read, and how many are unread after it."""

    read: int
    unread: int


# --- looking ----------------------------------------------------------------------------------------------------------


async def find_page(
    connection: AsyncConnection, member_id: str, below: int, limit: int, only_unread: bool
) -> tuple[list[InboxRow], int]:
    """The newest notifications with ids below that one, and the unread count of the same moment."""
    dialect = dialect_named(connection.dialect.name)
    found = await connection.execute(
        as_text(page_statement(dialect, only_unread)), {"member_id": member_id, "below": below, "limit": limit}
    )
    rows = found.all()
    # A member without notifications is one row without a notification; an unknown one is no row.
    return [_inbox_row(dialect, row) for row in rows if row[1] is not None], rows[0][0] if rows else 0


def page_statement(dialect: Dialect, only_unread: bool) -> str:
    """The page is cut before the words are fetched: so many rows are read by the index, and so many words by their key."""
    index = dialect.by_index("bongsu_notifications_unread" if only_unread else "bongsu_notifications_inbox")
    return f"""
        SELECT m.unread, n.notification_id, w.type, w.title, w.body, w.ref_id, w.data, n.created_at, n.read_at
        FROM bongsu_members m
        LEFT JOIN (
            SELECT notification_id, message_id, created_at, read_at FROM bongsu_notifications {index}
            WHERE member_id = :member_id AND notification_id < :below {"AND read_at IS NULL" if only_unread else ""}
            ORDER BY notification_id DESC LIMIT :limit
        ) n ON true
        LEFT JOIN bongsu_messages w ON w.message_id = n.message_id
        WHERE m.member_id = :member_id
        ORDER BY n.notification_id DESC"""


def _inbox_row(dialect: Dialect, row: Sequence[Any]) -> InboxRow:
    _, notification_id, kind, title, body, ref_id, data, created_at, read_at = row
    return InboxRow(
        notification_id,
        kind,
        title,
        body,
        ref_id,
        read_payload(data),
        dialect.moment(created_at),
        None if read_at is None else dialect.moment(read_at),
    )


UNREAD = "SELECT unread FROM bongsu_members WHERE member_id = :member_id"


async def count_unread(connection: AsyncConnection, member_id: str) -> int:
    """Of nobody known, nothing is unread."""
    return (await connection.execute(as_text(UNREAD), {"member_id": member_id})).scalar_one_or_none() or 0


async def find_newest_unread(connection: AsyncConnection, member_id: str) -> int | None:
    dialect = dialect_named(connection.dialect.name)
    found = await connection.execute(as_text(newest_statement(dialect)), {"member_id": member_id})
    return found.scalar_one_or_none()


def newest_statement(dialect: Dialect) -> str:
    return f"""
        SELECT notification_id FROM bongsu_notifications {dialect.by_index("bongsu_notifications_unread")}
        WHERE member_id = :member_id AND read_at IS NULL ORDER BY notification_id DESC LIMIT 1"""


@dataclass(frozen=True)
class Reading:
    """When one notification was read, if it was, and the member's unread count of the same moment."""

    read_at: datetime | None
    unread: int


async def find_reading(connection: AsyncConnection, member_id: str, notification_id: int) -> Reading | None:
    """None when the member has no such notification."""
    dialect = dialect_named(connection.dialect.name)
    found = await connection.execute(
        as_text("""
            SELECT n.read_at, m.unread FROM bongsu_notifications n JOIN bongsu_members m ON m.member_id = n.member_id
            WHERE n.member_id = :member_id AND n.notification_id = :notification_id"""),
        {"member_id": member_id, "notification_id": notification_id},
    )
    row = found.one_or_none()
    return None if row is None else Reading(None if row[0] is None else dialect.moment(row[0]), row[1])


# --- reading ----------------------------------------------------------------------------------------------------------


async def read_between(tx: AsyncConnection, member_id: str, after: int, last: int) -> Changed:
    """What is unread among the ids after the one, up to the other, is read. Holds the member's row until the end."""
    dialect = dialect_named(tx.dialect.name)
    unread = await _hold(tx, dialect, member_id)
    result = await tx.execute(as_text(read_statement(dialect)), {"member_id": member_id, "after_id": after, "last_id": last})
    read = result.rowcount
    if read:
        await tx.execute(
            as_text("UPDATE bongsu_members SET unread = unread - :read WHERE member_id = :member_id"),
            {"member_id": member_id, "read": read},
        )
    return Changed(read, unread - read)


async def _hold(tx: AsyncConnection, dialect: Dialect, member_id: str) -> int:
    """A statement of its own: only the statements after it see all that was done under the lock before us."""
    found = await tx.execute(
        as_text(f"SELECT m.unread FROM bongsu_members m WHERE m.member_id = :member_id {dialect.locked('m')}"),
        {"member_id": member_id},
    )
    return found.scalar_one_or_none() or 0


def read_statement(dialect: Dialect) -> str:
    return f"""
        UPDATE bongsu_notifications {dialect.by_index("bongsu_notifications_unread")} SET read_at = {dialect.now}
        WHERE member_id = :member_id AND notification_id > :after_id AND notification_id <= :last_id AND read_at IS NULL"""


async def find_end(tx: AsyncConnection, member_id: str, after: int, last: int, limit: int) -> int:
    """Where to stop, between the two ids, to read about that many at once."""
    dialect = dialect_named(tx.dialect.name)
    found = await tx.execute(
        as_text(end_statement(dialect)),
        {"member_id": member_id, "after_id": after, "last_id": last, "skipped": limit - 1},
    )
    end: int | None = found.scalar_one_or_none()
    return last if end is None else end


def end_statement(dialect: Dialect) -> str:
    return f"""
        SELECT notification_id FROM bongsu_notifications {dialect.by_index("bongsu_notifications_unread")}
        WHERE member_id = :member_id AND notification_id > :after_id AND notification_id <= :last_id AND read_at IS NULL
        ORDER BY notification_id LIMIT 1 OFFSET :skipped"""
