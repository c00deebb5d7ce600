"""Statements about chat messages: store a batch in the order of each room, change one, read by seq."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from bongsu.store.chat import LOCK_ROOMS, ChatMessage, read_message
from bongsu.store.core.query import ROOM_ID, Table, Transaction, as_uuid, fetch_one, in_both, same

# --- sending ----------------------------------------------------------------------------------------------------------


class NewMessage(NamedTuple):
    """What a member sends. `client_message_id` is the sender's own name for it, by which a repeated send is recognised."""

    room_id: UUID
    sender_id: str
    client_message_id: str
    message: str


@dataclass(frozen=True, slots=True)
class Stored:
    """The message as it is stored, and how many changes the room had then. `is_new` unless its clientMessageId was stored
    before."""

    message: ChatMessage
    is_new: bool
    changes: int


class NotAMember(NamedTuple):
    """The sender is not in the room, or there is no such room. Nothing was stored."""

    room_id: UUID
    sender_id: str


_COLUMNS = "room_id, seq, sender_id, client_message_id, message, sent_at, edited_at, deleted_at"
_SEND = {"number": "integer", "room_id": "uuid", "sender_id": "text", "client_message_id": "text"}
_NEW = {"room_id": "uuid", "seq": "bigint", "sender_id": "text", "client_message_id": "text", "message": "text"}
_LAST = {"room_id": "uuid", "last_seq": "bigint"}
_SENT = {"room_id": "uuid", "member_id": "text", "count": "integer"}

# For each of the messages given ($1): whether its sender is in the room; the message with this clientMessageId, if it is
# stored; and the time. Not when the transaction began, which may have waited for the room's lock: times follow the seqs. Run
# under the rooms' locks.
LOOK_UP = in_both(
    lambda d: (
        f"""
    SELECT given.number, m.member_id IS NOT NULL AS is_member, {d.clock} AS now,
           given.room_id, x.seq, given.sender_id, given.client_message_id, x.message, x.sent_at, x.edited_at, x.deleted_at
    FROM {d.table("given", _SEND, 1)}
    LEFT JOIN bongsu_chat_members AS m ON m.room_id = given.room_id AND m.member_id = given.sender_id
    LEFT JOIN bongsu_chat_messages AS x ON x.sender_id = given.sender_id AND x.room_id = given.room_id
        AND x.client_message_id = given.client_message_id"""
    )
)

# Stores the messages given ($1), sent at $2. Run under the rooms' locks, under which their seqs were given.
_INSERT = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_chat_messages (room_id, seq, sender_id, client_message_id, message, sent_at)
    SELECT given.room_id, given.seq, given.sender_id, given.client_message_id, given.message, CAST($2 AS timestamptz)
    FROM {d.table("given", _NEW, 1)}"""
    )
)

# Sets the last seq of the rooms given ($1) and when it was sent ($2), and marks them to be looked at for pushes (pushes.py),
# from that time on unless it is after pushes to many. They are locked.
_SET_LAST = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_chat_rooms AS r SET last_seq = given.last_seq, last_sent_at = CAST($2 AS timestamptz),
        push_due = CASE WHEN r.push_from > CAST($2 AS timestamptz)
                        THEN CASE WHEN r.push_due < r.push_from THEN r.push_due ELSE r.push_from END
                        WHEN r.push_due < CAST($2 AS timestamptz) THEN r.push_due ELSE CAST($2 AS timestamptz) END
    FROM {d.table("given", _LAST, 1)} WHERE r.room_id = given.room_id"""
    )
)

# Counts the messages that each sender given ($1) has sent now: they come after the sender's read mark. Locks the senders'
# rows; a transaction that locks several of a room's has locked the room.
_COUNT_SENT = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_chat_members AS m SET own_after_read = m.own_after_read + given.count
    FROM {d.table("given", _SENT, 1)} WHERE m.room_id = given.room_id AND m.member_id = given.member_id"""
    )
)


async def add_messages(tx: Transaction, sends: Sequence[NewMessage]) -> list[Stored | NotAMember]:
    """Store messages, each with the next seq of its room in the order given; return what became of each.

    One that was stored before, here or earlier in the batch, is not stored again, whatever its text is now.
    """
    locked = await tx.fetch(LOCK_ROOMS(Table.of(ROOM_ID, (send.room_id for send in sends))))
    last = {as_uuid(row["room_id"]): int(row["last_seq"]) for row in locked}
    changes = {as_uuid(row["room_id"]): int(row["changes"]) for row in locked}
    rows = await tx.fetch(LOOK_UP(Table(_SEND, [(number, *send[:3]) for number, send in enumerate(sends)])))
    found = {row["number"]: row for row in rows}
    known: dict[tuple[UUID, str, str], ChatMessage] = {}
    results: list[Stored | NotAMember] = []
    for number, send in enumerate(sends):
        row = found[number]
        if not row["is_member"]:
            results.append(NotAMember(send.room_id, send.sender_id))
            continue
        stored = known.get(send[:3])
        is_new = stored is None and row["seq"] is None
        if stored is None:
            if is_new:
                last[send.room_id] += 1
                stored = ChatMessage(seq=last[send.room_id], sent_at=tx.dialect.time(rows[0]["now"]), **send._asdict())
            else:
                stored = read_message(tx.dialect, row)
            known[send[:3]] = stored
        results.append(Stored(stored, is_new, changes[send.room_id]))
    if new := [result.message for result in results if isinstance(result, Stored) and result.is_new]:
        await _insert(tx, new, last)
    return results


async def _insert(tx: Transaction, new: Sequence[ChatMessage], last: dict[UUID, int]) -> None:
    messages = [
        (message.room_id, message.seq, message.sender_id, message.client_message_id, message.message) for message in new
    ]
    rooms = {message.room_id for message in new}
    senders = Counter((message.room_id, message.sender_id) for message in new)
    sent_at = new[0].sent_at
    await tx.execute(
        _INSERT(Table(_NEW, messages), sent_at),
        _SET_LAST(Table(_LAST, [(room_id, last[room_id]) for room_id in rooms]), sent_at),
        _COUNT_SENT(Table(_SENT, [(*key, count) for key, count in senders.items()])),
    )


# --- changing ---------------------------------------------------------------------------------------------------------

# One message of the room ($1), by its seq ($2).
_FIND = same(f"SELECT {_COLUMNS} FROM bongsu_chat_messages WHERE room_id = $1 AND seq = $2")

# Replaces the text ($3) of a message of the room ($1), by its seq ($2), when the room's last seq is $4. Run under the room's
# lock, so that every message after $4 commits after the change.
_EDIT = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_chat_messages SET message = $3, edited_at = {d.now}, changed_seq = $4 WHERE room_id = $1 AND seq = $2
    RETURNING {_COLUMNS}"""
    )
)

