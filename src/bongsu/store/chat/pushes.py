"""Statements about pushes to members who have not read: which rooms to look at, to whom, and the text of a push when it is
sent.

A send marks its room (messages.py). A look claims marked rooms with a lease and an epoch, finds the members to push to, and
stores in one transaction the event for some of them and that it is decided for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from bongsu.model import Event
from bongsu.model.notice import CHAT_MESSAGE
from bongsu.store import outbox
from bongsu.store.chat.rooms import count_unread
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import MEMBER_ID, Statement, Table, Transaction, as_uuid, fetch_one, in_both
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.members.devices import USABLE_DEVICE


@dataclass(frozen=True)
class RoomToLookAt:
    """A room that was claimed for a look."""

    room_id: UUID
    name: str
    # The newest message when it was claimed, and at the look before.
    last_seq: int
    looked_seq: int
    epoch: int
    # Whether its newest message is older than a push about it is worth.
    is_stale: bool


# Claims up to $2 rooms that have waited for $1 seconds, those that wait longest first, for $3 seconds; those without a new
# message for $4 seconds are stale. Locks their rows; skips those that are being claimed or sent to right now.
CLAIM = in_both(
    lambda d: (
        f"""
    WITH due AS MATERIALIZED (
        SELECT r.room_id FROM bongsu_chat_rooms AS r {d.index_hint("bongsu_chat_rooms_push")}
        WHERE r.push_due IS NOT NULL AND r.push_due <= {d.after("-CAST($1 AS double precision)")}
        ORDER BY r.push_due LIMIT $2 {d.skip_locked})
    UPDATE bongsu_chat_rooms SET push_epoch = push_epoch + 1, push_due = {d.after("$3")}
    WHERE room_id IN (SELECT due.room_id FROM due)
    RETURNING room_id, name, last_seq, push_seq, push_epoch,
              last_sent_at < {d.after("-CAST($4 AS double precision)")} AS is_stale"""
    )
)

# The next $4 members of the room ($1) after $3, by id, to whom the messages up to seq $2 are to be pushed: they have not
# read them, nothing was decided about them, they have not muted the room and have a device, one of the messages is of
# another and not deleted, and no push about the room waits for them, which will have what is new when it is sent ($5 is the
# room as the key of a digest). Scalar sub-selects with LIMIT, because EXISTS may read a whole table. Locks nothing.
CANDIDATES = in_both(
    lambda d: (
        f"""
    SELECT m.member_id FROM bongsu_chat_members AS m
    WHERE m.room_id = $1 AND m.member_id > $3 AND m.read_seq < $2 AND m.pushed_seq < $2 AND NOT m.is_muted
      AND (SELECT 1 FROM bongsu_devices AS d WHERE d.member_id = m.member_id AND {USABLE_DEVICE} LIMIT 1) IS NOT NULL
      AND (SELECT 1 FROM bongsu_chat_messages AS x
           WHERE x.room_id = m.room_id AND x.seq > m.read_seq AND x.seq > m.pushed_seq AND x.seq <= $2
             AND x.deleted_at IS NULL AND x.sender_id <> m.member_id LIMIT 1) IS NOT NULL
      AND (SELECT 1 FROM bongsu_deliveries AS p
           WHERE p.status = 'READY' AND p.notification_id = (
               SELECT g.notification_id FROM bongsu_digests AS g {d.index_hint("bongsu_digests_key")}
               WHERE g.member_id = m.member_id AND g.type = '{CHAT_MESSAGE}' AND g.key = $5
               ORDER BY g.ends_at DESC, g.notification_id DESC LIMIT 1) LIMIT 1) IS NULL
    ORDER BY m.member_id LIMIT $4"""
    )
)

# A row if the look at the room ($1) with this epoch ($2) is still the newest. Locks the room.
_LOCK_LOOK = in_both(lambda d: f"SELECT 1 AS one FROM bongsu_chat_rooms WHERE room_id = $1 AND push_epoch = $2 {d.lock_row}")

# Notes that it is decided up to seq $2 of the room ($1) whether the members given ($3) are sent a push. Locks their rows, in
# a room that is locked.
_SET_PUSHED = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_chat_members AS m SET pushed_seq = $2
    FROM {d.table("given", MEMBER_ID, 3)} WHERE m.room_id = $1 AND m.member_id = given.member_id"""
    )
)

