"""Fan-out: announces what happens in a chat room to the gateways of its readers, in all processes.

A signal carries the frame that readers are sent, encoded once. It is a hint, as all signals are: storing does not wait for
it, and gateways read what they missed by seq (chat/live_rooms.py). Signals of two processes may arrive in another order than
the room's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson

from bongsu.chat import signals as room_signals
from bongsu.chat.signals import write_signal
from bongsu.live.messages import JOINED_ROOM
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import member_topic, room_topic
from bongsu.store.chat import ChatMessage


class Fanout:
    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def sent(self, messages: Sequence[ChatMessage], changes: int) -> None:
        """New messages of one room, in order, stored together: a signal and a write to each reader carry several."""
        frames = [orjson.dumps(message_frame(message)) for message in messages]
        topic = room_topic(messages[0].room_id)
        for signal in room_signals.write_messages(messages[0].seq, changes, frames):
            self._signals.send(topic, signal)

    def edited(self, message: ChatMessage, last_seq: int, changes: int) -> None:
        """A deleted message is one without a text: `changed_frame` shows the difference."""
        signal = write_signal(room_signals.CHANGED, last_seq, changes, changed_frame(message))
        self._signals.send(room_topic(message.room_id), signal)

    deleted = edited

    def changed(self, room_id: UUID) -> None:
        """Much has changed: gateways read it from the store."""
        self._signals.send(room_topic(room_id), room_signals.READ_STORE)

    def read(self, room_id: UUID, member_id: str, seq: int) -> None:
        self._announce(room_signals.READ, room_id, {**_of_member("read", room_id, member_id), "seq": seq})

    def typing(self, room_id: UUID, member_id: str) -> None:
        self._announce(room_signals.TYPING, room_id, _of_member("typing", room_id, member_id))

    def created(self, room_id: UUID, member_ids: Sequence[str]) -> None:
        """To the members of a new room, which has no readers yet."""
        for member_id in member_ids:
            self._welcome(room_id, member_id, 0, 0)

    def joined(self, room_id: UUID, member_id: str, last_seq: int, changes: int) -> None:
        """To the readers of the room, and to the member's own connections, which do not listen to it yet."""
        self._announce(room_signals.JOINED, room_id, _of_member("joined", room_id, member_id))
        self._welcome(room_id, member_id, last_seq, changes)

    def left(self, room_id: UUID, member_id: str, changes: int = 0) -> None:
        """Without the number of changes, gateways read it from the store."""
        self._announce(room_signals.LEFT, room_id, _of_member("left", room_id, member_id), changes)

    def _welcome(self, room_id: UUID, member_id: str, last_seq: int, changes: int) -> None:
        signal = write_signal(room_signals.JOINED, last_seq, changes, _of_member("joined", room_id, member_id))
        self._signals.send(member_topic(member_id), JOINED_ROOM + signal)

    def _announce(self, kind: bytes, room_id: UUID, frame: dict[str, Any], changes: int = 0) -> None:
        self._signals.send(room_topic(room_id), write_signal(kind, 0, changes, frame))


def _of_member(op: str, room_id: UUID, member_id: str) -> dict[str, Any]:
    return {"op": op, "roomId": str(room_id), "memberId": member_id}


def message_frame(message: ChatMessage) -> dict[str, Any]:
    """A message as its readers are sent it. With the times when it was edited or deleted."""
    frame = {
        "op": "message",
        "roomId": str(message.room_id),
        "seq": message.seq,
        "senderId": message.sender_id,
        "message": message.message,
        "clientMessageId": message.client_message_id,
        "sentAt": message.sent_at,
    }
    if message.edited_at is not None:
        frame["editedAt"] = message.edited_at
    if message.deleted_at is not None:
        frame["deletedAt"] = message.deleted_at
    return frame


def changed_frame(message: ChatMessage) -> dict[str, Any]:
    """A message that was edited or deleted, as its readers are sent it."""
    named = {"roomId": str(message.room_id), "seq": message.seq}
    if message.message is None:
        return {"op": "deleted", **named, "deletedAt": message.deleted_at}
    return {"op": "edited", **named, "message": message.message, "editedAt": message.edited_at}
