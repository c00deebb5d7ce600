"""The simulator's HTTP/1.1 server with keep-alive, on a bare protocol, so that it is not the slow part of a benchmark."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, unquote

import httptools

from bongsu.errors import AddressTaken
from bongsu.runtime import telemetry
from bongsu.runtime.process import address_of, stop_on_signals, tune_gc
from bongsu.simulator import replies
from bongsu.simulator.config import BadConfig, Config, read_config, read_config_file
from bongsu.simulator.provider import Provider
from bongsu.simulator.replies import Manner, Reply

_log = telemetry.log("bongsu.simulator")

# Far more than FCM accepts; a body is held in memory until it is complete.
BODY_LIMIT = 1_000_000
# Reading pauses while so many pipelined requests wait for their replies (backpressure).
PIPELINE_LIMIT = 16
# SO_LINGER on with no time: closing sends RST instead of FIN.
_RESET = struct.pack("ii", 1, 0)
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


async def serve(
    host: str = "127.0.0.1",
    port: int = 9099,
    faults_file: Path | None = None,
    on_ready: Callable[[str], None] = lambda _address: None,
) -> None:
    """Simulate FCM until SIGTERM or SIGINT. `on_ready` is called with the address once requests are accepted."""
    config = read_config_file(faults_file) if faults_file is not None else Config.model_validate({})
    provider = Provider(config, time.monotonic, time.time)
    open_connections: set[Connection] = set()
    try:
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(provider, open_connections), host, port, backlog=2048
        )
    except (OSError, UnicodeError) as error:
        raise AddressTaken(f"Cannot listen on {host}:{port}: {error}") from None
    stopping = asyncio.Event()
    with stop_on_signals(stopping):
        address = address_of(server.sockets[0])
        tune_gc()
        _log.info("ready", address=address, simulates="FCM")
        on_ready(address)
        await stopping.wait()
    server.close()
    for connection in tuple(open_connections):
        connection.abort()
    await server.wait_closed()
    _log.info("stopped")


@dataclass(slots=True)
class Request:
    method: str = ""
    url: bytes = b""
    authorization: str = ""
    body: bytes = b""
    is_last: bool = False
    is_too_large: bool = False


class Connection(asyncio.Protocol):
    """One client. Requests are answered in order; a slow reply delays the client's next, as HTTP/1.1 does."""

    def __init__(self, provider: Provider, open_connections: set[Connection]) -> None:
        self._provider = provider
        self._open = open_connections
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._request = Request()
        self._waiting: deque[Request] = deque()
        self._is_answering = False
        self._timer: asyncio.TimerHandle | None = None

    # --- the transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open.discard(self)
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._transport is not None:
                self._transport.write(_encode(replies.problem(400, f"This is not HTTP/1.1: {error}"), is_last=True))
                self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- the parser's calls -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._request = Request()

    def on_url(self, url: bytes) -> None:
        self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"authorization":
            self._request.authorization = value.decode("latin-1")
        elif name == b"expect" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        request = self._request
        if len(request.body) + len(body) > BODY_LIMIT:
            request.is_too_large = True
        elif not request.is_too_large:
            request.body = request.body + body if request.body else body

    def on_message_complete(self) -> None:
        request = self._request
        request.method = self._parser.get_method().decode("latin-1")
        request.is_last = not self._parser.should_keep_alive()
        self._waiting.append(request)
        if len(self._waiting) > PIPELINE_LIMIT and self._transport is not None:
            self._transport.pause_reading()
        self._answer_next()

    # --- answering ----------------------------------------------------------------------------------------------------

    def _answer_next(self) -> None:
        while self._waiting and not self._is_answering and self._transport is not None:
            request = self._waiting.popleft()
            reply = answer(self._provider, request)
            self._is_answering = True
            if reply.delay:
                self._later(reply.delay, partial(self._write, reply, request))
            else:
                self._write(reply, request)

    def _write(self, reply: Reply, request: Request) -> None:
        transport = self._transport
        if transport is None:
            return
        match reply.manner:
            case Manner.WHOLE:
                transport.write(_encode(reply, request.is_last))
                self._answered(request)
            case Manner.SILENCE:
                return  # nor reply to later requests on this connection: it is dead
            case Manner.RESET:
                sock: socket.socket = transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                transport.abort()
            case Manner.DRIP:
                self._drip(_encode(reply, request.is_last), 0, request)

    def _drip(self, data: bytes, at: int, request: Request) -> None:
        if self._transport is None:
            return
        self._transport.write(data[at : at + 1])
        if at + 1 < len(data):
            self._later(self._provider.config.drip_ms / 1000, lambda: self._drip(data, at + 1, request))
        else:
            self._answered(request)
            self._answer_next()

    def _later(self, seconds: float, step: Callable[[], None]) -> None:
        def run() -> None:
            step()
            self._answer_next()

        self._timer = asyncio.get_running_loop().call_later(seconds, run)

    def _answered(self, request: Request) -> None:
        self._is_answering = False
        if self._transport is None:
            return
        if request.is_last:
            self._transport.close()
        elif not self._transport.is_reading():
            self._transport.resume_reading()


