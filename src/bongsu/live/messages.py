"""The content of signals to gateways.

A member's topic carries a notification, the id of one that was withdrawn, or nothing, which means: something changed, read
the store. A gateway that does not know a signal's kind reads the store as well: a newer version may have sent it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import orjson

from bongsu.store.inbox.live import Recipient

NOTIFICATION = b"n"
WITHDRAWN = b"w"
# The member has logged out somewhere.
LOGGED_OUT = b"l"
READ_STORE = b""


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


def write_withdrawn(notification_id: int) -> bytes:
    return b"%b%d" % (WITHDRAWN, notification_id)


def read_withdrawn(data: bytes) -> int:
    return int(data[1:])


@dataclass(frozen=True)
class WithdrawnMessage:
    """A message that was withdrawn from members between these two, both included."""

    message_id: int
    first_member: str
    last_member: str


def write_withdrawn_message(message: WithdrawnMessage) -> bytes:
    return b"%b%b" % (WITHDRAWN, orjson.dumps([message.message_id, message.first_member, message.last_member]))


def read_withdrawn_message(data: bytes) -> WithdrawnMessage:
    return WithdrawnMessage(*orjson.loads(data[1:]))
