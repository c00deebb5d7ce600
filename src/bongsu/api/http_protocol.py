"""One HTTP connection: uvicorn's protocol on httptools, with limits on what a client sends and on how slowly.

httptools, not h11: it parses several times faster, and its callbacks show every part of a request as it comes. It has no
limits of its own, and neither has uvicorn around it; they are here:

- the head: its bytes and its number of headers (414, 431). Trailers and chunk extensions count as if they were a head;
- time: a head has to be complete, and a body to keep coming, within `request_seconds` (408). So has a client to read;
- requests sent before the answers of earlier ones;
- connections per address, see admission.py. Idle connections are closed by uvicorn after `keep_alive_seconds`.

What is sent behind the request of a stream is dropped: a stream ends with its connection, whatever else came on it. A
request for a WebSocket hands its connection to ws_protocol.py.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from websockets.http11 import MAX_LINE_LENGTH

from bongsu.api.admission import Admission
from bongsu.api.http_limits import HttpLimits
from bongsu.api.problems import problem
from bongsu.api.security_headers import with_security_headers
from bongsu.api.ws_protocol import TRANSPORT, WebSocketProtocol
from bongsu.live.connection import reset

# Where clients may change to WebSocket.
SOCKET_PATH = b"/api/chat/ws"

# A body has to come at least this fast, and an answer to be read, over each `request_seconds`: slower than any modem, and
# too fast to hold thousands of connections open with.
BYTES_PER_SECOND = 500
# What a chunk of a body may take besides its data: its size in hexadecimal, two line ends, and a short extension.
CHUNK_BYTES = 32
# After a read of so many bytes others have their turn. uvloop reads up to 32 times 256 KB from one connection before it
# reads from another, and in chunks of one byte that is a second of parsing.
LARGE_READ = 65_536
# Requests on one connection that wait for their turn. Reading pauses with the first, but one read may bring thousands.
PIPELINE_LIMIT = 100
# After a refusal, how long the rest of the request is read and dropped: closed at once, the answer might never arrive.
LINGER_SECONDS = 2.0


class _Refused(Exception):
    """A request is refused with this status and this explanation, before it is complete."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class HttpProtocol(HttpToolsProtocol):
    def __init__(self, *, limits: HttpLimits, admission: Admission, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._admission = admission
        self._address: str | None = None
        # The request that is being answered. `cycle` is the newest, which may still wait for its turn.
        self._answering: RequestResponseCycle | None = None
        self._is_in_head = False
        self._head_bytes = 0
        # Bytes of this request that are not its body.
        self._overhead = 0
        # Bytes since the timer was set, and whether the client waited for us then.
        self._received = 0
        self._was_held = False
        self._is_dropping_input = False
        # What is waited for: at first a request, then that its rest comes, and at last that the answer is read.
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # --- the connection -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = self._admission.enter(transport, self.client)
        if self._address is None:
            # Without an answer: a status would end a browser's EventSource for good.
            self._is_dropping_input = True
            transport.abort()
            return
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._address is not None:
            self._admission.leave(self._address)
        self._cancel_timer()
        self._cancel_write_timer()
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        # uvicorn notifies the newest request only.
        if (cycle := self._answering) is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def drop_input(self) -> None:
        """For a stream, before its response begins: from now on nothing else is sent on the connection, and it closes with
        the stream."""
        assert self._answering is not None
        self._is_dropping_input = True
        self._answering.keep_alive = False
        self.cycle = self._answering
        self.pipeline.clear()
        self.parser = None  # type: ignore[assignment]
        self._cancel_timer()
        # A request behind this one may have paused it: the end of the connection would not be noticed.
        self.flow.resume_reading()

    # --- what comes in ------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_dropping_input:
            return
        self._unset_keepalive_if_required()
        self._overhead += len(data)
        self._received += len(data)
        try:
            self._feed(data)
            if self._overhead > self._limits.head_bytes:
                raise self._too_large()
        except httptools.HttpParserError as error:
            found = error.__context__
            self._refuse(found if isinstance(found, _Refused) else _Refused(400, "This is not a valid HTTP/1.1 request"))
            return
        except _Refused as refused:
            self._refuse(refused)
            return
        if self._is_dropping_input:
            return  # it is a WebSocket now
        if len(data) >= LARGE_READ:
            self._give_way()
        if not self._is_waiting_for_client():
            self._cancel_timer()
        elif self._timer is None and self.timeout_keep_alive_task is None:
            self._set_timer()

    def _give_way(self) -> None:
        """Read on when the others have had their turn, unless the application has not taken what was read."""
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                rest = data[upgrade.args[0] :]
                if self._should_upgrade():
                    self._become_websocket(rest)
                    return
                data = self._without_upgrade() + rest

    def _should_upgrade(self) -> bool:
        """Whether this request begins a WebSocket. It has to be the only one: its answer changes the protocol."""
        is_alone = self._answering is None or self._answering.response_complete
        is_ours = self.url.partition(b"?")[0] == SOCKET_PATH and self.parser.get_method() == b"GET"
        return is_alone and is_ours and super()._should_upgrade()

    def _become_websocket(self, rest: bytes) -> None:
        self._is_dropping_input = True
        self._cancel_timer()
        self._unset_keepalive_if_required()
        self.handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, WebSocketProtocol)
        # From now on the connection's end is that protocol's to notice.
        protocol.on_lost = partial(self._admission.leave, self._address or "")
        # The parser's callbacks refer to this object: it is freed with the last reference and needs no collector.
        self.parser = None  # type: ignore[assignment]
        if not protocol.handshake_initiated:
            # `websockets` takes shorter lines than we do, and no body. It waits for the end of what it does not take.
            refused = _Refused(400, f"A WebSocket begins without a body, with lines of at most {MAX_LINE_LENGTH} bytes")
            self.transport.write(_encode(refused))
            self.transport.close()
        elif rest:
            protocol.data_received(rest)

    def _without_upgrade(self) -> bytes:
        """The head that was just read, without its Upgrade header: that protocol is not supported here, and httptools would
        take what follows for it. A body would be lost, or read as a request that a proxy in front of us has not seen."""
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/", self.parser.get_http_version().encode(), b"\r\n"]
        for name, value in self.headers:
            if name != b"upgrade":
                head += [name, b": ", value, b"\r\n"]
        self.parser = _new_parser(self)
        return b"".join([*head, b"\r\n"])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # A connection may have been opened long before its first request.
        self._cancel_timer()
        self._unset_keepalive_if_required()
        self._is_in_head = True
        self._head_bytes = 0
        self.scope["extensions"] = {TRANSPORT: self.transport}  # type: ignore[dict-item]

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_bytes += len(url)
        if self._head_bytes > self._limits.head_bytes:
            raise _Refused(414, f"The address is longer than {self._limits.head_bytes} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # trailers are not read, and must not join the headers that were checked
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.head_bytes:
            raise self._too_large()
        if len(self.headers) >= self._limits.headers:
            raise _Refused(431, f"There are more than {self._limits.headers} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= PIPELINE_LIMIT:
            raise _Refused(429, f"More than {PIPELINE_LIMIT} requests were sent without waiting for answers")
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Refused(400, "CONNECT is for proxies")
            if self._should_upgrade():
                super().on_headers_complete()
            return  # or it comes again: see _without_upgrade
        self._is_in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        # Called for each chunk, which may be one byte: a callback for the chunk's head would take as long again.
        self._overhead = max(0, self._overhead - len(body) - CHUNK_BYTES)
        if not self.cycle.response_complete:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._overhead = 0
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            # It was answered before its body came, which uvicorn no longer reads: only now is the connection idle.
            self.cycle.more_body = False
            self._cancel_timer()
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _too_large(self) -> _Refused:
        return _Refused(431, f"The headers, or a chunk's extensions, are larger than {self._limits.head_bytes} bytes")

    # --- what is answered ---------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which starts the next request that waits
        if self._is_dropping_input and self._answering is not None and self._answering.response_complete:
            self.transport.close()
        if self.transport.is_closing():
            self._await_reader()

    def _refuse(self, refused: _Refused) -> None:
        """Read no more requests, and say why if this is the one whose turn it is to be answered."""
        self._is_dropping_input = True
        self._cancel_timer()
        cycle = self._answering if self._answering and not self._answering.response_complete else None
        if cycle is not None and (self._is_in_head or cycle is not self.cycle or not cycle.more_body):
            return  # those before it are still answered
        is_answered = cycle.response_started if cycle is not None else self._is_in_answered_body()
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        if is_answered:
            self.transport.close()
        else:
            self.transport.write(_encode(refused))
            self.transport.write_eof()
        self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _is_in_answered_body(self) -> bool:
        return not self._is_in_head and self.cycle is not None

    # --- time ---------------------------------------------------------------------------------------------------------

    def _is_waiting_for_client(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _set_timer(self) -> None:
        self._received, self._was_held = 0, False
        self._timer = self.loop.call_later(self._limits.request_seconds, self._check_progress)

    def _check_progress(self) -> None:
        self._timer = None
        if self.transport.is_closing() or not self._is_waiting_for_client():
            return
        if not self._is_in_head and not self._is_in_body():
            self.transport.close()
        elif self._is_in_body() and (self._was_held or self._is_reading_held() or self._received >= self._least_bytes()):
            self._set_timer()
            self._was_held = self._is_reading_held()
        else:
            self._refuse(_Refused(408, f"The request did not arrive within {self._limits.request_seconds:g} seconds"))

    def _is_in_body(self) -> bool:
        return not self._is_in_head and self.cycle is not None and self.cycle.more_body

    def _is_reading_held(self) -> bool:
        """Whether the client waits for us."""
        cycle = self.cycle
        is_held = self.flow.read_paused or bool(cycle.body) or cycle.waiting_for_100_continue or cycle is not self._answering
        return is_held and not cycle.response_complete

    def _least_bytes(self) -> float:
        return BYTES_PER_SECOND * self._limits.request_seconds

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # A client that does not read holds the answer in memory. A stream has limits of its own: see live/connection.py.

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.parser is not None:
            self._await_reader()

    def resume_writing(self) -> None:
        self._cancel_write_timer()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._await_reader()

    def _await_reader(self) -> None:
        if self._write_timer is None and (waiting := self.transport.get_write_buffer_size()):
            self._write_timer = self.loop.call_later(self._limits.request_seconds, self._check_reader, waiting)

    def _check_reader(self, waited: int) -> None:
        """An answer waits whole for its reader, who may need long for a large one, but not for ever."""
        self._write_timer = None
        waiting = self.transport.get_write_buffer_size()
        if waiting and waiting > waited - self._least_bytes():
            reset(self.transport)
        else:
            self._await_reader()

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _new_parser(protocol: HttpProtocol) -> httptools.HttpRequestParser:
    """As uvicorn makes it: a request behind one that ends the connection does not keep that from being answered."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _encode(refused: _Refused) -> bytes:
    answer = problem(refused.status, refused.detail)
    headers = with_security_headers([*answer.raw_headers, (b"connection", b"close")])
    return b"".join(
        [STATUS_LINE[refused.status], *(b"%b: %b\r\n" % header for header in headers), b"\r\n", bytes(answer.body)]
    )
