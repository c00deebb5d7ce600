"""The connection to one reader, whatever its protocol: SSE or WebSocket.

Bytes are written to the connection's transport directly: going through the framework costs more than the rest of a fan-out,
and would have to wait for slow readers. Bytes that a reader has not taken wait in the transport's buffer. Above SLOW_BYTES
only what must arrive is added; above STALLED_BYTES the connection is closed, and the reader comes back with its cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Protocol

from starlette.types import Send

from bongsu.runtime import telemetry

SLOW_BYTES = 64 * 1024
STALLED_BYTES = 1024 * 1024
# The connection is closed if the reader has not taken the last frame within this time.
LAST_FRAME_SECONDS = 5.0

_NO_LINGER = struct.pack("ii", 1, 0)


class Wire(Protocol):
    """How a protocol carries events. One object for all connections that use it."""

    # From now on what is new is sent. Empty if readers are not sent it.
    ready: bytes
    # What keeps the connection open in proxies, and shows the reader that it is.
    ping: bytes
    # More was missed than is sent: the reader should load the inbox.
    reset: bytes

    def event(self, name: bytes, key: int, data: bytes) -> bytes:
        """An event with its place in the member's cursor. `data` is a JSON object that is not empty."""

    def badge(self, unread: int) -> bytes: ...

    def chat(self, is_message: bool, data: bytes) -> bytes:
        """What happens in a chat room: a message or something else, as a JSON object. Empty if readers are not sent it."""

    def opening(self, retry: int) -> bytes:
        """The first frame."""

    def cursor(self, key: int) -> bytes:
        """Where the reader is, without an event."""

    def goodbye(self, reason: str, retry: int) -> bytes:
        """The last frame: why, and after how many milliseconds to come back."""

    async def drain(self, transport: asyncio.Transport, send: Send) -> None:
        """Wait while the reader is behind."""

    async def close(self, send: Send, reason: str) -> None:
        """End the response or the socket, behind what was written."""

    def cut(self, connection: Connection) -> None:
        """The reader has stalled: close without waiting for it."""


def reset(transport: asyncio.Transport) -> None:
    """Close a connection at once, without what still waits for its reader."""
    # Without this the kernel keeps megabytes for the reader, and retransmits them for minutes.
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


class Connection:
    """Small, because a process may have ten thousand idle ones."""

    __slots__ = ("_finishing", "_send", "connection_id", "end_reason", "is_ended", "transport", "wire")

    def __init__(self, connection_id: str, wire: Wire, transport: asyncio.Transport, send: Send) -> None:
        self.connection_id = connection_id
        self.wire = wire
        self.transport = transport
        self._send = send
        self.is_ended = False
        self.end_reason = ""
        self._finishing: asyncio.Task[None] | None = None

    def write(self, frame: bytes) -> bool:
        """Send what must arrive. False if it has ended, also because its reader has stalled and is cut now."""
        if self.backlog() < 0:
            return False
        self.transport.write(frame)
        return True

    def write_best_effort(self, frame: bytes) -> bool:
        """Send what will be sent again, unless the reader is slow. False if it was not sent."""
        if not 0 <= self.backlog() <= SLOW_BYTES:
            return False
        self.transport.write(frame)
        return True

    def backlog(self) -> int:
        """How many bytes wait for the reader; -1 if the connection has ended. A reader that has stalled is cut."""
        transport = self.transport
        if self.is_ended or transport.is_closing():
            return -1
        waiting = transport.get_write_buffer_size()
        if waiting > STALLED_BYTES:
            self.cut()
            return -1
        return waiting

    @property
    def is_behind(self) -> bool:
        """Whether something waits for the reader."""
        return not self.transport.is_closing() and self.transport.get_write_buffer_size() > 0

    async def drain(self) -> None:
        """Wait while the reader is behind: for callers with much to send at once."""
        await self.wire.drain(self.transport, self._send)

    def end(self, reason: str, retry: int) -> None:
        """Say why and when to come back, then close. The request's own task notices that and returns."""
        if self.is_ended:
            return
        self.write(self.wire.goodbye(reason, retry))
        self.finish(reason, LAST_FRAME_SECONDS)

    def cut(self) -> None:
        """Close it in spite of what still waits for the reader."""
        if self.is_ended:
            return
        telemetry.LIVE_CUT.inc()
        self.wire.cut(self)

    def finish(self, reason: str, seconds: float) -> None:
        """Close behind what was written. After so many seconds, without it."""
        if self.is_ended:
            return
        self.is_ended, self.end_reason = True, reason
        if not self.transport.is_closing():
            self._finishing = asyncio.create_task(self._close(reason, seconds))

    async def _close(self, reason: str, seconds: float) -> None:
        # Even if everything was written to the transport: a reader that never reads would keep it open for ever.
        asyncio.get_running_loop().call_later(seconds, self.transport.abort)
        with contextlib.suppress(OSError):
            await self.wire.close(self._send, reason)
