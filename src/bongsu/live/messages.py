"""The content of signals to gateways.

A member's topic carries a notification as JSON, or nothing, which means: something changed, read the store. A gateway that
does not know a signal's kind reads the store as well: a newer version may have sent it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import orjson

from bongsu.store.inbox.live import Recipient

NOTIFICATION = b"n"
CHANGED_RANGE = b"w"
# The member has logged out somewhere.
LOGGED_OUT = b"l"
# The member has joined a chat room. What follows is for chat/signals.py.
JOINED_ROOM = b"j"
READ_STORE = b""


@dataclass(frozen=True)
class Announced:
    notification_id: int
    previous: int
    unread: int
    as_of: datetime
    # Its JSON. Empty when its message has been deleted.
    data: bytes


def write_notification(recipient: Recipient, data: bytes) -> bytes:
    head = [
        recipient.notification.notification_id, recipient.previous, recipient.unread, recipient.as_of.isoformat(),
    ]  # fmt: skip
    return b"%b%b\n%b" % (NOTIFICATION, orjson.dumps(head), data)


def read_notification(data: bytes) -> Announced:
    head, _, json = data[1:].partition(b"\n")
    notification_id, previous, unread, as_of = orjson.loads(head)
    return Announced(notification_id, previous, unread, datetime.fromisoformat(as_of), json)


def write_messages(message_ids: list[int]) -> bytes:
    return orjson.dumps(message_ids)


def write_changed_range(first_member: str, last_member: str) -> bytes:
    """Something was changed for members between these two, both included."""
    return b"%b%b" % (CHANGED_RANGE, orjson.dumps([first_member, last_member]))


def read_changed_range(data: bytes) -> tuple[str, str] | None:
    """None for a signal of another kind."""
    if data[:1] != CHANGED_RANGE:
        return None
    first, last = orjson.loads(data[1:])
    return first, last
