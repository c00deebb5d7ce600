"""Our HTTP client (docs/decisions/0005-our-own-http-client.md): a request ends with an answer, NotSent or ResponseLost.

The difference between the last two decides whether a repeat can arrive twice.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable, Mapping
from functools import partial

from bongsu.deliver.channels.http.http1 import Answer, Connection, NotSent, OnAnswer, ResponseLost
from bongsu.deliver.channels.http.proxy import Proxies, open_tunnel
from bongsu.deliver.channels.http.request_head import Origin, RequestHead, make_head

__all__ = ["Answer", "HttpClient", "NotSent", "OnAnswer", "ResponseLost"]

# Long enough for a slow handshake; short of the whole call's time, so that it is known which of the two ran out.
CONNECT_SECONDS = 5.0
# Servers close idle connections, each after a time of its own, and a request that crosses with the closing is lost: the
# fewer old ones are used, the fewer are. Much shorter → a handshake for every burst.
IDLE_SECONDS = 15.0
# An access token changes once an hour; a caller whose headers change with each call finds the cache empty, not large.
MOST_HEADS = 64
# What ends so soon has ended: loops keep time in milliseconds.
TICK_SECONDS = 0.001
# Connections that are aborted are closed with the loop's next steps.
CLOSE_SECONDS = 1.0


class HttpClient:
    """Connections to one provider, kept open between calls. Any number of calls at once, from one event loop.

    The caller bounds the calls under way. Above `idle_connections` a connection is closed after its answer, not kept.
    """

    def __init__(self, timeout_seconds: float, idle_connections: int = 512, *, uses_proxy: bool = True) -> None:
        """With `uses_proxy`, through the proxy that the environment names, if it names one."""
        self._timeout = timeout_seconds
        self._connect_seconds = min(CONNECT_SECONDS, timeout_seconds / 2)
        self._idle_connections = idle_connections
        self._proxies = Proxies(uses_proxy)
        self._heads: dict[tuple[str | tuple[str, str], ...], tuple[_Pool, bytes]] = {}
        self._pools: dict[Origin, _Pool] = {}
        self._tls: ssl.SSLContext | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # One timer for all connections, set to the first that can run out of time.
        self._sweep_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        # Connections being opened: a task that only the event loop refers to may be collected.
        self._openings: set[asyncio.Task[Connection | None]] = set()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer | NotSent | ResponseLost:
        return await self._request("POST", url, headers, body)

    async def get(self, url: str, headers: Mapping[str, str]) -> Answer | NotSent | ResponseLost:
        return await self._request("GET", url, headers, b"")

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> Answer | NotSent | ResponseLost:
        answer: asyncio.Future[Answer | NotSent | ResponseLost] = asyncio.get_running_loop().create_future()
        give_up = self.start(url, headers, body, partial(_settle, answer), method)
        try:
            return await answer
        except asyncio.CancelledError:
            # Not when the answer was there already: another call may be using the connection by now.
            if answer.cancelled():
                give_up()
            raise

    def start(
        self, url: str, headers: Mapping[str, str], body: bytes, on_answer: OnAnswer, method: str = "POST"
    ) -> Callable[[], object]:
        """Send now if a connection is free, else when one is open; return what gives it up. `on_answer` is called once."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        try:
            pool, start = self._heads.get((method, url, *headers.items())) or self._head(loop, method, url, headers)
        except ValueError as error:
            on_answer(NotSent(str(error)))
            return _nothing
        now = loop.time()
        connection = pool.take(now)
        if connection is None:
            opening = loop.create_task(self._open_and_ask(loop, pool, start, body, now + self._timeout, on_answer))
            self._openings.add(opening)
            opening.add_done_callback(self._openings.discard)
            return partial(_give_up, opening)
        self._ask(loop, connection, start, body, now + self._timeout, on_answer)
        return connection.abort

    async def close(self) -> None:
        """May be called twice. What is under way is lost; what comes later is not sent."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        connections = self._connections()
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=CLOSE_SECONDS)

    async def _open_and_ask(
        self, loop: asyncio.AbstractEventLoop, pool: _Pool, start: bytes, body: bytes, until: float, on_answer: OnAnswer
    ) -> Connection | None:
        connection = await self._connect(loop, pool)
        if isinstance(connection, NotSent):
            on_answer(connection)
            return None
        self._ask(loop, connection, start, body, until, on_answer)
        return connection

    def _ask(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Connection,
        start: bytes,
        body: bytes,
        until: float,
        on_answer: OnAnswer,
    ) -> None:
        if until < self._sweep_at:
            self._sweep_next(loop, until)
        connection.ask(b"%b%d\r\n\r\n%b" % (start, len(body), body), until, on_answer)

    # --- before sending -----------------------------------------------------------------------------------------------

    def _head(
        self, loop: asyncio.AbstractEventLoop, method: str, url: str, headers: Mapping[str, str]
    ) -> tuple[_Pool, bytes]:
        head: RequestHead = make_head(url, headers, self._proxies, method)
        pool = self._pools.get(head.origin)
        if pool is None:
            pool = self._pools[head.origin] = _Pool(head.origin, self._idle_connections, loop)
        if len(self._heads) >= MOST_HEADS:
            self._heads.clear()
        known = self._heads[(method, url, *headers.items())] = pool, head.start
        return known

    async def _connect(self, loop: asyncio.AbstractEventLoop, pool: _Pool) -> Connection | NotSent:
        if self._is_closed:
            return NotSent("closed already")
        connection = Connection(loop, pool)
        try:
            async with asyncio.timeout(self._connect_seconds):
                await self._open(loop, connection, pool.origin)
        except TimeoutError:
            return NotSent(f"no connection to {pool.origin.host} within {self._connect_seconds:g} s")
        except (OSError, ValueError) as error:
            return NotSent(str(error) or type(error).__name__)
        if self._is_closed or connection.is_closing:
            connection.abort()
            return NotSent("the connection was closed as soon as it was open")
        pool.open.add(connection)
        return connection

    async def _open(self, loop: asyncio.AbstractEventLoop, connection: Connection, origin: Origin) -> None:
        host, port, is_tls, proxy = origin
        if not is_tls:
            await loop.create_connection(lambda: connection, host, port)
        elif proxy is None:
            await loop.create_connection(lambda: connection, host, port, ssl=self._context(), server_hostname=host)
        else:
            tunnel = await open_tunnel(loop, proxy, host, port)
            transport = await loop.start_tls(tunnel, connection, self._context(), server_hostname=host)
            if transport is None:
                raise OSError("the proxy closed the tunnel")
            connection.connection_made(transport)

    def _context(self) -> ssl.SSLContext:
        """Made by the first who needs it: reading the certificates of all authorities takes a while."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
            # HTTP/2 would put a hundred sends on one connection, and one reset would leave a hundred unknown.
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls

    # --- time ---------------------------------------------------------------------------------------------------------

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """End what has run out of time, and come back for the next."""
        now = loop.time() + TICK_SECONDS
        connections = self._connections()
        try:
            for connection in connections:
                if connection.until <= now:
                    connection.expire()
        finally:
            # An exception in one callback must not stop the timeouts of the others.
            self._sweep_next(loop, min((connection.until for connection in connections), default=math.inf))

    def _sweep_next(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._sweep_at = at
        self._timer = None if math.isinf(at) else loop.call_at(at, self._sweep, loop)

    def _connections(self) -> list[Connection]:
        return [connection for pool in self._pools.values() for connection in pool.open]


def _settle(answer: asyncio.Future[Answer | NotSent | ResponseLost], result: Answer | NotSent | ResponseLost) -> bool:
    if answer.done():
        return False
    answer.set_result(result)
    return True


def _give_up(opening: asyncio.Task[Connection | None]) -> None:
    """Stop connecting; if the request was sent meanwhile, abort its connection."""
    if opening.cancel() or opening.cancelled():
        return
    if (connection := opening.result()) is not None:
        connection.abort()


def _nothing() -> None:
    """Nothing was started."""


class _Pool:
    """The connections to one origin. The last used is the next: the others grow old and are closed when load falls."""

    def __init__(self, origin: Origin, most_idle: int, loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self.open: set[Connection] = set()
        self._idle: list[Connection] = []
        self._most_idle = most_idle
        self._loop = loop

    def take(self, now: float) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.until > now and not connection.is_closing:
                return connection
            connection.abort()
        return None

    def keep(self, connection: Connection) -> None:
        if len(self._idle) >= self._most_idle:
            connection.abort()
            return
        connection.until = self._loop.time() + IDLE_SECONDS
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self.open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
