"""The content of signals about members, and their topics.

A member's topic carries a notification, or nothing, which means: something changed, read the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import orjson

from bongsu.store.live import Recipient

# Names messages with many recipients, by id. Every gateway listens to it.
MESSAGES_TOPIC = "live:messages"

NOTIFICATION = b"n"
LOOK = b""


def member_topic(member_id: str) -> str:
    return f"live:member:{member_id}"


@dataclass(frozen=True)
class Announced:
    notification_id: int
    previous: int
    unread: int
    as_of: datetime
    # Empty when its message has been deleted.
    chunk: bytes


def write_notification(recipient: Recipient, chunk: bytes) -> bytes:
    head = [
        recipient.notification.notification_id, recipient.previous, recipient.unread, recipient.as_of.isoformat(),
    ]  # fmt: skip
    return b"%b%b\n%b" % (NOTIFICATION, orjson.dumps(head), chunk)


def read_notification(data: bytes) -> Announced:
    head, _, chunk = data[1:].partition(b"\n")
    notification_id, previous, unread, as_of = orjson.loads(head)
    return Announced(notification_id, previous, unread, datetime.fromisoformat(as_of), chunk)


def write_messages(message_ids: list[int]) -> bytes:
    return orjson.dumps(message_ids)
