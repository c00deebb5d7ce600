"""One WebSocket connection: uvicorn's protocol on `websockets`, with what our HTTP protocol has for all connections."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import State

from bongsu.live.connection import LAST_FRAME_SECONDS, STALLED_BYTES, reset
from bongsu.live.wire_ws import CLOSE_CODES

# In a request's scope: the connection's transport. Not the protocol itself: that would be a reference cycle.
TRANSPORT = "bongsu.transport"
# Pieces of one message: each may be empty, and would cost memory all the same.
PIECES = 1_024
# Bytes that are taken in before other connections have their turn, and frames in them. A frame costs the same however small
# it is: a connection that sends empty ones as fast as it can would have all turns, for seconds. Those that mean something
# are three times as long, so more frames than that are a flood.
SLICE = 4_096
FRAMES = 200

# uvicorn and websockets write a line for each connection, with the query string; ours is in live/serving.py.
_log = logging.getLogger("bongsu.websocket")
_log.setLevel(logging.WARNING)
# And an error, one with a traceback, for what is a client's fault: text that is not UTF-8, and a token that was refused.
_FAULTS_OF_CLIENTS = ("Invalid UTF-8 sequence", "ASGI callable returned without completing handshake")
_log.addFilter(lambda record: not str(record.msg).startswith(_FAULTS_OF_CLIENTS))


class WebSocketProtocol(WebSocketsSansIOProtocol):
    # Called when the connection has ended.
    on_lost: Callable[[], None] | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = _log
        self.conn.logger = _log
        # What was read and not taken in yet. Until it is, no more is read.
        self._rest = b""
        self._is_next = False
        self._is_flooding = False

    def data_received(self, data: bytes) -> None:
        # No client may send frames before its request is answered: what is wrong with them could not be answered either.
        if self.handshake_initiated and not self.handshake_complete:
            reset(self.transport)
        elif not self.handshake_complete or (len(data) <= SLICE and not self._rest):
            super().data_received(data)
        else:
            self._rest += data
            self._go_on()

    def _go_on(self) -> None:
        """Take in the next slice when the others have had their turn; read on if there is none. Not before the application
        has taken what was in the last one."""
        if self.read_paused or self._is_next or self.transport.is_closing():
            return
        if self._is_flooding:
            self._end_flood()
        elif self._rest:
            self.transport.pause_reading()
            self._is_next = True
            self.loop.call_soon(self._take_slice)
        else:
            self.transport.resume_reading()

    def _take_slice(self) -> None:
        self._is_next = False
        if self.transport.is_closing():
            return
        piece, self._rest = self._rest[:SLICE], self._rest[SLICE:]
        super().data_received(piece)
        self._go_on()

    async def receive(self) -> Any:
        message = await super().receive()
        # It reads on once the queue is empty.
        if self._rest or self._is_flooding:
            self._go_on()
        return message

    def handle_events(self) -> None:
        if len(self.conn.events) > FRAMES:
            # The application is given some of them, and may answer them.
            del self.conn.events[FRAMES:]
            self._is_flooding = True
        try:
            super().handle_events()
        except InvalidState:
            # Text that is not UTF-8, and a goodbye behind it, which has been answered already: uvicorn would close again.
            reset(self.transport)
            return
        if self._is_flooding:
            self._go_on()

    def _end_flood(self) -> None:
        """Nothing more is read. The client has a moment to read why."""
        self._rest = b""
        self.transport.pause_reading()
        if self.close_sent:
            return
        code = CLOSE_CODES["flood"]
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": "flood"})
        # Closed already, if the client has said goodbye behind its flood.
        if self.conn.state is State.OPEN:
            self.conn.send_close(code, "flood")
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.close_timer = self.loop.call_later(LAST_FRAME_SECONDS, self.transport.abort)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["extensions"] = {**(self.scope["extensions"] or {}), TRANSPORT: self.transport}  # type: ignore[dict-item]

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= PIECES:
            reset(self.transport)
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        super().handle_ping()
        # A client that pings and does not read would have the answers kept for it.
        if self.transport.get_write_buffer_size() > STALLED_BYTES:
            reset(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)
        # Ends its parser, which refers to it: it is freed with the last reference and needs no collector.
        self.conn.receive_eof()

    def shutdown(self) -> None:
        """When the server stops. Accepted sockets are ended by the gateway's drain, which names the time to reconnect."""
        if self.close_sent or not self.handshake_complete:
            super().shutdown()
