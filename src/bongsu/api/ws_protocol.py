"""One WebSocket connection: uvicorn's protocol on `websockets`, with what our HTTP protocol has for all connections."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

from bongsu.live.connection import STALLED_BYTES, reset

# In a request's scope: the connection's transport. Not the protocol itself: that would be a reference cycle.
TRANSPORT = "bongsu.transport"
# Pieces of one message: each may be empty, and would cost memory all the same.
PIECES = 1_024

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

    def data_received(self, data: bytes) -> None:
        # No client may send frames before its request is answered: what is wrong with them could not be answered either.
        if self.handshake_initiated and not self.handshake_complete:
            reset(self.transport)
            return
        super().data_received(data)

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
