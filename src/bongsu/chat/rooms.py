"""Rooms: create, list, join, leave, read marks, mute, and who may do what.

A caller is a member, or None for a server call. Members act in rooms they are in: they add any member and remove themselves.
A server adds and removes any member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from bongsu.chat.fanout import Fanout
from bongsu.errors import NoSuchRoom, NotInRoom, TooManyRooms
from bongsu.model import new_id
from bongsu.store import Store, Transaction
from bongsu.store.chat import rooms as statements
from bongsu.store.chat.live import RoomState, find_states
from bongsu.store.chat.rooms import LockedRoom, MemberOfRoom, ReadMark, RoomOfMember

# Members of one call that creates a room; more are added one by one.
MEMBERS_AT_ONCE = 1_000
# Rooms that a member can be in: `GET /api/chat/rooms` answers with all of them. Two calls at once may exceed it by a few.
ROOMS_PER_MEMBER = 1_000

# No room has it: it stands for a room id that cannot be one.
NO_ROOM = UUID(int=0)


def as_room_id(text: str) -> UUID:
    """The room id that a text denotes; NO_ROOM if it denotes none, so that it is answered like one that does not exist."""
    try:
        return UUID(text)
    except ValueError:
        return NO_ROOM


@dataclass(frozen=True)
class Room:
    room_id: UUID
    name: str
    member_ids: Sequence[str]


class Rooms:
    def __init__(self, store: Store, fanout: Fanout) -> None:
        self._store = store
        self._fanout = fanout

    async def create(self, caller: str | None, name: str, member_ids: Sequence[str]) -> Room:
        """A member who creates a room is in it."""
        initial = list(dict.fromkeys([*([] if caller is None else [caller]), *member_ids]))
        room_id = new_id()

        async def create(tx: Transaction) -> None:
            await _check_room_count(tx, initial)
            await statements.create_room(tx, room_id, name, initial)

        await self._store.run(create)
        self._fanout.created(room_id, initial)
        return Room(room_id, name, initial)

    async def of_member(self, member_id: str) -> list[RoomOfMember]:
        """All rooms of a member, those with the newest message first."""
        async with self._store.read() as tx:
            return await statements.find_rooms(tx, member_id)

    async def members(self, caller: str | None, room_id: UUID, after: str, limit: int) -> list[MemberOfRoom]:
        """The next members of the room, by id."""
        async with self._store.read() as tx:
            await check_access(tx, room_id, caller)
            return await statements.find_members(tx, room_id, after, limit)

    async def state(self, member_id: str, room_id: UUID) -> RoomState:
        """How far a room of the member has come."""
        async with self._store.read() as tx:
            await check_access(tx, room_id, member_id)
            (state,) = await find_states(tx, [room_id])
            return state

    async def add(self, caller: str | None, room_id: UUID, member_id: str) -> None:
        """Adding one who is in the room changes nothing."""

        async def add(tx: Transaction) -> LockedRoom | None:
            room = await lock_accessible(tx, room_id, caller)
            if await statements.is_member(tx, room_id, member_id):
                return None
            await _check_room_count(tx, [member_id])
            await statements.add_members(tx, room_id, [member_id])
            return room

        if (room := await self._store.run(add)) is not None:
            self._fanout.joined(room_id, member_id, room.last_seq, room.changes)

    async def remove(self, caller: str | None, room_id: UUID, member_id: str) -> None:
        """Once this returns, nothing that the member sends there is stored, and no message that is stored from then on is
        sent to them, by any process: it shows that there is a change. Removing one who is not there is fine."""

        async def remove(tx: Transaction) -> int | None:
            room = await lock_accessible(tx, room_id, caller)
            if caller not in (None, member_id):
                raise NotInRoom("Members remove themselves; others are removed by a server call")
            if not await statements.remove_member(tx, room_id, member_id):
                return None
            await statements.count_change(tx, room_id)
            return room.changes + 1

        if (changes := await self._store.run(remove)) is not None:
            self._fanout.left(room_id, member_id, changes)

    async def mark_read(self, member_id: str, room_id: UUID, seq: int) -> ReadMark:
        """Move the read mark forward, to the last message at most."""
        mark = await self._store.run(lambda tx: statements.mark_read(tx, room_id, member_id, seq))
        if mark is None:
            raise _not_in_room()
        if mark.has_moved:
            self._fanout.read(room_id, member_id, mark.read_seq)
        return mark

    async def mute(self, member_id: str, room_id: UUID, is_muted: bool) -> None:
        """A member who has muted a room gets no push about it. Messages arrive as before."""
        async with self._store.single() as tx:
            if not await statements.set_muted(tx, room_id, member_id, is_muted):
                raise _not_in_room()


async def check_access(tx: Transaction, room_id: UUID, caller: str | None) -> None:
    """Raise NotInRoom for a member who is not in the room, whether there is one or not; NoSuchRoom for a server."""
    if caller is None:
        if not await statements.exists(tx, room_id):
            raise NoSuchRoom(f"There is no room {room_id}")
    elif not await statements.is_member(tx, room_id, caller):
        raise _not_in_room()


async def lock_accessible(tx: Transaction, room_id: UUID, caller: str | None) -> LockedRoom:
    """Lock the room, then check access: no member joins or leaves after the check."""
    room = await statements.lock_room(tx, room_id)
    await check_access(tx, room_id, caller)
    assert room is not None, "a room that does not exist has no members"
    return room


async def _check_room_count(tx: Transaction, member_ids: Sequence[str]) -> None:
    if member_ids and (full := await statements.find_full_member(tx, member_ids, ROOMS_PER_MEMBER)):
        raise TooManyRooms(f"{full} is in {ROOMS_PER_MEMBER} rooms, and cannot be in more")


def _not_in_room() -> NotInRoom:
    return NotInRoom("You are not in this room")
