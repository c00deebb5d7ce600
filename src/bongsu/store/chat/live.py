"""Statements for gateways: in which rooms their members are, and how far rooms have come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import MEMBER_ID, ROOM_ID, Statement, Table, Transaction, as_uuid, in_both
from bongsu.store.core.sqlite import SQLITE


class RoomState(NamedTuple):
    """How far a room has come: its last seq, and how many changes there were."""

    room_id: UUID
    last_seq: int
    changes: int


# The rooms of the members given ($1), by the index of members, and how far each has come. Locks nothing.
ROOMS_OF_MEMBERS = in_both(
    lambda d: (
        f"""
    SELECT given.member_id, r.room_id, r.last_seq, r.changes
    FROM {d.table("given", MEMBER_ID, 1)} JOIN bongsu_chat_members AS m ON m.member_id = given.member_id
    JOIN bongsu_chat_rooms AS r ON r.room_id = m.room_id"""
    )
)

# How far the rooms given ($1) have come. LATERAL: each by its key. Locks nothing.
STATES = Statement(
    postgres=f"""
        SELECT r.room_id, r.last_seq, r.changes FROM {POSTGRES.table("given", ROOM_ID, 1)}
        CROSS JOIN LATERAL (
            SELECT room_id, last_seq, changes FROM bongsu_chat_rooms WHERE room_id = given.room_id LIMIT 1) AS r""",
    sqlite=f"""
        SELECT r.room_id, r.last_seq, r.changes FROM {SQLITE.table("given", ROOM_ID, 1)}
        CROSS JOIN bongsu_chat_rooms AS r ON r.room_id = given.room_id""",
)

# Which of the members given ($2) are in the room ($1). LATERAL: each by its key. Locks nothing.
STILL_MEMBERS = Statement(
    postgres=f"""
        SELECT m.member_id FROM {POSTGRES.table("given", MEMBER_ID, 2)}
        CROSS JOIN LATERAL (
            SELECT member_id FROM bongsu_chat_members WHERE room_id = $1 AND member_id = given.member_id LIMIT 1) AS m""",
    sqlite=f"""
        SELECT m.member_id FROM {SQLITE.table("given", MEMBER_ID, 2)}
        CROSS JOIN bongsu_chat_members AS m ON m.room_id = $1 AND m.member_id = given.member_id""",
)


async def find_rooms_of(tx: Transaction, member_ids: Sequence[str]) -> dict[str, list[RoomState]]:
    """The rooms of each of these members."""
    found: dict[str, list[RoomState]] = {member_id: [] for member_id in member_ids}
    for row in await tx.fetch(ROOMS_OF_MEMBERS(Table.of(MEMBER_ID, member_ids))):
        found[row["member_id"]].append(RoomState(as_uuid(row["room_id"]), row["last_seq"], row["changes"]))
    return found


async def find_states(tx: Transaction, room_ids: Iterable[UUID]) -> list[RoomState]:
    rows = await tx.fetch(STATES(Table.of(ROOM_ID, room_ids)))
    return [RoomState(as_uuid(row["room_id"]), row["last_seq"], row["changes"]) for row in rows]


async def find_members_among(tx: Transaction, room_id: UUID, member_ids: Iterable[str]) -> set[str]:
    given = Table.of(MEMBER_ID, member_ids)
    return {row["member_id"] for row in await tx.fetch(STILL_MEMBERS(room_id, given))}
