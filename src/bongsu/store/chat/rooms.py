"""Statements about chat rooms and who is in them: create, list, join, leave, read marks, mute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from bongsu.store.chat import LOCK_ROOMS
from bongsu.store.core.query import MEMBER_ID, ROOM_ID, Table, Transaction, as_uuid, fetch_one, in_both, same


@dataclass(frozen=True)
class LockedRoom:
    """A room whose row is locked until the transaction ends."""

    room_id: UUID
    first_seq: int
    last_seq: int
    # How often a message was changed, or a member has left.
    changes: int


@dataclass(frozen=True)
class RoomOfMember:
    """A room as one of its members sees it."""

    room_id: UUID
    name: str
    first_seq: int
    last_seq: int
    read_seq: int
    unread: int
    is_muted: bool
    last_sent_at: datetime


@dataclass(frozen=True)
class MemberOfRoom:
    member_id: str
    joined_at: datetime
    read_seq: int


@dataclass(frozen=True)
class ReadMark:
    """How far a member has read, and whether this call has moved it."""

    read_seq: int
    last_seq: int
    unread: int
    has_moved: bool


def count_unread(first_seq: int, last_seq: int, read_seq: int, own_after_read: int) -> int:
    """Messages of others after the read mark that are still there."""
    return last_seq - max(read_seq, first_seq - 1) - own_after_read


# --- rooms ------------------------------------------------------------------------------------------------------------

# Creates a room without messages. $1 id, $2 name.
_CREATE_ROOM = same("INSERT INTO bongsu_chat_rooms (room_id, name) VALUES ($1, $2)")

# Whether there is such a room ($1). Locks nothing.
_FIND_ROOM = same("SELECT 1 AS one FROM bongsu_chat_rooms WHERE room_id = $1")

# The rooms of a member ($1), those with the newest message first, and what their unread counts are computed from: one row of
# each, however many messages there are. Locks nothing.
ROOMS_OF_MEMBER = same("""
    SELECT r.room_id, r.name, r.first_seq, r.last_seq, r.last_sent_at, m.read_seq, m.own_after_read, m.is_muted
    FROM bongsu_chat_members AS m JOIN bongsu_chat_rooms AS r ON r.room_id = m.room_id
    WHERE m.member_id = $1 ORDER BY r.last_sent_at DESC, r.room_id DESC""")


async def create_room(tx: Transaction, room_id: UUID, name: str, member_ids: Sequence[str]) -> None:
    """Create a room with these members."""
    await tx.execute(_CREATE_ROOM(room_id, name))
    await add_members(tx, room_id, member_ids)


async def exists(tx: Transaction, room_id: UUID) -> bool:
    return await fetch_one(tx, _FIND_ROOM(room_id)) is not None


async def find_rooms(tx: Transaction, member_id: str) -> list[RoomOfMember]:
    return [
        RoomOfMember(
            room_id=as_uuid(row["room_id"]),
            name=row["name"],
            first_seq=row["first_seq"],
            last_seq=row["last_seq"],
            read_seq=row["read_seq"],
            unread=count_unread(row["first_seq"], row["last_seq"], row["read_seq"], row["own_after_read"]),
            is_muted=bool(row["is_muted"]),
            last_sent_at=tx.dialect.time(row["last_sent_at"]),
        )
        for row in await tx.fetch(ROOMS_OF_MEMBER(member_id))
    ]


async def lock_room(tx: Transaction, room_id: UUID) -> LockedRoom | None:
    """Lock one room, if there is such a one: then no member joins, leaves, sends or changes a message there."""
    locked = await lock_rooms(tx, [room_id])
    return locked[0] if locked else None


async def lock_rooms(tx: Transaction, room_ids: Sequence[UUID]) -> list[LockedRoom]:
    rows = await tx.fetch(LOCK_ROOMS(Table.of(ROOM_ID, room_ids)))
    return [LockedRoom(as_uuid(row["room_id"]), row["first_seq"], row["last_seq"], row["changes"]) for row in rows]


# Counts a change in each of the rooms given ($1): a message was edited or deleted, or a member has left. If none is left,
# notes since when the room is empty. They are locked.
_COUNT_CHANGE = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_chat_rooms AS r
    SET changes = r.changes + 1, emptied_at = CASE
        WHEN (SELECT 1 FROM bongsu_chat_members AS m WHERE m.room_id = r.room_id LIMIT 1) IS NULL
        THEN coalesce(r.emptied_at, {d.now}) END
    FROM {d.table("given", ROOM_ID, 1)} WHERE r.room_id = given.room_id"""
    )
)


