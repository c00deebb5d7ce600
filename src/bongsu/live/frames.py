"""What is sent on a stream, as bytes: Server-Sent Events, each in its HTTP chunk. Pure."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from datetime import datetime

import orjson

from bongsu.store.inbox.live import InboxState, NewNotification
from bongsu.store.messages.content import Contents, MessageContent

# A browser reconnects after this long. Randomised, so that those that lost the same server do not return together.
RETRY_SECONDS = (1.0, 3.0)
# For every thousand disconnected together, the time within which they reconnect grows by this much.
SPREAD_SECONDS = 2.0
# A page that was closed in favour of a newer one would close that one in turn if it reconnected at once.
REPLACED_RETRY_SECONDS = (60.0, 120.0)


def chunk(frame: bytes) -> bytes:
    """The frame as HTTP/1.1 carries it in a response of unknown length."""
    return b"%x\r\n%b\r\n" % (len(frame), frame)


def retry_milliseconds(together: int = 0) -> int:
    """When a browser reconnects that is one of so many disconnected together."""
    first, last = RETRY_SECONDS
    return _between(first, last + SPREAD_SECONDS * together / 1000)


def replaced_milliseconds() -> int:
    return _between(*REPLACED_RETRY_SECONDS)


def _between(first: float, last: float) -> int:
    return round(random.uniform(first, last) * 1000)  # noqa: S311 (spreading load, not keeping secrets)


def _event(name: str, data: dict[str, str | int], fields: str = "") -> bytes:
    return chunk(b"event: %b\n%bdata: %b\n\n" % (name.encode(), fields.encode(), orjson.dumps(data)))


def opening(retry: int) -> bytes:
    return chunk(b"retry: %d\n\n" % retry)


def cursor(notification_id: int) -> bytes:
    """Without data it is not an event, but a browser sends the id when it reconnects."""
    return chunk(b"id: %d\n\n" % notification_id)


PING = _event("ping", {})
RESET = _event("reset", {"reason": "too-many-missed"})


@functools.lru_cache(1024)
def badge(unread: int) -> bytes:
    return _event("badge", {"unread": unread})


def withdrawn(notification_id: int) -> bytes:
    """Without an id: a browser's cursor stays at the last notification."""
    return _event("withdrawn", {"id": str(notification_id)})


def bye(reason: str, retry: int) -> bytes:
    return _event("bye", {"reason": reason}, f"retry: {retry}\n")


def unavailable(retry: int) -> bytes:
    return _event("unavailable", {}, f"retry: {retry}\n")


_ID = b'{"id":"'


def after_id(created_at: datetime, content: MessageContent) -> bytes:
    """A notification's JSON from the end of its id on: the same for all that one step of a fan-out wrote of a message."""
    # As it is stored, numbers of any length included. A line break can only be white space there, and would end the event.
    data = orjson.Fragment(content.data_json.replace("\n", " ").replace("\r", " "))
    json = {
        "id": "",
        "createdAt": created_at.isoformat(),
        "type": content.type,
        "title": content.title,
        "message": content.body,
        "refId": content.ref_id,
        "data": data,
    }
    return orjson.dumps(json).removeprefix(_ID)


def notification(notification_id: int, rest: bytes) -> bytes:
    """The frame for one reader; `rest` is the JSON after the id, encoded once for all readers."""
    return chunk(b"id: %d\nevent: notification\ndata: %b%d%b\n\n" % (notification_id, _ID, notification_id, rest))


def encode_notifications(
    notifications: Iterable[NewNotification], contents: Contents, state: InboxState | None
) -> list[tuple[int, bytes]]:
    """Ids and frames. A member who wants no notifications gets the critical ones only; without a state, all."""
    encoded = []
    for one in notifications:
        content = contents.get(one.message_id)
        if content is not None and (state is None or state.is_enabled or content.is_critical):
            frame = notification(one.notification_id, after_id(one.created_at, content))
            encoded.append((one.notification_id, frame))
    return encoded
