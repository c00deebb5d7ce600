"""Notifications without a fan-out, for tests of what comes after it: written as it writes them, under the member's lock."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from bongsu.store import Transaction
from bongsu.store.core.query import in_both, same
from bongsu.store.members import ensure_members
from tests.support import rows
from tests.support.rows import NOW, Sql

WORDS = {
    "type": "POST_LIKE",
    "title": "좋아요",
    "body": "누군가 좋아합니다",
    "ref_id": "post-1",
    "data": '{"postId":"post-1"}',
}

_LOCK_MEMBER = in_both(lambda d: f"SELECT 1 FROM bongsu_members WHERE member_id = $1 {d.lock_row}")

_FIND_IDS = same("""
    SELECT n.notification_id FROM bongsu_notifications n JOIN bongsu_messages m ON m.message_id = n.message_id
    WHERE m.event_id = $1 ORDER BY n.notification_id""")

_UNREAD_ROWS = same("""
    SELECT count(*) AS unread FROM bongsu_notifications WHERE member_id = $1 AND read_at IS NULL AND channels & 8 <> 0""")


async def add_unread(tx: Transaction, member_id: str, count: int = 1, **words: Any) -> list[int]:
    """So many unread notifications of a member, each with a message of its own. Their ids, oldest first."""
    event_id = uuid4()
    content = {"event_id": event_id, "notice_index": Sql("number"), "subject": "", "last_notified_at": NOW, **WORDS, **words}
    await ensure_members(tx, [member_id])
    await tx.fetch(_LOCK_MEMBER(member_id))
    await rows.add_many(tx, "messages", count, **content)
    messages = f"messages WHERE event_id = '{event_id}' ORDER BY notice_index"
    await rows.add_for_each(tx, "notifications", messages, member_id=member_id, message_id=Sql("message_id"))
    await count_unread(tx, member_id, count)
    return [row["notification_id"] for row in await tx.fetch(_FIND_IDS(event_id))]


async def add_unread_without_messages(tx: Transaction, member_id: str, count: int) -> None:
    """So many unread notifications without messages, quickly: for tests that count and mark, and read no page."""
    await ensure_members(tx, [member_id])
    await count_unread(tx, member_id, count)
    await rows.add_many(tx, "notifications", count, member_id=member_id, message_id=Sql("-number"))


async def count_unread(tx: Transaction, member_id: str, change: int) -> None:
    """Add to the unread count of a member."""
    await rows.set_columns(tx, "members", {"member_id": member_id}, unread=Sql(f"unread + {change}"))


async def unread_rows(tx: Transaction, member_id: str) -> int:
    """How many are unread, by looking at every one."""
    (row,) = await tx.fetch(_UNREAD_ROWS(member_id))
    return int(row["unread"])
