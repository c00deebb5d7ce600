"""Deliveries and events in any state, for tests of what becomes of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Event, utc_now
from bongsu.store import Store, events
from bongsu.store.databases import dialect_named
from tests.past import say, tell

SOON, LONG_AGO = timedelta(hours=1), timedelta(hours=-1)


async def message(
    tx: AsyncConnection, guarantee: str = "at_least_once", expires: timedelta | None = None, **said: Any
) -> int:
    """Words of that guarantee, worth something until then, counted from now."""
    message_id = await say(tx, **said)
    dialect = dialect_named(tx.dialect.name)
    await tx.execute(
        text("UPDATE bongsu_messages SET guarantee = :guarantee, expires_at = :expires WHERE message_id = :id"),
        {
            "guarantee": guarantee,
            "expires": None if expires is None else dialect.stored(utc_now() + expires),
            "id": message_id,
        },
    )
    return message_id


async def delivery(tx: AsyncConnection, message_id: int, status: str, member: str = "m-1", **columns: Any) -> int:
    """A delivery to that member with these columns. A due time or time of death is counted from now."""
    dialect = dialect_named(tx.dialect.name)
    notification_id = await tell(tx, message_id, member, status)
    columns = {"code": "X", "due": timedelta(), "epoch": 3, "attempts": 4, "finished_at": timedelta(), **columns}
    if status in ("READY", "SENDING"):
        columns |= {"code": None, "finished_at": None}
    stored = {
        name: dialect.stored(utc_now() + value) if isinstance(value, timedelta) else value for name, value in columns.items()
    }
    changes = ", ".join(f"{name} = :{name}" for name in stored)
    changed = await tx.execute(
        text(f"UPDATE bongsu_deliveries SET {changes} WHERE notification_id = :notification RETURNING delivery_id"),
        {**stored, "notification": notification_id},
    )
    return int(changed.scalar_one())


async def one_delivery(store: Store, status: str, guarantee: str = "at_least_once", expires: timedelta | None = None,
                       **columns: Any) -> int:  # fmt: skip
    async with store.write() as tx:
        return await delivery(tx, await message(tx, guarantee, expires), status, **columns)


async def column(store: Store, delivery_id: int, *names: str) -> Any:
    """What stands in these columns now: one value, or a tuple of them."""
    async with store.read() as connection:
        found = await connection.execute(
            text(f"SELECT {', '.join(names)} FROM bongsu_deliveries WHERE delivery_id = :id"), {"id": delivery_id}
        )
        row = found.one()
    return row[0] if len(names) == 1 else tuple(row)


async def failed_event(
    store: Store, error: str = "KeyError: 'x'", event_type: str = "x", died_at: datetime | None = None, **columns: Any
) -> UUID:
    event = Event(event_type=event_type)
    columns = {"attempts": 4, "claims": 2, "epoch": 9, "fanout_cursor": "1:m-7", **columns}
    async with store.write() as tx:
        await events.add(tx, [event])
        stored = event.event_id if store.dialect.name == "postgresql" else str(event.event_id)
        values = {**columns, "error": error, "died": store.dialect.stored(died_at or utc_now()), "id": stored}
        changes = ", ".join(f"{name} = :{name}" for name in columns)
        await tx.execute(
            text(f"""
                UPDATE bongsu_events SET status = 'FAILED', error = :error, finished_at = :died, {changes}
                WHERE event_id = :id"""),
            values,
        )
    return event.event_id
