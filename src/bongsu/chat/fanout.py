"""Fan-out: announces what happens in a chat room to the gateways of its readers, in all processes.

A signal carries the frame that readers are sent, encoded once. It is a hint, as all signals are: storing does not wait for
it, and readers find what they missed by seq. Signals of two processes may arrive in another order than the room's: a reader
is sent a message after all those before it, and a change after the message that was the last when it was made (`lastSeq`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import orjson

from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import chat_member_topic, room_topic
from bongsu.store.chat import ChatMessage


class Fanout:
    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def sent(self, message: ChatMessage) -> None:
        self._announce(message.room_id, message_frame(message))

    def edited(self, message: ChatMessage, last_seq: int) -> None:
        self._announce(message.room_id, changed_frame(message) | {"lastSeq": last_seq})

    # A deleted message is one whose text is gone: `changed_frame` shows the difference.
    deleted = edited

    def read(self, room_id: UUID, member_id: str, seq: int) -> None:
        self._announce(room_id, {"op": "read", "roomId": str(room_id), "memberId": member_id, "seq": seq})

    def typing(self, room_id: UUID, member_id: str) -> None:
        self._announce(room_id, {"op": "typing", "roomId": str(room_id), "memberId": member_id})

    def created(self, room_id: UUID, member_ids: Sequence[str]) -> None:
        """To the members of a new room, which nobody reads yet."""
        for member_id in member_ids:
            self._signals.send(chat_member_topic(member_id), _membership_frame("joined", room_id, member_id))

    def joined(self, room_id: UUID, member_id: str) -> None:
        self._announce_membership("joined", room_id, member_id)

    def left(self, room_id: UUID, member_id: str) -> None:
        self._announce_membership("left", room_id, member_id)

    def _announce_membership(self, op: str, room_id: UUID, member_id: str) -> None:
        """To the readers of the room, and to the member's own connections: they do not listen to a room they are not in."""
        frame = _membership_frame(op, room_id, member_id)
        self._signals.send(room_topic(room_id), frame)
        self._signals.send(chat_member_topic(member_id), frame)

    def _announce(self, room_id: UUID, frame: dict[str, Any]) -> None:
        self._signals.send(room_topic(room_id), orjson.dumps(frame))


def _membership_frame(op: str, room_id: UUID, member_id: str) -> bytes:
    return orjson.dumps({"op": op, "roomId": str(room_id), "memberId": member_id})


def message_frame(message: ChatMessage) -> dict[str, Any]:
    """A message as its readers are sent it."""
    return {
        "op": "message",
        "roomId": str(message.room_id),
        "seq": message.seq,
        "senderId": message.sender_id,
        "message": message.message,
        "clientMessageId": message.client_message_id,
        "sentAt": message.sent_at,
    }


def changed_frame(message: ChatMessage) -> dict[str, Any]:
    """A message that was edited or deleted, as its readers are sent it."""
    place = {"roomId": str(message.room_id), "seq": message.seq}
    if message.message is None:
        return {"op": "deleted", **place, "deletedAt": message.deleted_at}
    return {"op": "edited", **place, "message": message.message, "editedAt": message.edited_at}
