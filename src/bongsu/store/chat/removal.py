"""Statements that remove chat: messages older than they are kept, and what an erased member was in and has sent.

A room never has a hole: retention removes its oldest messages and remembers where the rest begins, and a message of an
erased member stays in its place, without text and sender.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from bongsu.store.chat.rooms import count_change, lock_room, lock_rooms
from bongsu.store.core.query import MEMBER_ID, ROOM_ID, Row, Table, Transaction, as_uuid, fetch_one, in_both, same
from bongsu.store.retention import Cursor, Deleted

# --- retention --------------------------------------------------------------------------------------------------------

# The next $2 rooms after $1, by id, and whether the oldest message of each was sent before $3. Locks nothing.
FIND_ROOMS = same("""
    SELECT r.room_id, coalesce((
        SELECT m.sent_at < $3 FROM bongsu_chat_messages AS m WHERE m.room_id = r.room_id AND m.seq = r.first_seq), false)
        AS is_old
    FROM bongsu_chat_rooms AS r WHERE r.room_id > $1 ORDER BY r.room_id LIMIT $2""")

# The first $3 messages of the room ($1) from seq $2 on, and whether each was sent before $4. Run under the room's lock.
FIND_OLDEST = same("""
    SELECT seq, sender_id, sent_at < $4 AS is_old FROM bongsu_chat_messages
    WHERE room_id = $1 AND seq >= $2 ORDER BY seq LIMIT $3""")

# How far those of the members given ($2) who are in the room ($1) have read. Locks their rows, in the order of ids: what is
# read meanwhile waits. Run under the room's lock.
_LOCK_MEMBERS = in_both(
    lambda d: (
        f"""
    SELECT m.member_id, m.read_seq FROM bongsu_chat_members AS m
    WHERE m.room_id = $1 AND m.member_id IN (SELECT given.member_id FROM {d.table("given", MEMBER_ID, 2)})
    ORDER BY m.member_id {d.lock_row}"""
    )
)

_OWN = {"member_id": "text", "count": "integer"}

# Lowers how many own messages after their read marks the members given ($2) have in the room ($1). Their rows are locked.
_LOWER_OWN = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_chat_members AS m SET own_after_read = m.own_after_read - given.count
    FROM {d.table("given", _OWN, 2)} WHERE m.room_id = $1 AND m.member_id = given.member_id"""
    )
)

# Deletes the messages of the room ($1) before seq $2. Run under the room's lock.
_DELETE_BEFORE = same("DELETE FROM bongsu_chat_messages WHERE room_id = $1 AND seq < $2")

# Sets the seq ($2) that the room ($1) begins with. Run under the room's lock.
_SET_FIRST = same("UPDATE bongsu_chat_rooms SET first_seq = $2 WHERE room_id = $1")


async def delete_old_messages(tx: Transaction, after: Cursor, cutoff: datetime, limit: int) -> Deleted:
    """Delete the oldest messages of the next room that has old ones, up to the first that is kept.

    The unread counts follow: who has not read them loses them, and those of their own are no longer subtracted.
    """
    rows = await tx.fetch(FIND_ROOMS(UUID(int=0) if after is None else UUID(after), limit, cutoff))
    old = next((number for number, row in enumerate(rows) if row["is_old"]), None)
    if old is None:
        return Deleted(None if len(rows) < limit else str(rows[-1]["room_id"]))
    room_id = as_uuid(rows[old]["room_id"])
    deleted = await _delete_oldest(tx, room_id, cutoff, limit)
    # The same room again, if it may have more: behind the one before it.
    begin = (str(rows[old - 1]["room_id"]) if old else after or str(UUID(int=0))) if deleted == limit else str(room_id)
    return Deleted(begin, Counter({"chat messages": deleted}))


async def _delete_oldest(tx: Transaction, room_id: UUID, cutoff: datetime, limit: int) -> int:
    room = await lock_room(tx, room_id)
    if room is None:
        return 0
    rows = await tx.fetch(FIND_OLDEST(room_id, room.first_seq, limit, cutoff))
    kept = next((number for number, row in enumerate(rows) if not row["is_old"]), len(rows))
    if kept:
        first_kept = rows[kept - 1]["seq"] + 1
        await _forget_own(tx, room_id, rows[:kept])
        await tx.execute(_DELETE_BEFORE(room_id, first_kept), _SET_FIRST(room_id, first_kept))
    return kept


async def _forget_own(tx: Transaction, room_id: UUID, rows: Sequence[Row]) -> None:
    """These messages no longer count as their senders' own after the read mark."""
    senders = sorted({row["sender_id"] for row in rows if row["sender_id"] is not None})
    locked = await tx.fetch(_LOCK_MEMBERS(room_id, Table.of(MEMBER_ID, senders)))
    marks = {row["member_id"]: row["read_seq"] for row in locked}
    own = Counter(row["sender_id"] for row in rows if row["seq"] > marks.get(row["sender_id"], row["seq"]))
    if own:
        await tx.execute(_LOWER_OWN(room_id, Table(_OWN, sorted(own.items()))))


# The next $2 rooms after $1, by id, and whether each has been without members since before $3; one that never had a member,
# since its newest message or its creation. Locks nothing.
FIND_EMPTY = same("""
    SELECT r.room_id, coalesce(r.emptied_at, r.last_sent_at) < $3
        AND (SELECT 1 FROM bongsu_chat_members AS m WHERE m.room_id = r.room_id LIMIT 1) IS NULL AS is_empty
    FROM bongsu_chat_rooms AS r WHERE r.room_id > $1 ORDER BY r.room_id LIMIT $2""")

