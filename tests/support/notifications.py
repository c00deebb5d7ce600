"""Past notifications without a fan-out, for tests of history: messages of any time, who got them, who did not and why."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bongsu.model import Channel, new_id
from bongsu.model.channels import to_bits
from bongsu.store import Transaction
from bongsu.store.members import ensure_members
from tests.support import rows
from tests.support.rows import Sql

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BOTH = (Channel.PUSH, Channel.IN_APP)

_PADDED = "substr(CAST(1000000 + number AS text), 2)"


async def add_past_message(
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
    return await rows.add_message(
        tx,
        event_id=event_id or new_id(),
        locale=locale,
        type=type_name,
        subject=subject,
        title=title,
        body="지금 10% 싸요",
        ref_id="product-1",
        channels=to_bits(channels),
        created_at=at,
        last_notified_at=at,
    )


async def add_past_notification(
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
    notification_id = await rows.add_notification(tx, member_id, message_id, channels=to_bits(channels), created_at=at)
    for number, status in enumerate(statuses):
        columns = {"device_id": f"d-{number}", "status": status, "due": at, "attempts": 1, "created_at": at, **delivery}
        await rows.add_delivery(tx, notification_id, member_id, message_id, **columns)
    return notification_id


async def add_past_suppression(tx: Transaction, message_id: int, member_id: str, reason: str, at: datetime = NOON) -> None:
    """A member did not get it, for that reason."""
    await ensure_members(tx, [member_id])
    await rows.add_suppression(tx, message_id, member_id, reason=reason, created_at=at)


async def add_many_recipients(tx: Transaction, message_id: int, count: int, at: datetime = NOON) -> None:
    """So many members got the same, quickly: m-000001 and on. As many others did not."""
    common = {"message_id": message_id, "created_at": at}
    await rows.add_many(tx, "notifications", count, member_id=Sql(f"'m-' || {_PADDED}"), **common)
    await rows.add_many(tx, "suppressions", count, member_id=Sql(f"'s-' || {_PADDED}"), **common)


async def add_many_deliveries(tx: Transaction, message_id: int, status: str, at: datetime = NOON) -> None:
    """A push to everybody who got that message."""
    recipients = f"notifications WHERE message_id = {message_id}"
    await rows.add_delivery_for_each(tx, recipients, device_id="d", status=status, rank=5, due=at, created_at=at)


async def add_many_notifications(tx: Transaction, member_id: str, count: int, at: datetime = NOON) -> None:
    """So many notifications of a member, one message each, quickly."""
    event_id = new_id()
    await rows.add_many(tx, "messages", count, event_id=event_id, notice_index=Sql("number"), created_at=at)
    messages = f"messages WHERE event_id = '{event_id}'"
    await rows.add_for_each(tx, "notifications", messages, member_id=member_id, message_id=Sql("message_id"), created_at=at)
