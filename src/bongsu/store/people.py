"""Statements about members: who they are, what they want, what they can be reached by, what they did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import (
    Action,
    Behavior,
    Channel,
    Device,
    DeviceStatus,
    Member,
    Platform,
    Preferences,
    Product,
    QuietHours,
    TypePreference,
)
from bongsu.store.databases import dialect_named
from bongsu.store.decisions import BITS, as_bits
from bongsu.store.dialect import Dialect

# Rows of one statement; more would only make a longer text.
STATEMENT_ROWS = 1_000


# --- members ----------------------------------------------------------------------------------------------------------


async def mention(tx: AsyncConnection, member_ids: Sequence[str]) -> None:
    """Let members come into being who were not known so far. In the order of their ids, so that rivals do not lock up."""
    dialect = dialect_named(tx.dialect.name)
    columns = {"member_id": "text"}
    ids = sorted(set(member_ids))
    for start in range(0, len(ids), STATEMENT_ROWS):
        rows = [(one,) for one in ids[start : start + STATEMENT_ROWS]]
        await tx.exec_driver_sql(
            f"INSERT INTO bongsu_members (member_id) SELECT member_id FROM {dialect.table(columns)} WHERE true "
            f"{dialect.in_lock_order} ON CONFLICT DO NOTHING",
            tuple(dialect.parameters(columns, rows)),
        )


async def put_member(tx: AsyncConnection, member_id: str, member: Member) -> None:
    """What is left out is no longer known."""
    await tx.execute(
        text("""
            INSERT INTO bongsu_members (member_id, locale, timezone, email, phone)
            VALUES (:member_id, :locale, :timezone, :email, :phone)
            ON CONFLICT (member_id) DO UPDATE
            SET locale = excluded.locale, timezone = excluded.timezone, email = excluded.email, phone = excluded.phone"""),
        {"member_id": member_id, **member.model_dump()},
    )


async def find_member(connection: AsyncConnection, member_id: str) -> Member | None:
    found = await connection.execute(
        text("SELECT locale, timezone, email, phone FROM bongsu_members WHERE member_id = :member_id"),
        {"member_id": member_id},
    )
    row = found.one_or_none()
    return None if row is None else Member.model_construct(locale=row[0], timezone=row[1], email=row[2], phone=row[3])


# --- preferences ------------------------------------------------------------------------------------------------------


async def put_preferences(tx: AsyncConnection, member_id: str, wish: Preferences) -> None:
    """The whole of a member's wishes; what was wished before is forgotten."""
    await mention(tx, [member_id])
    quiet = wish.quiet_hours
    await tx.execute(
        text("""
            UPDATE bongsu_members SET is_enabled = :is_enabled, quiet_start = :quiet_start, quiet_end = :quiet_end
            WHERE member_id = :member_id"""),
        {
            "member_id": member_id,
            "is_enabled": wish.enabled,
            "quiet_start": quiet and minute_of_day(quiet.start),
            "quiet_end": quiet and minute_of_day(quiet.end),
        },
    )
    await tx.execute(text("DELETE FROM bongsu_preferences WHERE member_id = :member_id"), {"member_id": member_id})
    for name, one in sorted(wish.types.items()):
        await tx.execute(
            text("INSERT INTO bongsu_preferences VALUES (:member_id, :type, :is_enabled, :channels)"),
            {
                "member_id": member_id,
                "type": name,
                "is_enabled": one.enabled,
                "channels": None if one.channels is None else as_bits(one.channels),
            },
        )


async def find_preferences(connection: AsyncConnection, member_id: str) -> Preferences:
    """A member who never said anything wants everything, always."""
    found = await connection.execute(
        text("""
            SELECT m.is_enabled, m.quiet_start, m.quiet_end, p.type, p.is_enabled, p.channels
            FROM bongsu_members m LEFT JOIN bongsu_preferences p ON p.member_id = m.member_id
            WHERE m.member_id = :member_id ORDER BY p.type"""),
        {"member_id": member_id},
    )
    rows = found.all()
    if not rows:
        return Preferences()
    is_enabled, start, end = rows[0][:3]
    quiet = None if start is None else QuietHours(start=clock_time(start), end=clock_time(end))
    types = {row[3]: TypePreference(enabled=bool(row[4]), channels=_channels(row[5])) for row in rows if row[3] is not None}
    return Preferences(enabled=bool(is_enabled), types=types, quiet_hours=quiet)


def _channels(bits: int | None) -> frozenset[Channel] | None:
    return None if bits is None else frozenset(channel for channel, bit in BITS.items() if bits & bit)


def minute_of_day(text_of_time: str) -> int:
    hours, minutes = text_of_time.split(":")
    return int(hours) * 60 + int(minutes)


