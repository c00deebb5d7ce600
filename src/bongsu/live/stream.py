"""One open stream: what it has told, and the wire to its reader.

Bytes are written to the connection itself, because a framework's way there costs more than the rest of a fan-out. What a
reader has not taken waits in the connection's buffer. Beyond SLOW_BYTES what will be said again anyway is left out; beyond
STALLED_BYTES the reader is cut, and comes back with Last-Event-ID when it can.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bongsu import telemetry
from bongsu.live import frames

SLOW_BYTES = 64 * 1024
STALLED_BYTES = 1024 * 1024
# A reader that does not take the last words within this time is not waited for.
FAREWELL_SECONDS = 5.0

TRANSPORT = "bongsu.transport"
_NO_LINGER = struct.pack("ii", 1, 0)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: dict[str, Any] = {"type": "http.response.body", "body": b"", "more_body": True}
_END: dict[str, Any] = {"type": "http.response.body", "body": b"", "more_body": False}


class Carrier(asyncio.Protocol):
    """A connection that a stream may write to past the loop, because it tells the stream before its socket is closed."""

    __slots__ = ("stream",)
    stream: Stream

    def connection_lost(self, error: Exception | None) -> None:
        # The number of a socket that is closed is the next connection's.
        if (stream := getattr(self, "stream", None)) is not None:
            stream.lose()
            del self.stream
        super().connection_lost(error)


class StreamingProtocol(Carrier, HttpToolsProtocol):
    """uvicorn's protocol, handing the connection to who writes to it directly. Not itself: it would keep itself alive."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: self.transport}  # type: ignore[dict-item]


class Stream:
    """A connection of a member. Small: there may be ten thousand that have nothing to say."""

    __slots__ = (
        "_as_of",
        "_farewell",
        "_is_clear",
        "_send",
        "_socket",
        "_transport",
        "_unread",
        "connection_id",
        "cursor",
        "has_missed",
        "is_ended",
        "is_live",
        "last_step",
        "last_word",
        "member_id",
        "slot",
        "time_limit",
    )

    def __init__(self, member_id: str, connection_id: str, transport: asyncio.Transport, send: Send) -> None:
        self.member_id = member_id
        self.connection_id = connection_id
        self._transport = transport
        self._send = send
        self._socket = -1
        carrier, plain = transport.get_protocol(), transport.get_extra_info("socket")
        # What is enciphered on the way must not be written past that.
        if isinstance(carrier, Carrier) and plain is not None and transport.get_extra_info("sslcontext") is None:
            carrier.stream = self
            self._socket = plain.fileno() if os.name == "posix" else -1
        # Nothing waits in the connection, which is neither ended nor closed: what is said can go to the system itself.
        self._is_clear = False
        # Told is everything up to here, and nothing beyond.
        self.cursor = 0
        # Not before it has caught up with the store; what is new until then it has missed, and will look for.
        self.is_live = False
        self.has_missed = False
        self.is_ended = False
        self.last_word = ""
        # Its places on the wheel, and what sets the end of its time.
        self.time_limit = "timeout"
        self.last_step = 0
        self.slot = 0
        self._unread = -1
        self._as_of = LONG_AGO
        self._farewell: asyncio.Task[None] | None = None

    def tell(self, notification_id: int, chunk: bytes, unread: int | None, as_of: datetime) -> bool:
        """This one, and how many are unread if that is news too. False if it was told already, or is not to be."""
        if chunk := self.prepare(notification_id, chunk, unread, as_of):
            self.put(chunk)
        return bool(chunk)

    def prepare(self, notification_id: int, chunk: bytes, unread: int | None, as_of: datetime) -> bytes:
        """The same for those who `put` what is to be written themselves, and at once: from here on it counts as told.

        All in one write, because each is a call of the system: it is what telling many takes longest for.
        """
        if notification_id <= self.cursor or not chunk:
            self.cursor = max(self.cursor, notification_id)
            if unread is not None:
                self.badge(unread, as_of)
            return b""
        self.cursor = notification_id
        waiting = 0 if self._is_clear else self._backlog()
        if waiting < 0:
            return b""
        if unread is not None and self._is_new(unread, as_of):
            self._unread = -1
            if waiting <= SLOW_BYTES:
                self._unread = unread
                chunk += frames.badge(unread)
        return chunk

    def tell_all(self, chunks: Sequence[tuple[int, bytes]]) -> None:
        """Those that come first on a stream, by ids in order."""
        self.cursor = chunks[-1][0]
        self.write(b"".join(chunk for _, chunk in chunks))

    def write(self, chunk: bytes) -> None:
        """What must arrive, or the reader is cut."""
        if self._backlog() >= 0:
            self.put(chunk)

    def hint(self, chunk: bytes) -> bool:
        """What may be left out, because it will be said again. False if it was, or if the reader takes nothing any more."""
        if not 0 <= self._backlog() <= SLOW_BYTES:
            return False
        self.put(chunk)
        return True

    def _backlog(self) -> int:
        """How many bytes wait for the reader: less than none if nothing can be said any more. One who takes none is cut."""
        if self._is_clear:
            return 0
        transport = self._transport
        if self.is_ended or transport.is_closing():
            return -1
        waiting = transport.get_write_buffer_size()
        if waiting > STALLED_BYTES:
            self.cut()
            return -1
        self._is_clear = waiting == 0 and self._socket >= 0
        return waiting

    def put(self, chunk: bytes) -> None:
        """To the system itself where nothing waits before it: the loop's way, and asking it, is a sixth of the whole."""
        if self._is_clear:
            try:
                sent = os.write(self._socket, chunk)
            except OSError:  # full, or gone: the connection finds that out for itself
                sent = 0
            if sent == len(chunk):
                return
            chunk = chunk[sent:]
            self._is_clear = False
        if not self._transport.is_closing():
            self._transport.write(chunk)

    def badge(self, unread: int, as_of: datetime) -> None:
        """Say how many are unread, unless that is known, or something newer."""
        if self._is_new(unread, as_of):
            self._unread = unread if self.hint(frames.badge(unread)) else -1

    def _is_new(self, unread: int, as_of: datetime) -> bool:
        if as_of < self._as_of:
            return False
        self._as_of = as_of
        return unread != self._unread

    @property
    def is_behind(self) -> bool:
        """Whether something waits for the reader to take it."""
        return self._transport.get_write_buffer_size() > 0

    async def taken(self) -> None:
        """Wait while the reader is behind: for those who have much to say at once."""
        await self._send(_NOTHING)

    def end(self, farewell: bytes, last_word: str) -> None:
        """The last words, then the end of the answer. The request's own task sees that and goes."""
        if self.is_ended:
            return
        self.write(farewell)
        self.is_ended, self.last_word, self._is_clear = True, last_word, False
        if not self._transport.is_closing():
            self._farewell = asyncio.create_task(self._finish())

    def cut(self) -> None:
        if self.is_ended:
            return
        self.is_ended, self.last_word, self._is_clear = True, "stalled", False
        telemetry.LIVE_CUT.inc()
        # Else the system would keep what the reader does not take, megabytes of it, and go on offering it for minutes.
        connection = self._transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    def lose(self) -> None:
        """The connection is gone, and its socket's number is another's in a moment."""
        self._is_clear = False
        self._socket = -1

    async def _finish(self) -> None:
        # Also when all was given to the connection: one that never takes it would stay for ever.
        asyncio.get_running_loop().call_later(FAREWELL_SECONDS, self._transport.abort)
        await self._send(_END)
