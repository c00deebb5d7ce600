"""The deliveries of notifications, for those who look back: by which ways each went out, and how that went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Channel
from bongsu.store.databases import dialect_named
from bongsu.store.dialect import Dialect
from bongsu.store.tries import Try, find_tries


@dataclass(frozen=True)
class DeliveryRow:
    delivery_id: int
    channel: Channel
    device_id: str | None
    status: str
    code: str | None
    attempts: int
    is_simulated: bool
    created_at: datetime
    finished_at: datetime | None
    due: datetime
    # All there were; `attempts` counts those of the present round.
    tries: tuple[Try, ...] = ()


async def find_deliveries(connection: AsyncConnection, notification_ids: Sequence[int]) -> Mapping[int, list[DeliveryRow]]:
    """By notification; one that has none is left out."""
    if not notification_ids:
        return {}
    dialect = dialect_named(connection.dialect.name)
    columns = {"notification_id": "bigint"}
    found = await connection.exec_driver_sql(
        f"""
        SELECT d.notification_id, d.delivery_id, d.channel, d.device_id, d.status, d.code, d.attempts, d.is_simulated,
               d.created_at, d.finished_at, d.due
        FROM {dialect.table(columns)} CROSS JOIN bongsu_deliveries d WHERE d.notification_id = given.notification_id
        ORDER BY d.delivery_id""",
        tuple(dialect.parameters(columns, [(one,) for one in notification_ids])),
    )
    rows = [(row[0], _delivery_row(dialect, row[1:])) for row in found]
    tries = await find_tries(connection, [one.delivery_id for _, one in rows])
    deliveries: dict[int, list[DeliveryRow]] = {}
    for notification_id, one in rows:
        deliveries.setdefault(notification_id, []).append(replace(one, tries=tuple(tries.get(one.delivery_id, ()))))
    return deliveries


def _delivery_row(dialect: Dialect, row: Sequence[Any]) -> DeliveryRow:
    delivery_id, channel, device_id, status, code, attempts, is_simulated, created_at, finished_at, due = row
    return DeliveryRow(
        delivery_id,
        Channel(channel),
        device_id,
        status,
        code,
        attempts,
        bool(is_simulated),
        dialect.moment(created_at),
        None if finished_at is None else dialect.moment(finished_at),
        dialect.moment(due),
    )