# Ends the look at the room ($1) with this epoch ($2), up to seq $3; a stale one changes nothing. Messages that came
# meanwhile, and those to come, are looked at after $4 seconds at the earliest; else the room is looked at again after $5
# seconds, or not ($6). Locks the room.
_END_LOOK = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_chat_rooms
    SET push_seq = $3, push_from = {d.after("$4")},
        push_due = CASE WHEN last_seq > $3 THEN {d.after("$4")} WHEN $6 THEN {d.after("$5")} END
    WHERE room_id = $1 AND push_epoch = $2"""
    )
)


async def claim_rooms(
    tx: Transaction, waited_seconds: float, limit: int, lease_seconds: float, worth: timedelta
) -> list[RoomToLookAt]:
    rows = await tx.fetch(CLAIM(float(waited_seconds), limit, float(lease_seconds), worth.total_seconds()))
    return [
        RoomToLookAt(
            as_uuid(row["room_id"]), row["name"], row["last_seq"], row["push_seq"], row["push_epoch"], bool(row["is_stale"])
        )
        for row in rows
    ]


async def find_candidates(tx: Transaction, room: RoomToLookAt, after: str, limit: int) -> list[str]:
    """The next members after that one who have not read, and of whom nothing is decided."""
    rows = await tx.fetch(CANDIDATES(room.room_id, room.last_seq, after, limit, str(room.room_id)))
    return [row["member_id"] for row in rows]


async def add_push(tx: Transaction, room: RoomToLookAt, event: Event, member_ids: Sequence[str]) -> bool:
    """Store the event about these members, and that it is decided for them; False if another look has begun since."""
    await outbox.add(tx, [event])
    if await fetch_one(tx, _LOCK_LOOK(room.room_id, room.epoch)) is None:
        return False
    given = Table.of(MEMBER_ID, member_ids)
    await tx.execute(_SET_PUSHED(room.room_id, room.last_seq, given))
    return True


async def end_look(
    tx: Transaction, room: RoomToLookAt, rest_seconds: float, again_seconds: float, *, is_again: bool
) -> None:
    """Look at what is new after a rest, and at the same messages `is_again`."""
    given = room.room_id, room.epoch, room.last_seq, float(rest_seconds), float(again_seconds), is_again
    await tx.execute(_END_LOOK(*given))


# --- the text of a push ------------------------------------------------------------------------------------------------


class PushOf(NamedTuple):
    """A push to a member about a room, by its notification; and the message that it shows, once it is made."""

    notification_id: int
    room_id: UUID
    member_id: str
    shown_seq: int | None = None


@dataclass(frozen=True)
class Unread:
    """What a member has not read of a room now. `seq`, `sender_id` and `message` are of the newest message of others that is
    not deleted; None if there is none."""

    room: str
    count: int
    is_muted: bool
    seq: int | None
    sender_id: str | None
    message: str | None
    # Whether the message that the push shows is still there.
    has_shown: bool


_PUSH = {"notification_id": "bigint", "room_id": "uuid", "member_id": "text", "shown_seq": "bigint"}
_STATE = """r.name, r.first_seq, r.last_seq, m.read_seq, m.own_after_read, m.is_muted, x.seq, x.sender_id, x.message,
               (SELECT 1 FROM bongsu_chat_messages AS s WHERE s.room_id = given.room_id AND s.seq = given.shown_seq
                  AND s.deleted_at IS NULL) IS NOT NULL AS has_shown"""

# What the members of the pushes given ($1) have not read of their rooms, and the newest message of it: by the keys of rooms,
# members and messages. Those who are not in the room are left out. Locks nothing.
FIND_UNREAD = Statement(
    postgres=f"""
        SELECT given.notification_id, {_STATE}
        FROM {POSTGRES.table("given", _PUSH, 1)}
        CROSS JOIN LATERAL (
            SELECT * FROM bongsu_chat_members
            WHERE room_id = given.room_id AND member_id = given.member_id LIMIT 1) AS m
        CROSS JOIN LATERAL (SELECT * FROM bongsu_chat_rooms WHERE room_id = given.room_id LIMIT 1) AS r
        LEFT JOIN LATERAL (
            SELECT seq, sender_id, message FROM bongsu_chat_messages
            WHERE room_id = given.room_id AND seq > m.read_seq AND deleted_at IS NULL AND sender_id <> given.member_id
            ORDER BY seq DESC LIMIT 1) AS x ON true""",
    sqlite=f"""
        SELECT given.notification_id, {_STATE}
        FROM {SQLITE.table("given", _PUSH, 1)}
        CROSS JOIN bongsu_chat_members AS m ON m.room_id = given.room_id AND m.member_id = given.member_id
        CROSS JOIN bongsu_chat_rooms AS r ON r.room_id = given.room_id
        LEFT JOIN bongsu_chat_messages AS x ON x.room_id = given.room_id AND x.seq = (
            SELECT y.seq FROM bongsu_chat_messages AS y
            WHERE y.room_id = given.room_id AND y.seq > m.read_seq AND y.deleted_at IS NULL
              AND y.sender_id <> given.member_id
            ORDER BY y.seq DESC LIMIT 1)""",
)


async def find_unread(tx: Transaction, pushes: Sequence[PushOf]) -> dict[int, Unread]:
    """By notification. Members who are not in the room are left out."""
    return {
        row["notification_id"]: Unread(
            room=row["name"],
            count=count_unread(row["first_seq"], row["last_seq"], row["read_seq"], row["own_after_read"]),
            is_muted=bool(row["is_muted"]),
            seq=row["seq"],
            sender_id=row["sender_id"],
            message=row["message"],
            has_shown=bool(row["has_shown"]),
        )
        for row in await tx.fetch(FIND_UNREAD(Table(_PUSH, pushes)))
    }
