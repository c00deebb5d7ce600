"""A past without a fan-out, for tests of who looks back: messages of any time, who was told them, who was not and why."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Channel, new_id
from bongsu.store import decisions, people
from bongsu.store.databases import dialect_named
from bongsu.store.decisions import Message, as_bits

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BOTH = (Channel.PUSH, Channel.IN_APP)


async def say(
    tx: AsyncConnection,
    type_name: str = "PRICE_DROP",
    at: datetime = NOON,
    *,
    event_id: UUID | None = None,
    subject: str = "product-1",
    locale: str = "ko",
    title: str = "사과 가격이 내렸어요",
    channels: Iterable[Channel] = BOTH,
) -> int:
    """Words, and their message id."""
    dialect = dialect_named(tx.dialect.name)
    message_id = int((await dialect.rows(tx, f"SELECT {dialect.next_message}", ()))[0][0])
    message = Message(
        message_id=message_id,
        event_id=event_id or new_id(),
        notice=0,
        locale=locale,
        type=type_name,
        subject=subject,
        title=title,
        body="지금 10% 싸요",
        ref_id="product-1",
        data="{}",
        channels=as_bits(channels),
        lane=1,
        guarantee="at_most_once",
        is_critical=False,
        created_at=at,
        told_at=at,
    )
    await dialect.run_all(tx, [decisions.adding(dialect, [message])])
    return message_id


async def tell(
    tx: AsyncConnection,
    message_id: int,
    member_id: str,
    *statuses: str,
    at: datetime = NOON,
    channels: Iterable[Channel] = BOTH,
    **delivery: Any,
) -> int:
    """A member was told, with a delivery in each of these states. The notification's id."""
    dialect = dialect_named(tx.dialect.name)
    await people.mention(tx, [member_id])
    row = {"message_id": message_id, "member_id": member_id, "channels": as_bits(channels), "at": dialect.stored(at)}
    added = await tx.execute(
        text("""
            INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
            VALUES (:member_id, :message_id, :channels, :at) RETURNING notification_id"""),
        row,
    )
    row["notification_id"] = int(added.scalar_one())
    del row["channels"]
    for number, status in enumerate(statuses):
        values = {
            **row, "channel": "PUSH", "device_id": f"d-{number}", "status": status, "code": None, "attempts": 1,
            "due": row["at"], "finished_at": None, **delivery,
        }  # fmt: skip
        await tx.execute(
            text("""
                INSERT INTO bongsu_deliveries (notification_id, member_id, message_id, channel, device_id, status, lane, due,
                                               attempts, code, created_at, finished_at)
                VALUES (:notification_id, :member_id, :message_id, :channel, :device_id, :status, 1, :due,
                        :attempts, :code, :at, :finished_at)"""),
            values,
        )
    return int(row["notification_id"])


async def withhold(tx: AsyncConnection, message_id: int, member_id: str, reason: str, at: datetime = NOON) -> None:
    """A member was not told, for that reason."""
    dialect = dialect_named(tx.dialect.name)
    await people.mention(tx, [member_id])
    await tx.execute(
        text("INSERT INTO bongsu_suppressions VALUES (:message_id, :member_id, :reason, :at)"),
        {"message_id": message_id, "member_id": member_id, "reason": reason, "at": dialect.stored(at)},
    )


async def tell_many(tx: AsyncConnection, message_id: int, count: int, at: datetime = NOON) -> None:
    """So many members were told the same, quickly: m-000001 and on. As many others were not."""
    dialect = dialect_named(tx.dialect.name)
    numbers = """
        WITH RECURSIVE numbered (number) AS (
            SELECT 1 UNION ALL SELECT number + 1 FROM numbered WHERE number < CAST(:count AS integer))"""
    name = "substr(CAST(1000000 + number AS text), 2)"
    values = {"message_id": message_id, "count": count, "at": dialect.stored(at)}
    await tx.execute(
        text(f"""
            INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
            {numbers} SELECT 'm-' || {name}, :message_id, 8, :at FROM numbered"""),
        values,
    )
    await tx.execute(
        text(f"""
            INSERT INTO bongsu_suppressions (message_id, member_id, reason, created_at)
            {numbers} SELECT :message_id, 's-' || {name}, 'DUPLICATE', :at FROM numbered"""),
        values,
    )


async def babble(tx: AsyncConnection, member_id: str, count: int, at: datetime = NOON) -> None:
    """A member was told so many things, one message each, quickly."""
    dialect = dialect_named(tx.dialect.name)
    (event_id,) = dialect.plain({"event_id": "uuid"}, [(new_id(),)])[0]
    values = {"member_id": member_id, "count": count, "at": dialect.stored(at), "event_id": event_id}
    await tx.execute(
        text("""
            INSERT INTO bongsu_messages (event_id, notice, locale, type, subject, title, body, data, channels, lane,
                                         guarantee, is_critical, created_at)
            WITH RECURSIVE numbered (number) AS (
                SELECT 1 UNION ALL SELECT number + 1 FROM numbered WHERE number < CAST(:count AS integer))
            SELECT :event_id, number, 'ko', 'POST_LIKE', 's', 't', 'b', '{}', 8, 1, 'at_most_once', false, :at
            FROM numbered"""),
        values,
    )
    await tx.execute(
        text("""
            INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
            SELECT :member_id, message_id, 8, :at FROM bongsu_messages WHERE event_id = :event_id"""),
        values,
    )