def clock_time(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


# --- devices ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeviceRow:
    device_id: str
    device: Device
    status: DeviceStatus
    updated_at: datetime


async def put_device(tx: AsyncConnection, member_id: str, device_id: str, device: Device) -> None:
    """Register a device, or refresh its token. A token is one device's: wherever else it was, it is no more."""
    dialect = dialect_named(tx.dialect.name)
    await mention(tx, [member_id])
    await dialect.serialise(tx, f"token {device.token}")
    values = {
        "member_id": member_id,
        "device_id": device_id,
        "token": device.token,
        "platform": device.platform.value,
        "has_consent": device.push_consent,
    }
    await tx.execute(
        text("DELETE FROM bongsu_devices WHERE token = :token AND NOT (member_id = :member_id AND device_id = :device_id)"),
        values,
    )
    await tx.execute(
        text(f"""
            INSERT INTO bongsu_devices (member_id, device_id, token, platform, has_consent)
            VALUES (:member_id, :device_id, :token, :platform, :has_consent)
            ON CONFLICT (member_id, device_id) DO UPDATE
            SET token = excluded.token, platform = excluded.platform, has_consent = excluded.has_consent,
                status = 'ACTIVE', updated_at = {dialect.now}"""),
        values,
    )


async def find_devices(connection: AsyncConnection, member_id: str) -> list[DeviceRow]:
    dialect = dialect_named(connection.dialect.name)
    rows = await connection.execute(
        text("""
            SELECT device_id, token, platform, has_consent, status, updated_at FROM bongsu_devices
            WHERE member_id = :member_id ORDER BY device_id"""),
        {"member_id": member_id},
    )
    return [
        DeviceRow(
            row[0],
            Device.model_construct(token=row[1], platform=Platform(row[2]), push_consent=bool(row[3])),
            DeviceStatus(row[4]),
            dialect.moment(row[5]),
        )
        for row in rows
    ]


async def remove_device(tx: AsyncConnection, member_id: str, device_id: str) -> bool:
    removed = await tx.execute(
        text("DELETE FROM bongsu_devices WHERE member_id = :member_id AND device_id = :device_id"),
        {"member_id": member_id, "device_id": device_id},
    )
    return bool(removed.rowcount)


# --- products and what was done with them -------------------------------------------------------------------------------


async def put_product(tx: AsyncConnection, product_id: str, product: Product) -> None:
    dialect = dialect_named(tx.dialect.name)
    await tx.execute(
        text(f"""
            INSERT INTO bongsu_products (product_id, name, price, stock) VALUES (:product_id, :name, :price, :stock)
            ON CONFLICT (product_id) DO UPDATE
            SET name = excluded.name, price = excluded.price, stock = excluded.stock, updated_at = {dialect.now}"""),
        {"product_id": product_id, **product.model_dump()},
    )


async def find_product(connection: AsyncConnection, product_id: str) -> Product | None:
    query = text("SELECT name, price, stock FROM bongsu_products WHERE product_id = :product_id")
    row = (await connection.execute(query, {"product_id": product_id})).one_or_none()
    return None if row is None else Product.model_construct(name=row[0], price=row[1], stock=row[2])


_BEHAVIOR = {"product_id": "text", "member_id": "text", "action": "text", "at": "timestamptz"}


async def add_behaviors(tx: AsyncConnection, behaviors: Sequence[Behavior]) -> None:
    """Keep the newest of each member, product and action, in whatever order they come."""
    dialect = dialect_named(tx.dialect.name)
    newest: dict[tuple[str, str, Action], datetime] = {}
    for one in behaviors:
        key = one.product_id, one.user_id, one.action
        newest[key] = max(one.at, newest.get(key, one.at))
    await mention(tx, [member_id for _, member_id, _ in newest])
    rows = sorted((product_id, member_id, action.value, at) for (product_id, member_id, action), at in newest.items())
    for start in range(0, len(rows), STATEMENT_ROWS):
        await _upsert_behaviors(tx, dialect, rows[start : start + STATEMENT_ROWS])


async def _upsert_behaviors(tx: AsyncConnection, dialect: Dialect, rows: Sequence[tuple[Any, ...]]) -> None:
    await tx.exec_driver_sql(
        f"""
        INSERT INTO bongsu_behaviors ({", ".join(_BEHAVIOR)})
        SELECT {", ".join(_BEHAVIOR)} FROM {dialect.table(_BEHAVIOR)} WHERE true
        ON CONFLICT (product_id, member_id, action)
        DO UPDATE SET at = excluded.at WHERE excluded.at > bongsu_behaviors.at""",
        tuple(dialect.parameters(_BEHAVIOR, rows)),
    )
