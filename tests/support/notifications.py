"""Past notifications without a fan-out, for tests of history: messages of any time, who got them, who did not and why."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bongsu.model import Channel, new_id
from bongsu.model.channels import to_bits
from bongsu.store import Transaction
from bongsu.store.core.query import same
from bongsu.store.decisions import Message, add_messages_query
from bongsu.store.members import ensure_members
from bongsu.store.outbox import lock_claims

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BOTH = (Channel.PUSH, Channel.IN_APP)

_ADD_NOTIFICATION = same("""
    INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at) VALUES ($1, $2, $3, $4)
    RETURNING notification_id""")

_ADD_SUPPRESSION = same("""
    INSERT INTO bongsu_suppressions (message_id, member_id, reason, created_at) VALUES ($1, $2, $3, $4)""")

_NUMBERED = """
    WITH RECURSIVE numbered (number) AS (
        SELECT 1 UNION ALL SELECT number + 1 FROM numbered WHERE number < CAST($1 AS integer))"""
_NAME = "substr(CAST(1000000 + number AS text), 2)"

_ADD_MANY_NOTIFICATIONS = same(f"""
    INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
    {_NUMBERED} SELECT 'm-' || {_NAME}, $2, 8, $3 FROM numbered""")

_ADD_MANY_SUPPRESSIONS = same(f"""
    INSERT INTO bongsu_suppressions (message_id, member_id, reason, created_at)
    {_NUMBERED} SELECT $2, 's-' || {_NAME}, 'DUPLICATE', $3 FROM numbered""")

_ADD_MANY_MESSAGES = same(f"""
    INSERT INTO bongsu_messages (event_id, notice_index, locale, type, subject, title, body, data, channels, priority,
                                 guarantee, is_critical, created_at)
    {_NUMBERED}
    SELECT $2, number, 'ko', 'POST_LIKE', 's', 't', 'b', '{{}}', 8, 1, 'at_most_once', false, $3 FROM numbered""")

_ADD_MANY_DELIVERIES = same("""
    INSERT INTO bongsu_deliveries (notification_id, member_id, message_id, channel, device_id, status, rank, due, created_at)
    SELECT notification_id, member_id, message_id, 'PUSH', 'd', $2, 5, $3, $3
    FROM bongsu_notifications WHERE message_id = $1""")

_ADD_NOTIFICATIONS_OF_EVENT = same("""
    INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
    SELECT $1, message_id, 8, $2 FROM bongsu_messages WHERE event_id = $3""")


async def say(
    tx: Transaction,
    type_name: str = "PRICE_DROP",
    at: datetime = NOON,
    *,
    event_id: UUID | None = None,
    subject: str = "product-1",
    locale: str = "ko",
    title: str = "사과 가격이 내렸어요",
    channels: Iterable[Channel] = BOTH,
) -> int:
    """A message; its id."""
    (message_id,) = (await lock_claims(tx, [], messages=1)).message_ids
    message = Message(
        message_id=message_id,
        event_id=event_id or new_id(),
        notice_index=0,
        locale=locale,
        type=type_name,
        subject=subject,
        title=title,
        body="지금 10% 싸요",
        ref_id="product-1",
        data="{}",
        channels=to_bits(channels),
        priority=1,
        guarantee="at_most_once",
        is_critical=False,
        created_at=at,
        last_notified_at=at,
    )
    await tx.execute(add_messages_query([message]))
    return message_id


async def tell(
    tx: Transaction,
    message_id: int,
    member_id: str,
    *statuses: str,
    at: datetime = NOON,
    channels: Iterable[Channel] = BOTH,
    **delivery: Any,
) -> int:
    """A notification of a member, with a delivery in each of these states. Its id."""
    await ensure_members(tx, [member_id])
    (row,) = await tx.fetch(_ADD_NOTIFICATION(member_id, message_id, to_bits(channels), at))
    notification_id = int(row["notification_id"])
    for number, status in enumerate(statuses):
        values = {
            "notification_id": notification_id,
            "member_id": member_id,
            "message_id": message_id,
            "channel": "PUSH",
            "device_id": f"d-{number}",
            "status": status,
            "rank": 1,
            "due": at,
            "attempts": 1,
            "created_at": at,
            **delivery,
        }
        marks = ", ".join(f"${place}" for place in range(1, len(values) + 1))
        insert = same(f"INSERT INTO bongsu_deliveries ({', '.join(values)}) VALUES ({marks})")
        await tx.execute(insert(*values.values()))
    return notification_id


async def withhold(tx: Transaction, message_id: int, member_id: str, reason: str, at: datetime = NOON) -> None:
    """A member did not get it, for that reason."""
    await ensure_members(tx, [member_id])
    await tx.execute(_ADD_SUPPRESSION(message_id, member_id, reason, at))


async def tell_many(tx: Transaction, message_id: int, count: int, at: datetime = NOON) -> None:
    """So many members got the same, quickly: m-000001 and on. As many others did not."""
    await tx.execute(_ADD_MANY_NOTIFICATIONS(count, message_id, at), _ADD_MANY_SUPPRESSIONS(count, message_id, at))


async def send_many(tx: Transaction, message_id: int, status: str, at: datetime = NOON) -> None:
    """A push to everybody who got that message."""
    await tx.execute(_ADD_MANY_DELIVERIES(message_id, status, at))


async def babble(tx: Transaction, member_id: str, count: int, at: datetime = NOON) -> None:
    """So many notifications of a member, one message each, quickly."""
    event_id = new_id()
    await tx.execute(_ADD_MANY_MESSAGES(count, event_id, at), _ADD_NOTIFICATIONS_OF_EVENT(member_id, at, event_id))
