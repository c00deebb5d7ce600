"""Statements about devices: the push tokens of a member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bongsu.model import Device, DeviceStatus, Platform
from bongsu.store.core.locks import lock_names
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import Statement, Table, Transaction, in_both, same
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.members import ensure_members

# Whether a push may be sent to a device (alias d): its token is not known to be invalid, and its owner consents.
USABLE_DEVICE = "d.status = 'ACTIVE' AND d.has_consent"


@dataclass(frozen=True)
class DeviceRow:
    device_id: str
    device: Device
    status: DeviceStatus
    updated_at: datetime


# How many devices a member has, if BONGSU_MAX_DEVICES does not say.
MAX_DEVICES = 20


# Locks a member ($1) against being erased. Before the devices, as an erasure does: a new device would else lock the member
# after them, and the two could deadlock.
_KEEP_MEMBER = Statement(
    postgres="SELECT 1 AS one FROM bongsu_members WHERE member_id = $1 FOR KEY SHARE",
    sqlite="SELECT 1 AS one WHERE $1 <> ''",
)

# Locks the device that has a token and all devices of a member, in the order of their keys: two registrations that exchange
# tokens, or replace each other's devices, cannot deadlock. $1 token, $2 member.
_LOCK_DEVICES = in_both(
    lambda d: (
        f"""
    SELECT member_id, device_id FROM bongsu_devices WHERE token = $1 OR member_id = $2
    ORDER BY member_id, device_id {d.lock_row}"""
    )
)

# A token belongs to one device: removes it from every other. Their rows are locked.
_REMOVE_TOKEN_ELSEWHERE = same("""
    DELETE FROM bongsu_devices WHERE token = $1 AND NOT (member_id = $2 AND device_id = $3)""")

# Creates the device or replaces it; registering again makes an invalid device usable. Locks the device's row.
_PUT_DEVICE = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_devices (member_id, device_id, token, platform, has_consent)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (member_id, device_id) DO UPDATE
    SET token = excluded.token, platform = excluded.platform, has_consent = excluded.has_consent,
        status = 'ACTIVE', updated_at = {d.now}"""
    )
)

# Removes the devices of a member that are too many: those whose token is invalid, then those registered longest ago. Their
# rows are locked. $1 member, $2 the device that stays, $3 how many there may be with it.
_REMOVE_OLDEST = same("""
    DELETE FROM bongsu_devices
    WHERE member_id = $1 AND device_id IN (
        SELECT others.device_id FROM (
            SELECT device_id, row_number() OVER (
                ORDER BY CASE status WHEN 'ACTIVE' THEN 0 ELSE 1 END, updated_at DESC, device_id) AS position
            FROM bongsu_devices WHERE member_id = $1 AND device_id <> $2) AS others
        WHERE others.position >= $3)""")

# All devices of a member, usable or not.
_FIND_DEVICES = same("""
    SELECT device_id, token, platform, has_consent, status, updated_at
    FROM bongsu_devices WHERE member_id = $1 ORDER BY device_id""")

# Removes one device of a member. Locks its row.
_REMOVE_DEVICE = same("DELETE FROM bongsu_devices WHERE member_id = $1 AND device_id = $2")


async def put_device(
    tx: Transaction, member_id: str, device_id: str, device: Device, max_devices: int = MAX_DEVICES
) -> None:
    """Register a device, or refresh its token. The token is taken from whichever device had it before; a device too many
    replaces the one that was registered longest ago."""
    await ensure_members(tx, [member_id])
    # Two devices that register one token at the same time would both find it free, and one would violate its uniqueness; two
    # new devices of one member would not see each other, and both be added.
    names = [f"token {device.token}", f"devices {member_id}"]
    await tx.fetch(lock_names(names), _KEEP_MEMBER(member_id), _LOCK_DEVICES(device.token, member_id))
    await tx.execute(
        _REMOVE_TOKEN_ELSEWHERE(device.token, member_id, device_id),
        _PUT_DEVICE(member_id, device_id, device.token, device.platform.value, device.push_consent),
        _REMOVE_OLDEST(member_id, device_id, max_devices),
    )


async def find_devices(tx: Transaction, member_id: str) -> list[DeviceRow]:
    return [
        DeviceRow(
            row["device_id"],
            Device.model_construct(
                token=row["token"], platform=Platform(row["platform"]), push_consent=bool(row["has_consent"])
            ),
            DeviceStatus(row["status"]),
            tx.dialect.time(row["updated_at"]),
        )
        for row in await tx.fetch(_FIND_DEVICES(member_id))
    ]


async def remove_device(tx: Transaction, member_id: str, device_id: str) -> bool:
    """Whether there was one."""
    (removed,) = await tx.execute(_REMOVE_DEVICE(member_id, device_id))
    return bool(removed)


# --- stale ------------------------------------------------------------------------------------------------------------

_DEVICE = {"member_id": "text", "device_id": "text"}

# The next $3 devices behind member $1, device $2, by their key, and whether each was registered last before $4. Locks
# nothing.
FIND_STALE = same("""
    SELECT member_id, device_id, updated_at < $4 AS is_stale FROM bongsu_devices
    WHERE (member_id, device_id) > ($1, $2) ORDER BY member_id, device_id LIMIT $3""")

# Delete those of the devices given that were registered last before $2. Locks them; skips locked ones, which are being
# registered.
REMOVE_STALE = Statement(
    postgres=f"""
        DELETE FROM bongsu_devices WHERE (member_id, device_id) IN (
            SELECT one.member_id, one.device_id FROM {POSTGRES.table("given", _DEVICE, 1)}
            CROSS JOIN LATERAL (
                SELECT d.member_id, d.device_id FROM bongsu_devices AS d
                WHERE d.member_id = given.member_id AND d.device_id = given.device_id AND d.updated_at < $2
                FOR UPDATE SKIP LOCKED) AS one)""",
    sqlite=f"""
        DELETE FROM bongsu_devices
        WHERE (member_id, device_id) IN (SELECT given.member_id, given.device_id FROM {SQLITE.table("given", _DEVICE, 1)})
          AND updated_at < $2""",
)


@dataclass(frozen=True)
class StalePage:
    """How many devices were looked at, the keys of the stale ones, and the last key; None if there are no more."""

    looked_at: int
    stale: Sequence[tuple[str, str]]
    last: tuple[str, str] | None


async def find_stale(tx: Transaction, after: Sequence[str], cutoff: datetime, limit: int) -> StalePage:
    rows = await tx.fetch(FIND_STALE(*after, limit, cutoff))
    stale = [(row["member_id"], row["device_id"]) for row in rows if row["is_stale"]]
    last = (rows[-1]["member_id"], rows[-1]["device_id"]) if len(rows) == limit else None
    return StalePage(len(rows), stale, last)


async def remove_stale(tx: Transaction, keys: Sequence[tuple[str, str]], cutoff: datetime) -> int:
    """Remove those of these devices that were not registered again meanwhile; return how many."""
    return sum(await tx.execute(REMOVE_STALE(Table(_DEVICE, keys), cutoff))) if keys else 0
