"""Chat in the store: rooms and who is in them, messages in the room's order, what is removed.

Locks in one order, after all others (members, notifications, deliveries): rooms by id, members of rooms by id, messages.
A transaction that gives a seq, changes a message, or changes who is in a room locks the room's row first. A read mark locks
only the row of its member in the room, so that thousands of readers do not wait for senders. Nothing here locks
bongsu_members.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import ROOM_ID, Dialect, Row, Statement, as_uuid, optional_time
from bongsu.store.core.sqlite import SQLITE

# Locks the rooms given ($1), in the order of their ids, and returns those that exist. LATERAL: each by its key.
LOCK_ROOMS = Statement(
    postgres=f"""
        SELECT locked.room_id, locked.first_seq, locked.last_seq, locked.changes
        FROM (SELECT DISTINCT given.room_id FROM {POSTGRES.table("given", ROOM_ID, 1)} ORDER BY 1) AS wanted
        CROSS JOIN LATERAL (
            SELECT r.room_id, r.first_seq, r.last_seq, r.changes FROM bongsu_chat_rooms AS r
            WHERE r.room_id = wanted.room_id FOR NO KEY UPDATE) AS locked""",
    sqlite=f"""
        SELECT r.room_id, r.first_seq, r.last_seq, r.changes
        FROM (SELECT DISTINCT given.room_id FROM {SQLITE.table("given", ROOM_ID, 1)}) AS wanted
        CROSS JOIN bongsu_chat_rooms AS r ON r.room_id = wanted.room_id""",
)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message as readers see it. Without a text it was deleted; without a sender, the sender was erased."""

    room_id: UUID
    seq: int
    sender_id: str | None
    client_message_id: str | None
    message: str | None
    sent_at: datetime
    edited_at: datetime | None = None
    deleted_at: datetime | None = None


def read_message(dialect: Dialect, row: Row) -> ChatMessage:
    return ChatMessage(
        room_id=as_uuid(row["room_id"]),
        seq=row["seq"],
        sender_id=row["sender_id"],
        client_message_id=row["client_message_id"],
        message=row["message"],
        sent_at=dialect.time(row["sent_at"]),
        edited_at=optional_time(dialect, row["edited_at"]),
        deleted_at=optional_time(dialect, row["deleted_at"]),
    )
