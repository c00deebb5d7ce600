"""Server-Sent Events, each in its HTTP chunk."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import orjson
from starlette.types import Send

from bongsu.live.connection import Connection, reset

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    # The connection ends with the response, so that nothing of an ended stream stays in memory.
    (b"connection", b"close"),
]
_EMPTY: dict[str, Any] = {"type": "http.response.body", "body": b"", "more_body": True}
_END: dict[str, Any] = {"type": "http.response.body", "body": b"", "more_body": False}


def chunk(frame: bytes) -> bytes:
    """The frame as a chunk of HTTP/1.1, in a response of unknown length."""
    return b"%x\r\n%b\r\n" % (len(frame), frame)


def _event(name: str, data: dict[str, Any], fields: str = "") -> bytes:
    return chunk(b"event: %b\n%bdata: %b\n\n" % (name.encode(), fields.encode(), orjson.dumps(data)))


@functools.lru_cache(1024)
def _badge(unread: int) -> bytes:
    return _event("badge", {"unread": unread})


class SseWire:
    """See Wire."""

    ready = b""
    ping = _event("ping", {})
    reset = _event("reset", {"reason": "too-many-missed"})

    def event(self, name: bytes, key: int, data: bytes) -> bytes:
        return chunk(b"id: %d\nevent: %b\ndata: %b\n\n" % (key, name, data))

    def badge(self, unread: int) -> bytes:
        return _badge(unread)

    def chat(self, is_message: bool, data: bytes) -> bytes:
        """Messages only, without an id: a page that was away reads the room's history."""
        if not is_message:
            return b""
        message = orjson.loads(data)
        return _event("chat", {name: message[name] for name in ("roomId", "seq", "senderId", "message")})

    def opening(self, retry: int) -> bytes:
        return chunk(b"retry: %d\n\n" % retry)

    def cursor(self, key: int) -> bytes:
        """Without data it is not an event, but a browser sends the id when it reconnects."""
        return chunk(b"id: %d\n\n" % key)

    def goodbye(self, reason: str, retry: int) -> bytes:
        if reason == "unavailable":
            return _event("unavailable", {}, f"retry: {retry}\n")
        return _event("bye", {"reason": reason}, f"retry: {retry}\n")

    async def drain(self, transport: asyncio.Transport, send: Send) -> None:
        await send(_EMPTY)

    async def close(self, send: Send, reason: str) -> None:
        await send(_END)

    def cut(self, connection: Connection) -> None:
        connection.is_ended, connection.end_reason = True, "stalled"
        reset(connection.transport)


SSE = SseWire()