# One of the members of the room ($1), if there is one. Run under the room's lock.
_ANY_MEMBER = same("SELECT 1 AS one FROM bongsu_chat_members WHERE room_id = $1 LIMIT 1")

# Up to $2 messages of the room ($1), the oldest first, are deleted. Run under the room's lock.
DELETE_MESSAGES = same("""
    DELETE FROM bongsu_chat_messages WHERE room_id = $1 AND seq IN (
        SELECT x.seq FROM bongsu_chat_messages AS x WHERE x.room_id = $1 ORDER BY x.seq LIMIT $2)""")

# Deletes the room ($1), which is locked and has neither members nor messages.
_DELETE_ROOM = same("DELETE FROM bongsu_chat_rooms WHERE room_id = $1")


async def delete_empty_rooms(tx: Transaction, after: Cursor, cutoff: datetime, limit: int) -> Deleted:
    """Delete the next room that has been without members since before then, or so many of its messages."""
    rows = await tx.fetch(FIND_EMPTY(UUID(int=0) if after is None else UUID(after), limit, cutoff))
    empty = next((number for number, row in enumerate(rows) if row["is_empty"]), None)
    if empty is None:
        return Deleted(None if len(rows) < limit else str(rows[-1]["room_id"]))
    room_id = as_uuid(rows[empty]["room_id"])
    if await lock_room(tx, room_id) is None or await fetch_one(tx, _ANY_MEMBER(room_id)) is not None:
        return Deleted(str(room_id))
    (deleted,) = await tx.execute(DELETE_MESSAGES(room_id, limit))
    counts = Counter({"chat messages": deleted})
    if deleted == limit:
        # The same room again: behind the one before it.
        return Deleted(str(rows[empty - 1]["room_id"]) if empty else after or str(UUID(int=0)), counts)
    await tx.execute(_DELETE_ROOM(room_id))
    return Deleted(str(room_id), counts + Counter({"chat rooms": 1}))


# --- erasure ----------------------------------------------------------------------------------------------------------

# Up to $2 rooms that the member ($1) is in, by id. Locks nothing.
FIND_ROOMS_OF = in_both(
    lambda d: (
        f"""
    SELECT room_id FROM bongsu_chat_members {d.index_hint("bongsu_chat_members_rooms")}
    WHERE member_id = $1 ORDER BY room_id LIMIT $2"""
    )
)

# Removes the member ($1) from the rooms given ($2), which are locked.
LEAVE_ROOMS = in_both(
    lambda d: (
        f"""
    DELETE FROM bongsu_chat_members
    WHERE member_id = $1 AND room_id IN (SELECT given.room_id FROM {d.table("given", ROOM_ID, 2)})"""
    )
)

# Up to $2 messages of the sender ($1), by the index of senders. Locks nothing.
FIND_MESSAGES_OF = in_both(
    lambda d: (
        f"""
    SELECT room_id, seq FROM bongsu_chat_messages {d.index_hint("bongsu_chat_messages_client")}
    WHERE sender_id = $1 ORDER BY room_id LIMIT $2"""
    )
)

_SCRUBBED = {"room_id": "uuid", "seq": "bigint", "last_seq": "bigint"}

# Deletes text and sender of the messages given ($1), whose rooms are locked and have these last seqs: a change like any
# other deletion, which readers who come back are sent.
SCRUB = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_chat_messages AS m
    SET sender_id = NULL, client_message_id = NULL, message = NULL, deleted_at = coalesce(m.deleted_at, {d.now}),
        changed_seq = given.last_seq
    FROM {d.table("given", _SCRUBBED, 1)} WHERE m.room_id = given.room_id AND m.seq = given.seq"""
    )
)


@dataclass(frozen=True)
class ErasedChat:
    """The rooms that the member has left, how many messages have lost text and sender, and all rooms that have changed."""

    rooms: Sequence[UUID]
    messages: int
    changed_rooms: Sequence[UUID]


async def erase_chat(tx: Transaction, member_id: str, limit: int) -> ErasedChat:
    """Take a member out of up to so many rooms, and text and sender from up to so many of their messages.

    One that left no room and erased fewer messages than the limit was the last: a message could be sent between the search
    and the lock only to a room that was left then.
    """
    rooms = [as_uuid(row["room_id"]) for row in await tx.fetch(FIND_ROOMS_OF(member_id, limit))]
    messages = [(as_uuid(row["room_id"]), row["seq"]) for row in await tx.fetch(FIND_MESSAGES_OF(member_id, limit))]
    if not rooms and not messages:
        return ErasedChat((), 0, ())
    # All at once, in the order of ids: sends to several rooms lock them in the same order.
    locked = await lock_rooms(tx, [*rooms, *(room_id for room_id, _ in messages)])
    last = {room.room_id: room.last_seq for room in locked}
    _, scrubbed = await tx.execute(
        LEAVE_ROOMS(member_id, Table.of(ROOM_ID, rooms)),
        SCRUB(Table(_SCRUBBED, [(room_id, seq, last[room_id]) for room_id, seq in messages])),
    )
    await count_change(tx, *last)
    return ErasedChat(rooms, scrubbed, list(last))
