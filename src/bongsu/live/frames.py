"""What goes over a stream, as bytes. Pure.

Every frame is made once, with the HTTP chunk around it, and the same bytes are written to everybody who gets it.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import orjson

from bongsu.store.live import MessageContent

# A browser comes back after this long by itself. Randomised, so that those who lost the same server do not return together.
RETRY_SECONDS = (1.0, 3.0)
# For every further thousand who are sent away together, the time they take to come back grows by this much.
SPREAD_SECONDS = 2.0
# A page that was closed in favour of a newer one would close that one in turn by coming back at once.
REPLACED_RETRY_SECONDS = (60.0, 120.0)


def chunk(frame: bytes) -> bytes:
    """The frame as HTTP/1.1 carries it in an answer whose end is not known."""
    return b"%x\r\n%b\r\n" % (len(frame), frame)


def retry_milliseconds(together: int = 0) -> int:
    """When to come back, one of so many who come back together."""
    first, last = RETRY_SECONDS
    return _between(first, last + SPREAD_SECONDS * together / 1000)


def replaced_milliseconds() -> int:
    return _between(*REPLACED_RETRY_SECONDS)


def _between(first: float, last: float) -> int:
    return round(random.uniform(first, last) * 1000)  # noqa: S311 (spreading load, not keeping secrets)


def opening(retry: int) -> bytes:
    return chunk(b"retry: %d\n\n" % retry)


def cursor(notification_id: int) -> bytes:
    """Without data it is no event, but a browser sends the id when it comes back."""
    return chunk(b"id: %d\n\n" % notification_id)


PING = chunk(b"event: ping\ndata: {}\n\n")
RESET = chunk(b'event: reset\ndata: {"reason":"too-many-missed"}\n\n')


@functools.lru_cache(1024)
def badge(unread: int) -> bytes:
    return chunk(b'event: badge\ndata: {"unread":%d}\n\n' % unread)


def bye(reason: str, retry: int) -> bytes:
    return chunk(b'event: bye\nretry: %d\ndata: {"reason":"%b"}\n\n' % (retry, reason.encode()))


def unavailable(retry: int) -> bytes:
    return chunk(b"event: unavailable\nretry: %d\ndata: {}\n\n" % retry)


def chat(message: dict[str, Any]) -> bytes:
    return chunk(b"event: chat\ndata: %b\n\n" % _json(message))


def tail(content: MessageContent) -> bytes:
    """The end of a notification's frame, which is the same for all readers of the message."""
    fields = _json({"type": content.type, "title": content.title, "message": content.body, "refId": content.ref_id})
    # As it is stored, numbers of any length included. A line break there can only be white space, and would end the event.
    data = content.data.replace("\n", " ").replace("\r", " ").encode(errors="replace")
    return b'%b,"data":%b}\n\n' % (fields[1:-1], data)


def rest(created_at: datetime, end: bytes) -> bytes:
    """What stands behind the id. All that one step of a fan-out has written of a message have the same."""
    return b'","createdAt":"%b",%b' % (created_at.isoformat().encode(), end)


def notification(notification_id: int, rest: bytes) -> bytes:
    return notifications([notification_id], rest)[0]


def notifications(ids: Iterable[int], rest: bytes) -> list[bytes]:
    """Thousands that differ in the id alone, so what is around it is made once for all ids of one length."""
    made, form, low, high = [], b"", 0, 0
    for one in ids:
        if not low <= one < high:
            digits = len(str(one))
            frame = b'id: %b\nevent: notification\ndata: {"id":"%b%b' % (b"0" * digits, b"0" * digits, rest)
            end = rest.replace(b"%", b"%%")
            form = b'%x\r\nid: %%d\nevent: notification\ndata: {"id":"%%d%b\r\n' % (len(frame), end)
            low, high = 10 ** (digits - 1), 10**digits
        made.append(form % (one, one))
    return made


def _json(value: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # half a surrogate pair: no UTF-8, but JSON has an escape for it
        return json.dumps(value).encode()
