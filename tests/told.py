"""Notifications without a fan-out, for tests of what comes after it: written as it writes them, under the member's lock."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.store import people
from bongsu.store.databases import dialect_named

WORDS = {
    "type": "POST_LIKE",
    "title": "좋아요",
    "body": "누군가 좋아합니다",
    "ref_id": "post-1",
    "data": '{"postId":"post-1"}',
}


async def tell(tx: AsyncConnection, member_id: str, count: int = 1, **words: Any) -> list[int]:
    """Tell a member so many things, all unread, each with words of its own. The ids, oldest first."""
    dialect = dialect_named(tx.dialect.name)
    event_id = uuid4() if dialect.name == "postgresql" else str(uuid4())
    values = {"member_id": member_id, "event_id": event_id, "count": count}
    await people.mention(tx, [member_id])
    await tx.execute(text(f"SELECT 1 FROM bongsu_members m WHERE member_id = :member_id {dialect.locked('m')}"), values)
    await tx.execute(
        text(f"""
            WITH RECURSIVE numbered (number) AS (
                SELECT 1 UNION ALL SELECT number + 1 FROM numbered WHERE number < CAST(:count AS integer)
            )
            INSERT INTO bongsu_messages (event_id, notice, locale, type, subject, title, body, ref_id, data,
                                         channels, lane, guarantee, is_critical, created_at, told_at)
            SELECT :event_id, number, 'ko', :type, '', :title, :body, :ref_id, :data,
                   8, 1, 'at_most_once', false, {dialect.now}, {dialect.now} FROM numbered ORDER BY number"""),
        {**values, **WORDS, **words},
    )
    await tx.execute(
        text(f"""
            INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
            SELECT :member_id, message_id, 8, {dialect.now} FROM bongsu_messages
            WHERE event_id = :event_id ORDER BY notice"""),
        values,
    )
    await tx.execute(text("UPDATE bongsu_members SET unread = unread + :count WHERE member_id = :member_id"), values)
    told = await tx.execute(
        text("""
            SELECT notification_id FROM bongsu_notifications n JOIN bongsu_messages w ON w.message_id = n.message_id
            WHERE w.event_id = :event_id ORDER BY notification_id"""),
        values,
    )
    return list(told.scalars())


async def pile_up(tx: AsyncConnection, member_id: str, count: int) -> None:
    """So many unread notifications without words, quickly: for who counts and marks, and never looks at a page."""
    dialect = dialect_named(tx.dialect.name)
    await people.mention(tx, [member_id])
    values = {"member_id": member_id, "count": count}
    await tx.execute(text("UPDATE bongsu_members SET unread = unread + :count WHERE member_id = :member_id"), values)
    await tx.execute(
        text(f"""
            WITH RECURSIVE numbered (number) AS (
                SELECT 1 UNION ALL SELECT number + 1 FROM numbered WHERE number < CAST(:count AS integer)
            )
            INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
            SELECT :member_id, -number, 8, {dialect.now} FROM numbered ORDER BY number"""),
        values,
    )


async def unread_rows(connection: AsyncConnection, member_id: str) -> int:
    """How many are unread, by looking at every one."""
    query = "SELECT count(*) FROM bongsu_notifications WHERE member_id = :member_id AND read_at IS NULL"
    return int((await connection.execute(text(query), {"member_id": member_id})).scalar_one())
