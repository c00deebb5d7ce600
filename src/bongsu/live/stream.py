"""One open stream: its cursor, and the connection to its reader.

Bytes are written to the connection's transport directly: going through the framework costs more than the rest of a fan-out.
Bytes that a reader has not taken wait in the transport's buffer. Above SLOW_BYTES only what must arrive is added; above
STALLED_BYTES the connection is closed, and the reader comes back with Last-Event-ID when it can.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.types import Send

from bongsu.live import frames
from bongsu.runtime import telemetry

SLOW_BYTES = 64 * 1024
STALLED_BYTES = 1024 * 1024
# The connection is closed if the reader has not taken the last frame within this time.
LAST_FRAME_SECONDS = 5.0

_NO_LINGER = struct.pack("ii", 1, 0)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_EMPTY: dict[str, Any] = {"type": "http.response.body", "body": b"", "more_body": True}
_END: dict[str, Any] = {"type": "http.response.body", "body": b"", "more_body": False}


def reset(transport: asyncio.Transport) -> None:
    """Close a connection at once, without what still waits for its reader."""
    # Without this the kernel keeps megabytes for the reader, and retransmits them for minutes.
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


class Stream:
    """A connection of a member. Small, because a process may have ten thousand idle ones."""

    __slots__ = (
        "_as_of",
        "_finishing",
        "_send",
        "_transport",
        "_unread",
        "_withdrawn",
        "connection_id",
        "cursor",
        "end_reason",
        "has_missed",
        "is_by_cookie",
        "is_ended",
        "is_live",
        "last_step",
        "member_id",
        "slot",
        "time_limit",
    )

    def __init__(self, member_id: str, connection_id: str, transport: asyncio.Transport, send: Send) -> None:
        self.member_id = member_id
        self.connection_id = connection_id
        self._transport = transport
        self._send = send
        # Everything up to this id was sent, and nothing above it.
        self.cursor = 0
        # Live once it has caught up with the store. What is new before that it has missed, and reads from the store.
        self.is_live = False
        self.has_missed = False
        # Opened with the session cookie: it ends when the member logs out.
        self.is_by_cookie = False
        self.is_ended = False
        self.end_reason = ""
        # Its slots in the PingSchedule, and what limits its lifetime.
        self.time_limit = "timeout"
        self.last_step = 0
        self.slot = 0
        # The unread count it sent last, -1 if unknown, and the time of the newest count it was given.
        self._unread = -1
        self._as_of = LONG_AGO
        # Frames about what was withdrawn before it is live, which takes ATTACH_SECONDS at most.
        self._withdrawn = b""
        self._finishing: asyncio.Task[None] | None = None

    def send_notification(self, notification_id: int, chunk: bytes, unread: int | None, as_of: datetime) -> bool:
        """Send a notification, and the unread count if it changed. False if it was sent before, is empty, or failed."""
        if notification_id <= self.cursor or not chunk:
            self.cursor = max(self.cursor, notification_id)
            if unread is not None:
                self.send_badge(unread, as_of)
            return False
        self.cursor = notification_id
        # Both in one write: each is a system call, and these are most of what a fan-out costs.
        return self.write(chunk + self._new_badge(unread, as_of) if unread is not None else chunk)

    def send_missed(self, chunks: Sequence[tuple[int, bytes]]) -> None:
        """Send the first notifications of a stream, in the order of their ids."""
        self.cursor = chunks[-1][0]
        self.write(b"".join(chunk for _, chunk in chunks))

    def become_live(self) -> None:
        self.is_live = True
        if self._withdrawn:
            self.write(self._withdrawn)
            self._withdrawn = b""

    def send_withdrawn(self, chunk: bytes) -> None:
        """Send that a notification was withdrawn. Before the stream is live it waits: the notification may be on its way."""
        if self.is_live:
            self.write(chunk)
        else:
            self._withdrawn += chunk

    def send_badge(self, unread: int, as_of: datetime) -> None:
        """Send the unread count, unless the reader has it, or a newer one."""
        if badge := self._new_badge(unread, as_of):
            self.write(badge)

    def _new_badge(self, unread: int, as_of: datetime) -> bytes:
        if as_of < self._as_of:
            return b""
        self._as_of = as_of
        if unread == self._unread:
            return b""
        self._unread = unread if 0 <= self._backlog() <= SLOW_BYTES else -1
        return frames.badge(unread) if self._unread >= 0 else b""

    def write(self, chunk: bytes) -> bool:
        """Send what must arrive. False if the stream has ended, also because its reader has stalled and is cut now."""
        if self._backlog() < 0:
            return False
        self._transport.write(chunk)
        return True

    def send_best_effort(self, chunk: bytes) -> bool:
        """Send what will be sent again, unless the reader is slow. False if it was not sent."""
        if not 0 <= self._backlog() <= SLOW_BYTES:
            return False
        self._transport.write(chunk)
        return True

    def _backlog(self) -> int:
        """How many bytes wait for the reader; -1 if the stream has ended. A reader that has stalled is cut."""
        transport = self._transport
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
        return not self._transport.is_closing() and self._transport.get_write_buffer_size() > 0

    async def drain(self) -> None:
        """Wait while the reader is behind: for callers with much to send at once."""
        await self._send(_EMPTY)

    def end(self, last_frame: bytes, reason: str) -> None:
        """Send the last frame, then end the response. The request's own task notices that and returns."""
        if self.is_ended:
            return
        self.write(last_frame)
        self.is_ended, self.end_reason = True, reason
        if not self._transport.is_closing():
            self._finishing = asyncio.create_task(self._finish())

    def cut(self) -> None:
        """Close the connection at once, without what still waits for the reader."""
        if self.is_ended:
            return
        self.is_ended, self.end_reason = True, "stalled"
        telemetry.LIVE_CUT.inc()
        reset(self._transport)

    async def _finish(self) -> None:
        # Even if everything was written to the transport: a reader that never reads would keep it open for ever.
        asyncio.get_running_loop().call_later(LAST_FRAME_SECONDS, self._transport.abort)
        await self._send(_END)