async def count_change(tx: Transaction, *room_ids: UUID) -> None:
    """Let gateways know, with the next message at the latest, that something has changed in these locked rooms."""
    await tx.execute(_COUNT_CHANGE(Table.of(ROOM_ID, room_ids)))


# --- members of a room ------------------------------------------------------------------------------------------------

# Whether the member ($2) is in the room ($1). Locks nothing.
_FIND_MEMBER = same("SELECT 1 AS one FROM bongsu_chat_members WHERE room_id = $1 AND member_id = $2")

# Adds the members given ($2) that are not in the room ($1) yet, as having read all that is there; returns those it added.
# Run under the room's lock.
_ADD_MEMBERS = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_chat_members (room_id, member_id, read_seq)
    SELECT r.room_id, given.member_id, r.last_seq
    FROM {d.table("given", MEMBER_ID, 2)} CROSS JOIN bongsu_chat_rooms AS r WHERE r.room_id = $1
    ON CONFLICT DO NOTHING RETURNING member_id"""
    )
)

# Notes that the room ($1) is not empty any more. Run under the room's lock.
_NOT_EMPTY = same("UPDATE bongsu_chat_rooms SET emptied_at = NULL WHERE room_id = $1 AND emptied_at IS NOT NULL")

# Removes a member ($2) from the room ($1); returns a row if there was one. Run under the room's lock.
_REMOVE_MEMBER = same("DELETE FROM bongsu_chat_members WHERE room_id = $1 AND member_id = $2 RETURNING member_id")

# One of the members given ($1) who is in $2 rooms or more, if there is one. Looks at that many rooms of each at most, and
# locks nothing.
FIND_FULL_MEMBER = in_both(
    lambda d: (
        f"""
    SELECT given.member_id FROM {d.table("given", MEMBER_ID, 1)}
    WHERE (SELECT count(*) FROM (
        SELECT 1 FROM bongsu_chat_members AS m WHERE m.member_id = given.member_id LIMIT $2) AS joined) >= $2
    LIMIT 1"""
    )
)

# The next $3 members of the room ($1) after $2, by id. Locks nothing.
MEMBERS_OF_ROOM = same("""
    SELECT member_id, joined_at, read_seq FROM bongsu_chat_members
    WHERE room_id = $1 AND member_id > $2 ORDER BY member_id LIMIT $3""")

# Sets whether the member ($2) has muted the room ($1). Locks that one row.
_SET_MUTED = same("UPDATE bongsu_chat_members SET is_muted = $3 WHERE room_id = $1 AND member_id = $2")


async def is_member(tx: Transaction, room_id: UUID, member_id: str) -> bool:
    return await fetch_one(tx, _FIND_MEMBER(room_id, member_id)) is not None


async def add_members(tx: Transaction, room_id: UUID, member_ids: Sequence[str]) -> list[str]:
    """Add those who are not in the locked room yet; return them."""
    if not member_ids:
        return []
    given = Table.of(MEMBER_ID, member_ids)
    return [row["member_id"] for row in await tx.fetch(_NOT_EMPTY(room_id), _ADD_MEMBERS(room_id, given))]


async def remove_member(tx: Transaction, room_id: UUID, member_id: str) -> bool:
    """Remove one from the locked room; return whether they were in it."""
    return bool(await tx.fetch(_REMOVE_MEMBER(room_id, member_id)))


async def find_full_member(tx: Transaction, member_ids: Sequence[str], limit: int) -> str | None:
    """One of these who is in so many rooms already."""
    row = await fetch_one(tx, FIND_FULL_MEMBER(Table.of(MEMBER_ID, member_ids), limit))
    return None if row is None else str(row["member_id"])


async def find_members(tx: Transaction, room_id: UUID, after: str, limit: int) -> list[MemberOfRoom]:
    return [
        MemberOfRoom(row["member_id"], tx.dialect.time(row["joined_at"]), row["read_seq"])
        for row in await tx.fetch(MEMBERS_OF_ROOM(room_id, after, limit))
    ]


async def set_muted(tx: Transaction, room_id: UUID, member_id: str, is_muted: bool) -> bool:
    """Return whether the member is in the room."""
    (changed,) = await tx.execute(_SET_MUTED(room_id, member_id, is_muted))
    return bool(changed)


# --- read marks -------------------------------------------------------------------------------------------------------

# Locks the row of a member ($2) in the room ($1): no other transaction moves their read mark or counts their messages.
_LOCK_MEMBER = in_both(
    lambda d: (
        f"""
    SELECT read_seq, own_after_read FROM bongsu_chat_members WHERE room_id = $1 AND member_id = $2 {d.lock_row}"""
    )
)

# The first and last seq of the room ($1). Locks nothing: run under the member's lock it shows all their own messages.
_FIND_ENDS = same("SELECT first_seq, last_seq FROM bongsu_chat_rooms WHERE room_id = $1")

# How many messages of the room ($1) after seq $3 and up to $4 are the member's own ($2), by the key.
COUNT_OWN = in_both(
    lambda d: (
        f"""
    SELECT count(*) AS count FROM bongsu_chat_messages {d.index_hint("sqlite_autoindex_bongsu_chat_messages_1")}
    WHERE room_id = $1 AND seq > $3 AND seq <= $4 AND sender_id = $2"""
    )
)

# Moves the read mark. Run under the lock of the row. $1 room, $2 member, $3 the mark, $4 own messages after it.
_MOVE_MARK = same("""
    UPDATE bongsu_chat_members SET read_seq = $3, own_after_read = $4 WHERE room_id = $1 AND member_id = $2""")


async def mark_read(tx: Transaction, room_id: UUID, member_id: str, seq: int) -> ReadMark | None:
    """Move the read mark forward, to the last message at most; None if the member is not in the room.

    Counting own messages goes through the shorter of the two parts, what was read now and what is left: a mark only moves
    forward, so what was read is counted once, and nothing is counted by who reads to the end.
    """
    member = await fetch_one(tx, _LOCK_MEMBER(room_id, member_id))
    if member is None:
        return None
    (room,) = await tx.fetch(_FIND_ENDS(room_id))
    first, last = room["first_seq"], room["last_seq"]
    mark, own = max(member["read_seq"], first - 1), member["own_after_read"]
    wanted = min(seq, last)
    if wanted <= mark:
        read_seq = member["read_seq"]
        return ReadMark(read_seq, last, count_unread(first, last, read_seq, own), has_moved=False)
    if wanted - mark <= last - wanted:
        own -= await _count_own(tx, room_id, member_id, mark, wanted)
    else:
        own = await _count_own(tx, room_id, member_id, wanted, last) if wanted < last else 0
    await tx.execute(_MOVE_MARK(room_id, member_id, wanted, own))
    return ReadMark(wanted, last, count_unread(first, last, wanted, own), has_moved=True)


async def _count_own(tx: Transaction, room_id: UUID, member_id: str, after: int, until: int) -> int:
    (row,) = await tx.fetch(COUNT_OWN(room_id, member_id, after, until))
    return int(row["count"])
