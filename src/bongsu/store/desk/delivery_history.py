"""Past deliveries of notifications, and every attempt to send each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from bongsu.store.core.query import DELIVERY_ID, NOTIFICATION_ID, Dialect, Row, Table, Transaction, in_both, optional_time


@dataclass(frozen=True)
class Attempt:
    """One attempt to send: when it began, how long the provider took to answer, and the code of the answer."""

    at: datetime
    millis: int
    code: str


@dataclass(frozen=True)
class DeliveryRow:
    delivery_id: int
    channel: str
    device_id: str | None
    status: str
    code: str | None
    # In the current round: a recovery or replay starts a new one.
    attempts: int
    is_simulated: bool
    created_at: datetime
    finished_at: datetime | None
    due: datetime
    # Of all rounds, in order.
    all_attempts: tuple[Attempt, ...] = ()


# The deliveries of these notifications, by the index on notification_id. What waits of a cancelled event is not sent: it is
# CANCELLED already. $1 notification ids.
_DELIVERIES = in_both(
    lambda d: (
        f"""
    SELECT d.notification_id, d.delivery_id, d.channel, d.device_id, d.code, d.attempts, d.is_simulated, d.created_at,
           d.finished_at, d.due,
           CASE WHEN d.status = 'READY' AND (
                    SELECT m.cancelled_at FROM bongsu_messages m WHERE m.message_id = d.message_id) IS NOT NULL
                THEN 'CANCELLED' ELSE d.status END AS status
    FROM {d.table("given", NOTIFICATION_ID, 1)}
    CROSS JOIN bongsu_deliveries d WHERE d.notification_id = given.notification_id
    ORDER BY d.delivery_id"""
    )
)
# Every attempt of these deliveries: the failed ones have rows, the one that succeeded is stored with its delivery.
# $1 delivery ids.
_ATTEMPTS = in_both(
    lambda d: (
        f"""
    WITH given AS MATERIALIZED (SELECT * FROM {d.table("given", DELIVERY_ID, 1)})
    SELECT a.delivery_id AS delivery_id, a.began_at AS at, a.millis, a.code, a.epoch AS epoch
    FROM given CROSS JOIN bongsu_attempts a WHERE a.delivery_id = given.delivery_id
    UNION ALL
    SELECT d.delivery_id, d.sent_at, d.millis, 'SUCCESS', d.epoch
    FROM given CROSS JOIN bongsu_deliveries d WHERE d.delivery_id = given.delivery_id AND d.sent_at IS NOT NULL
    ORDER BY delivery_id, epoch"""
    )
)


async def find_deliveries(tx: Transaction, notification_ids: Sequence[int]) -> Mapping[int, list[DeliveryRow]]:
    """By notification, oldest first. A notification without deliveries is left out."""
    if not notification_ids:
        return {}
    rows = await tx.fetch(_DELIVERIES(Table.of(NOTIFICATION_ID, notification_ids)))
    attempts = await find_attempts(tx, [row["delivery_id"] for row in rows])
    deliveries: dict[int, list[DeliveryRow]] = {}
    for row in rows:
        delivery = replace(_delivery_row(tx.dialect, row), all_attempts=tuple(attempts.get(row["delivery_id"], ())))
        deliveries.setdefault(row["notification_id"], []).append(delivery)
    return deliveries


async def find_attempts(tx: Transaction, delivery_ids: Sequence[int]) -> Mapping[int, list[Attempt]]:
    """By delivery, in the order they were made. A delivery without attempts is left out."""
    if not delivery_ids:
        return {}
    attempts: dict[int, list[Attempt]] = {}
    for row in await tx.fetch(_ATTEMPTS(Table.of(DELIVERY_ID, delivery_ids))):
        attempt = Attempt(tx.dialect.time(row["at"]), row["millis"], row["code"])
        attempts.setdefault(row["delivery_id"], []).append(attempt)
    return attempts


def _delivery_row(dialect: Dialect, row: Row) -> DeliveryRow:
    return DeliveryRow(
        delivery_id=row["delivery_id"],
        channel=row["channel"],
        device_id=row["device_id"],
        status=row["status"],
        code=row["code"],
        attempts=row["attempts"],
        is_simulated=bool(row["is_simulated"]),
        created_at=dialect.time(row["created_at"]),
        finished_at=optional_time(dialect, row["finished_at"]),
        due=dialect.time(row["due"]),
    )