# Deletes the text of a message; its row and seq stay. As above: $1 room, $2 seq, $3 the room's last seq.
_DELETE = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_chat_messages SET message = NULL, deleted_at = {d.now}, changed_seq = $3 WHERE room_id = $1 AND seq = $2
    RETURNING {_COLUMNS}"""
    )
)


async def find_message(tx: Transaction, room_id: UUID, seq: int) -> ChatMessage | None:
    row = await fetch_one(tx, _FIND(room_id, seq))
    return None if row is None else read_message(tx.dialect, row)


async def edit_message(tx: Transaction, room_id: UUID, seq: int, text: str, last_seq: int) -> ChatMessage:
    """Replace the text of a message that exists, in a locked room."""
    (row,) = await tx.fetch(_EDIT(room_id, seq, text, last_seq))
    return read_message(tx.dialect, row)


async def delete_message(tx: Transaction, room_id: UUID, seq: int, last_seq: int) -> ChatMessage:
    """Delete the text of a message that exists, in a locked room."""
    (row,) = await tx.fetch(_DELETE(room_id, seq, last_seq))
    return read_message(tx.dialect, row)


# --- reading ----------------------------------------------------------------------------------------------------------

# The first $3 messages of the room ($1) after seq $2, by the key. Locks nothing.
AFTER = same(f"""
    SELECT {_COLUMNS} FROM bongsu_chat_messages WHERE room_id = $1 AND seq > $2 ORDER BY seq LIMIT $3""")

# The last $3 messages of the room ($1) before seq $2, newest first, by the key. Locks nothing.
BEFORE = same(f"""
    SELECT {_COLUMNS} FROM bongsu_chat_messages WHERE room_id = $1 AND seq < $2 ORDER BY seq DESC LIMIT $3""")

# Messages of the room ($1) up to seq $2 that were changed when its last seq was $2 or more, in the order of the
# changes, $3 at most, after the one of seq $5 when the last seq was $4. By the index of changes. Locks nothing.
CHANGED = in_both(
    lambda d: (
        f"""
    SELECT {_COLUMNS}, changed_seq FROM bongsu_chat_messages {d.index_hint("bongsu_chat_messages_changed")}
    WHERE room_id = $1 AND changed_seq IS NOT NULL AND changed_seq >= $2 AND seq <= $2
        AND (changed_seq, seq) > ($4, $5)
    ORDER BY changed_seq, seq LIMIT $3"""
    )
)


async def find_after(tx: Transaction, room_id: UUID, seq: int, limit: int) -> list[ChatMessage]:
    """The messages after a seq, ascending."""
    return [read_message(tx.dialect, row) for row in await tx.fetch(AFTER(room_id, seq, limit))]


async def find_before(tx: Transaction, room_id: UUID, seq: int, limit: int) -> list[ChatMessage]:
    """The last messages before a seq, ascending."""
    return [read_message(tx.dialect, row) for row in reversed(await tx.fetch(BEFORE(room_id, seq, limit)))]


# The room's last seq when a message was changed, and its own.
ChangeKey = tuple[int, int]
FIRST_CHANGE: ChangeKey = (0, 0)


async def find_changed(
    tx: Transaction, room_id: UUID, seq: int, limit: int, after: ChangeKey = FIRST_CHANGE
) -> tuple[list[ChatMessage], ChangeKey]:
    """Messages up to a seq that were edited or deleted since it was the last one, as they are now, and the key of the last
    of them: after it the next part begins."""
    rows = await tx.fetch(CHANGED(room_id, seq, limit, *after))
    last = (rows[-1]["changed_seq"], rows[-1]["seq"]) if rows else after
    return [read_message(tx.dialect, row) for row in rows], last
