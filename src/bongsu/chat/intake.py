"""Intake of chat messages that come through a broker, as `chat.message_sent` events: one consumer stores them, another
announces them, and neither waits for the other.

Storing gives a message its place in its room, in the order in which they were published, and announces it with its seq. What
the second consumer has may not be stored yet, and readers are sent messages by seq only: it announces that the room has
news, so that gateways look. See docs/decisions/0028-rabbitmq.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson

from bongsu.chat.fanout import Fanout
from bongsu.chat.order import check_text, store_messages
from bongsu.errors import BadChatMessage
from bongsu.ingress.decode import Mistake, Rejected, decode_event
from bongsu.store import Store
from bongsu.store.chat.dead_letters import CHAT_MESSAGE_SENT
from bongsu.store.chat.messages import NewMessage, NotAMember

# As by HTTP.
CLIENT_MESSAGE_ID_LIMIT = 255


class ChatIntake:
    """Stores messages in the order given. The store is tried again by the consumer, so nothing is a dead letter because of
    it."""

    def __init__(self, store: Store, fanout: Fanout, max_bytes: int) -> None:
        self._store = store
        self._fanout = fanout
        self._max_bytes = max_bytes

    async def accept(self, messages: Sequence[NewMessage]) -> list[bool | Rejected]:
        """Whether each is new, or why it is refused. One with a clientMessageId that is stored is not new."""
        refused = {number: why for number, message in enumerate(messages) if (why := self._why_refused(message)) is not None}
        sends = [message for number, message in enumerate(messages) if number not in refused]
        results = iter(await store_messages(self._store, self._fanout, sends) if sends else ())
        answers: list[bool | Rejected] = []
        for number in range(len(messages)):
            if number in refused:
                answers.append(refused[number])
                continue
            stored = next(results)
            answers.append(_not_a_member(stored) if isinstance(stored, NotAMember) else stored.is_new)
        return answers

    def _why_refused(self, message: NewMessage) -> Rejected | None:
        try:
            check_text(message.message, self._max_bytes)
        except BadChatMessage as error:
            return _rejected(error.detail, "payload", "message")
        return None


class ChatAnnouncer:
    """Best effort: announces rooms that have news."""

    def __init__(self, fanout: Fanout) -> None:
        self._fanout = fanout

    async def accept(self, messages: Sequence[NewMessage]) -> list[bool]:
        for room_id in dict.fromkeys(message.room_id for message in messages):
            self._fanout.changed(room_id)
        return [True] * len(messages)


def decode_chat_message(data: bytes) -> NewMessage | Rejected:
    """A `chat.message_sent` event: the room in refId, the sender in actorId, message and clientMessageId in the payload."""
    event = decode_event(data)
    if isinstance(event, Rejected):
        return event
    if event.event_type != CHAT_MESSAGE_SENT:
        return _rejected(f"must be {CHAT_MESSAGE_SENT} in this queue", "eventType")
    try:
        room_id = UUID(event.ref_id or "")
    except ValueError:
        return _rejected("must be the UUID of a room", "refId")
    payload: dict[str, Any] = orjson.loads(event.payload_text)
    if mistake := _mistake(event.actor_id, payload):
        return mistake
    assert event.actor_id is not None
    return NewMessage(room_id, event.actor_id, payload["clientMessageId"], payload["message"])


def _mistake(sender_id: str | None, payload: dict[str, Any]) -> Rejected | None:
    if sender_id is None:
        return _rejected("must be the sender's id", "actorId")
    if not isinstance(payload.get("message"), str):
        return _rejected("must be the text", "payload", "message")
    name = payload.get("clientMessageId")
    if not isinstance(name, str) or not 1 <= len(name) <= CLIENT_MESSAGE_ID_LIMIT or not name.isprintable():
        return _rejected(f"must be a text of at most {CLIENT_MESSAGE_ID_LIMIT} characters", "payload", "clientMessageId")
    return None


def _not_a_member(result: NotAMember) -> Rejected:
    return _rejected(f"{result.sender_id} is not in room {result.room_id}", "actorId")


def _rejected(message: str, *location: str) -> Rejected:
    return Rejected([Mistake(location, message)])
