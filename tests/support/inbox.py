"""Notifications without a fan-out, for tests of what comes after it: written as it writes them, under the member's lock."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from bongsu.store import Transaction
from bongsu.store.core.query import in_both, same
from bongsu.store.members import ensure_members

WORDS = {
    "type": "POST_LIKE",
    "title": "좋아요",
    "body": "누군가 좋아합니다",
    "ref_id": "post-1",
    "data": '{"postId":"post-1"}',
}

_NUMBERED = """
    WITH RECURSIVE numbered (number) AS (
        SELECT 1 UNION ALL SELECT number + 1 FROM numbered WHERE number < CAST($1 AS integer))"""

_LOCK_MEMBER = in_both(lambda d: f"SELECT 1 FROM bongsu_members WHERE member_id = $1 {d.lock_row}")

_ADD_MESSAGES = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_messages (event_id, notice_index, locale, type, subject, title, body, ref_id, data,
                                 channels, priority, guarantee, is_critical, created_at, last_notified_at)
    {_NUMBERED}
    SELECT $2, number, 'ko', $3, '', $4, $5, $6, $7, 8, 1, 'at_most_once', false, {d.now}, {d.now}
    FROM numbered ORDER BY number"""
    )
)

_ADD_NOTIFICATIONS = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
    SELECT $1, message_id, 8, {d.now} FROM bongsu_messages WHERE event_id = $2 ORDER BY notice_index"""
    )
)

_COUNT_UNREAD = same("UPDATE bongsu_members SET unread = unread + $2 WHERE member_id = $1")

_FIND_IDS = same("""
    SELECT n.notification_id FROM bongsu_notifications n JOIN bongsu_messages m ON m.message_id = n.message_id
    WHERE m.event_id = $1 ORDER BY n.notification_id""")

_PILE_UP = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
    {_NUMBERED}
    SELECT $2, -number, 8, {d.now} FROM numbered ORDER BY number"""
    )
)

_UNREAD_ROWS = same("SELECT count(*) AS unread FROM bongsu_notifications WHERE member_id = $1 AND read_at IS NULL")


async def tell(tx: Transaction, member_id: str, count: int = 1, **words: Any) -> list[int]:
    """So many unread notifications of a member, each with a message of its own. Their ids, oldest first."""
    event_id = uuid4()
    content = {**WORDS, **words}
    await ensure_members(tx, [member_id])
    await tx.fetch(_LOCK_MEMBER(member_id))
    await tx.execute(
        _ADD_MESSAGES(count, event_id, *(content[name] for name in ("type", "title", "body", "ref_id", "data"))),
        _ADD_NOTIFICATIONS(member_id, event_id),
        _COUNT_UNREAD(member_id, count),
    )
    return [row["notification_id"] for row in await tx.fetch(_FIND_IDS(event_id))]


async def pile_up(tx: Transaction, member_id: str, count: int) -> None:
    """So many unread notifications without messages, quickly: for tests that count and mark, and read no page."""
    await ensure_members(tx, [member_id])
    await tx.execute(_COUNT_UNREAD(member_id, count), _PILE_UP(count, member_id))


async def unread_rows(tx: Transaction, member_id: str) -> int:
    """How many are unread, by looking at every one."""
    (row,) = await tx.fetch(_UNREAD_ROWS(member_id))
    return int(row["unread"])