def answer(provider: Provider, request: Request) -> Reply:
    """Route a request to its handler."""
    if request.is_too_large:
        return replies.problem(413, f"The body is longer than {BODY_LIMIT} bytes: FCM takes 4,096")
    if request.method == "POST" and (project := _project(request.url)) is not None:
        return provider.send(project, request.authorization, request.body)
    path, _, query = request.url.decode("latin-1").partition("?")
    match request.method, path.strip("/").split("/"):
        case "POST", ["token"]:
            return provider.token(request.body)
        case _, ["_sim", *rest]:
            return _control(provider, request, rest, query)
    return replies.NOT_FOUND


@lru_cache
def _project(url: bytes) -> str | None:
    """The project whose messages are sent to this URL; None for other URLs."""
    match url.decode("latin-1").partition("?")[0].strip("/").split("/"):
        case ["v1", "projects", project, "messages:send"]:
            return unquote(project)
    return None


def _control(provider: Provider, request: Request, path: list[str], query: str) -> Reply:
    match request.method, path:
        case "POST", ["config"]:
            return _configure(provider, request.body)
        case "GET", ["config"]:
            return replies.json_reply(provider.config.model_dump(mode="json", by_alias=True))
        case "POST", ["reset"]:
            provider.reset()
            return replies.json_reply({"reset": True})
        case "GET", ["stats"]:
            return replies.json_reply(provider.stats())
        case "GET", ["ledger"]:
            filters = parse_qs(query)
            message, token = (filters.get(name, [None])[0] for name in ("message", "token"))
            return replies.json_reply(provider.ledger.to_json(message, token))
    detail = "There is POST and GET /_sim/config, GET /_sim/ledger, GET /_sim/stats and POST /_sim/reset"
    return replies.problem(404, detail)


def _configure(provider: Provider, body: bytes) -> Reply:
    try:
        provider.configure(read_config(body))
    except BadConfig as error:
        detail = "The config has mistakes: correct what `errors` names. Nothing was changed."
        return replies.problem(400, detail, error.mistakes)
    return replies.json_reply(provider.config.model_dump(mode="json", by_alias=True))


def _encode(reply: Reply, is_last: bool) -> bytes:
    return _head(reply.status, reply.content_type, reply.headers, len(reply.body), is_last) + reply.body


@lru_cache
def _head(status: int, content_type: str, headers: tuple[tuple[str, str], ...], length: int, is_last: bool) -> bytes:
    more = "".join(f"{name}: {value}\r\n" for name, value in headers)
    close = "Connection: close\r\n" if is_last else ""
    return (
        f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {length}\r\n{more}{close}\r\n"
    ).encode("latin-1")
