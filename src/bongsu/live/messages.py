"""What signals about members carry between processes, and the topics they go by.

A member's topic carries a notification, a chat event, or nothing: then something has changed, and who cares looks it up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from bongsu.live import frames
from bongsu.store.live import Told

# Names messages with many readers, by id. Every gateway hears it.
MESSAGES_TOPIC = "live:messages"

NOTIFICATION = b"n"
CHAT = b"c"
LOOK = b""


def member_topic(member_id: str) -> str:
    return f"live:member:{member_id}"


@dataclass(frozen=True)
class Announced:
    notification_id: int
    previous: int
    unread: int
    as_of: datetime
    # Empty when it is in the inbox, but not told.
    chunk: bytes


def write_notification(told: Told, chunk: bytes) -> bytes:
    head = [told.news.notification_id, told.previous, told.unread, told.as_of.isoformat()]
    return b"%b%b\n%b" % (NOTIFICATION, orjson.dumps(head), chunk)


def read_notification(data: bytes) -> Announced:
    head, _, chunk = data[1:].partition(b"\n")
    notification_id, previous, unread, as_of = orjson.loads(head)
    return Announced(notification_id, previous, unread, datetime.fromisoformat(as_of), chunk)


def write_chat(message: dict[str, Any]) -> bytes:
    return CHAT + frames.chat(message)


def read_chat(data: bytes) -> bytes:
    return data[1:]


def write_messages(message_ids: list[int]) -> bytes:
    return orjson.dumps(message_ids)
