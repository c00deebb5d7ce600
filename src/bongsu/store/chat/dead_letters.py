"""Chat messages that could not be stored: dead letters among the events, of the type `chat.message_sent`.

They are FAILED events with the sender in actor_id and target_id, the room in ref_id, and text and clientMessageId in the
payload. So they are listed, kept and erased like others; a replay stores the message instead of making the event PENDING.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from bongsu.model import EventStatus, new_id
from bongsu.store.chat import ChatMessage
from bongsu.store.chat.messages import NewMessage, Stored, add_messages
from bongsu.store.core.query import EVENT_ID, Row, Table, Transaction, as_uuid, in_both
from bongsu.store.outbox import EndedEvent, add_ended

CHAT_MESSAGE_SENT = "chat.message_sent"


# Those of the events given ($1) that are FAILED chat messages. Locks them, in the order of ids.
_LOCK = in_both(
    lambda d: (
        f"""
    SELECT e.event_id, e.actor_id, e.ref_id, e.payload FROM bongsu_events AS e
    WHERE e.event_id IN (SELECT given.event_id FROM {d.table("given", EVENT_ID, 1)})
      AND e.event_type = '{CHAT_MESSAGE_SENT}' AND e.status = 'FAILED'
    ORDER BY e.event_id {d.lock_row}"""
    )
)

# Ends the events given ($1), whose messages are stored. They are locked.
_FINISH = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_events SET status = 'DONE', finished_at = {d.now}, error = NULL
    WHERE event_id IN (SELECT given.event_id FROM {d.table("given", EVENT_ID, 1)})"""
    )
)


class Unstored(NamedTuple):
    """A message that could not be stored, and why."""

    message: NewMessage
    error: str


async def add_dead_letters(tx: Transaction, unstored: Sequence[Unstored], tries: int) -> None:
    await add_ended(tx, [_as_event(message, error, tries) for message, error in unstored])


def _as_event(message: NewMessage, error: str, tries: int) -> EndedEvent:
    sender_id, room_id = message.sender_id, str(message.room_id)
    payload = {"message": message.message, "clientMessageId": message.client_message_id}
    text = json.dumps(payload, ensure_ascii=False)
    return EndedEvent(new_id(), CHAT_MESSAGE_SENT, sender_id, sender_id, room_id, text, EventStatus.FAILED, tries, error)


class Replayed(NamedTuple):
    """How many dead letters have their message stored now, and those messages that were not stored before."""

    stored: int
    new: list[ChatMessage]


async def replay(tx: Transaction, event_ids: Sequence[UUID]) -> Replayed:
    """Store the messages of these dead letters. One whose sender is no longer in the room stays dead."""
    if not event_ids:
        return Replayed(0, [])
    rows = await tx.fetch(_LOCK(Table.of(EVENT_ID, event_ids)))
    sends = {as_uuid(row["event_id"]): send for row in rows if (send := _message_of(row)) is not None}
    results = await add_messages(tx, list(sends.values())) if sends else []
    stored = {event_id: result for event_id, result in zip(sends, results, strict=True) if isinstance(result, Stored)}
    if stored:
        await tx.execute(_FINISH(Table.of(EVENT_ID, list(stored))))
    return Replayed(len(stored), [result.message for result in stored.values() if result.is_new])


def _message_of(row: Row) -> NewMessage | None:
    """The message of an event of ours. Any caller may have published one of the same type with other fields."""
    payload: Any = json.loads(row["payload"])
    text, client_message_id = payload.get("message"), payload.get("clientMessageId")
    try:
        room_id = UUID(row["ref_id"] or "")
    except ValueError:
        return None
    if not row["actor_id"] or not isinstance(text, str) or not isinstance(client_message_id, str):
        return None
    return NewMessage(room_id, row["actor_id"], client_message_id, text)
