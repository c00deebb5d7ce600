"""The HTTP server: uvicorn on a socket that is bound before anything else starts, and drained when the process stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import uvicorn
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from bongsu.api.admission import Admission
from bongsu.api.http_limits import HttpLimits
from bongsu.api.http_protocol import HttpProtocol
from bongsu.api.ws_protocol import WebSocketProtocol
from bongsu.errors import AddressTaken
from bongsu.runtime.process import address_of

# Requests under way get this long to finish after SIGTERM; orchestrators kill at 30 s.
DRAIN_SECONDS = 20


def bind(host: str, port: int) -> socket.socket:
    """Bound, but not yet listening: until there is something to answer with, callers are refused instead of hanging."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except BaseException:
            listener.close()
            raise
        return listener
    except (OSError, UnicodeError) as error:
        raise AddressTaken(f"Cannot listen on {host}:{port}: {error}") from None


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp,
    listener: socket.socket,
    drain: Callable[[], Awaitable[None]] | None = None,
    limits: HttpLimits = HttpLimits(),  # noqa: B008 (frozen)
) -> AsyncIterator[str]:
    """Serve on a bound socket, yield the address. At the end: stop accepting, `drain` what would not end by itself, and let
    requests finish."""
    # uvicorn would do the same by itself, but not show us whom it trusts.
    proxied = ProxyHeadersMiddleware(app, os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1"))  # type: ignore[arg-type]
    admission = Admission(limits.connections_per_address, proxied.trusted_hosts.__contains__)
    config = uvicorn.Config(
        proxied,
        proxy_headers=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        timeout_keep_alive=limits.keep_alive_seconds,  # type: ignore[arg-type]
        http=partial(HttpProtocol, limits=limits, admission=admission),  # type: ignore[arg-type]
        ws=WebSocketProtocol,
        ws_max_size=limits.frame_bytes,
        # Compression would keep a window for each socket, and encode each message for each of them.
        ws_per_message_deflate=False,
        # The gateway pings.
        ws_ping_interval=None,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="bongsu-http")
    try:
        await server.accepting.wait()
        yield address_of(listener)
    finally:
        server.should_exit = True
        if drain is not None:
            await drain()
        await task


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would end it before we could drain, and with an event for "it accepts"."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()
