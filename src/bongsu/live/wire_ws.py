"""WebSocket: each event a text frame with a JSON object, whose `op` is the event's name.

The frame is made by the `websockets` library and written to the transport, as `websockets.broadcast` does: it is the same
for every reader because messages are not compressed, and no reader is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any, cast

import orjson
from starlette.types import Send
from websockets.frames import Frame, Opcode

from bongsu.live.connection import Connection

# How long a reader that has stalled may take to read on, and then gets the close code that says so.
STALLED_SECONDS = 30.0

# Why a connection ends, as close codes; 4000 and above are ours.
CLOSE_CODES = {
    # Come back with the cursor, after the time that `bye` gives.
    "restart": 1012,
    "timeout": 1012,
    "unavailable": 1013,
    # Authenticate first.
    "unauthenticated": 4401,
    "expired": 4401,
    "logout": 4401,
    # It has not read for long. Come back with the cursor.
    "stalled": 4408,
    # The member has opened more connections than are allowed, and this was the oldest.
    "replaced": 4409,
    # Too many frames that were no use.
    "flood": 4429,
}


def text(json: bytes) -> bytes:
    return Frame(Opcode.TEXT, json).serialize(mask=False)


def frame(op: str, **fields: Any) -> bytes:
    return text(orjson.dumps({"op": op, **fields}))


@functools.lru_cache(1024)
def _badge(unread: int) -> bytes:
    return frame("badge", unread=unread)


class _Uvicorn(asyncio.Protocol):
    """What is used of the connection's protocol: an event that is set while the transport takes more."""

    writable: asyncio.Event


class WebSocketWire:
    """See Wire."""

    ping = frame("ping")
    reset = frame("reset", reason="too-many-missed")

    def event(self, name: bytes, key: int, data: bytes) -> bytes:
        return text(b'{"op":"%b","cursor":"%d",%b' % (name, key, data[1:]))

    def badge(self, unread: int) -> bytes:
        return _badge(unread)

    def opening(self, retry: int) -> bytes:
        return frame("ready")

    def cursor(self, key: int) -> bytes:
        return frame("cursor", cursor=str(key))

    def goodbye(self, reason: str, retry: int) -> bytes:
        return frame("bye", reason=reason, retry=retry)

    async def drain(self, transport: asyncio.Transport, send: Send) -> None:
        protocol = cast(_Uvicorn | None, transport.get_protocol())
        # None: the connection has ended.
        if protocol is not None:
            await protocol.writable.wait()

    async def close(self, send: Send, reason: str) -> None:
        # RuntimeError: the server has closed it already, because of what the client sent.
        with contextlib.suppress(RuntimeError):
            await send({"type": "websocket.close", "code": CLOSE_CODES[reason], "reason": reason})

    def cut(self, connection: Connection) -> None:
        connection.finish("stalled", STALLED_SECONDS)


WS = WebSocketWire()
