"""Statements about members: who they are, how they are addressed, and which notifications they want."""

from __future__ import annotations

from collections.abc import Iterable

from bongsu.model import Member, Preferences, QuietHours, TypePreference
from bongsu.model.channels import Address, ChannelSpec, from_bits, to_bits
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import MEMBER_ID, Statement, Table, Transaction, fetch_one, in_both, same
from bongsu.store.core.sqlite import SQLITE

# --- members ----------------------------------------------------------------------------------------------------------


# Inserts the members that are missing. In id order (byte by byte, as the column compares), so that two callers who insert
# the same ids cannot deadlock.
_ENSURE_MEMBERS = Statement(
    postgres=f"""
        INSERT INTO bongsu_members (member_id)
        SELECT given.member_id FROM {POSTGRES.table("given", MEMBER_ID, 1)}
        ORDER BY given.member_id COLLATE "C"
        ON CONFLICT DO NOTHING""",
    sqlite=f"""
        INSERT INTO bongsu_members (member_id)
        SELECT given.member_id FROM {SQLITE.table("given", MEMBER_ID, 1)} WHERE true
        ON CONFLICT DO NOTHING""",
)

# Creates the member or replaces the four columns. Locks the member's row.
_PUT_MEMBER = same("""
    INSERT INTO bongsu_members (member_id, locale, timezone, email, phone)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (member_id) DO UPDATE
    SET locale = excluded.locale, timezone = excluded.timezone, email = excluded.email, phone = excluded.phone""")

_ADDRESS = {"channel": "text", "address": "text"}

# Removes the member's addresses for channels of apps. Run under the member's lock.
_REMOVE_ADDRESSES = same("DELETE FROM bongsu_addresses WHERE member_id = $1")

# Adds addresses of a member who has none. Run under the member's lock.
_ADD_ADDRESSES = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_addresses (member_id, channel, address)
    SELECT CAST($1 AS text), given.channel, given.address FROM {d.table("given", _ADDRESS, 2)}"""
    )
)

# One row per address for a channel of an app; a member without any is one row without a channel.
_FIND_MEMBER = same("""
    SELECT m.locale, m.timezone, m.email, m.phone, a.channel, a.address
    FROM bongsu_members m
    LEFT JOIN bongsu_addresses a ON a.member_id = m.member_id
    WHERE m.member_id = $1
    ORDER BY a.channel""")

# One member that is not among those given, or none. Locks nothing. $1 the given members.
_FIND_OTHER_MEMBER = in_both(
    lambda d: (
        f"""
    SELECT member_id FROM bongsu_members
    WHERE member_id NOT IN (SELECT given.member_id FROM {d.table("given", MEMBER_ID, 1)}) LIMIT 1"""
    )
)


async def ensure_members(tx: Transaction, member_ids: Iterable[str]) -> None:
    """Insert the members that are not stored yet, with no address and default preferences."""
    if ids := sorted(set(member_ids)):
        await tx.execute(_ENSURE_MEMBERS(Table.of(MEMBER_ID, ids)))


async def put_member(tx: Transaction, member_id: str, member: Member) -> None:
    """Create or replace: fields that are left out become unknown. Preferences and devices stay."""
    addresses = sorted(member.addresses.items())
    await tx.execute(
        _PUT_MEMBER(member_id, member.locale, member.timezone, member.email, member.phone),
        _REMOVE_ADDRESSES(member_id),
        *([_ADD_ADDRESSES(member_id, Table(_ADDRESS, addresses))] if addresses else []),
    )


async def find_member(tx: Transaction, member_id: str) -> Member | None:
    rows = await tx.fetch(_FIND_MEMBER(member_id))
    if not rows:
        return None
    known = {name: rows[0][name] for name in ("locale", "timezone", "email", "phone")}
    addresses = {row["channel"]: row["address"] for row in rows if row["channel"] is not None}
    return Member.model_construct(**known, addresses=addresses)


async def find_other_member(tx: Transaction, member_ids: Iterable[str]) -> str | None:
    """The id of some member who is not among these."""
    row = await fetch_one(tx, _FIND_OTHER_MEMBER(Table.of(MEMBER_ID, member_ids)))
    return None if row is None else str(row["member_id"])


def address_of(member: Member, channel: ChannelSpec) -> str | None:
    """The member's one address on a channel that has such."""
    match channel.address:
        case Address.EMAIL:
            return member.email
        case Address.PHONE:
            return member.phone
        case Address.OWN:
            return member.addresses.get(channel.name)
    return None


# --- preferences ------------------------------------------------------------------------------------------------------

_TYPES = {"type": "text", "is_enabled": "boolean", "channels": "integer"}

# Creates the member or replaces what applies to all types. Locks the member's row, so that the types of two concurrent
# calls cannot mix.
_PUT_GENERAL = same("""
    INSERT INTO bongsu_members (member_id, is_enabled, quiet_start, quiet_end)
    VALUES ($1, $2, $3, $4)
    ON CONFLICT (member_id) DO UPDATE
    SET is_enabled = excluded.is_enabled, quiet_start = excluded.quiet_start, quiet_end = excluded.quiet_end""")

# Removes the preferences of every type. Run under the member's lock.
_REMOVE_TYPES = same("DELETE FROM bongsu_preferences WHERE member_id = $1")

# Adds preferences of types that have none. Run under the member's lock.
_ADD_TYPES = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_preferences (member_id, type, is_enabled, channels)
    SELECT CAST($1 AS text), given.type, given.is_enabled, given.channels
    FROM {d.table("given", _TYPES, 2)}"""
    )
)

# One row per type with a preference of its own; a member without any is one row without a type.
_FIND_PREFERENCES = same("""
    SELECT m.is_enabled, m.quiet_start, m.quiet_end,
           p.type, p.is_enabled AS type_is_enabled, p.channels AS type_channels
    FROM bongsu_members m
    LEFT JOIN bongsu_preferences p ON p.member_id = m.member_id
    WHERE m.member_id = $1
    ORDER BY p.type""")


async def put_preferences(tx: Transaction, member_id: str, preferences: Preferences) -> None:
    """Replace all preferences of a member, who is created if unknown."""
    quiet = preferences.quiet_hours
    start = None if quiet is None else minute_of_day(quiet.start)
    end = None if quiet is None else minute_of_day(quiet.end)
    types = [
        (name, preference.enabled, None if preference.channels is None else to_bits(preference.channels))
        for name, preference in sorted(preferences.types.items())
    ]
    await tx.execute(
        _PUT_GENERAL(member_id, preferences.enabled, start, end),
        _REMOVE_TYPES(member_id),
        _ADD_TYPES(member_id, Table(_TYPES, types)),
    )


async def find_preferences(tx: Transaction, member_id: str) -> Preferences:
    """A member without preferences wants everything at any hour."""
    rows = await tx.fetch(_FIND_PREFERENCES(member_id))
    if not rows:
        return Preferences()
    first = rows[0]
    quiet = None
    if first["quiet_start"] is not None:
        quiet = QuietHours(start=clock_time(first["quiet_start"]), end=clock_time(first["quiet_end"]))
    types = {
        row["type"]: TypePreference(enabled=bool(row["type_is_enabled"]), channels=_channels(row["type_channels"]))
        for row in rows
        if row["type"] is not None
    }
    return Preferences(enabled=bool(first["is_enabled"]), types=types, quiet_hours=quiet)


def _channels(bits: int | None) -> frozenset[str] | None:
    return None if bits is None else frozenset(from_bits(bits))


def minute_of_day(clock: str) -> int:
    """Minutes since midnight of a time written as HH:MM."""
    hours, minutes = clock.split(":")
    return int(hours) * 60 + int(minutes)


def clock_time(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"
