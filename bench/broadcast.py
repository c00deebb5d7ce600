"""One message to everybody who is connected, over SSE and over WebSocket: by our gateway, and by others."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import timedelta
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from bench import cores
from bench.client import Client, encode
from bench.ground import KEYS
from bench.serving import Server, listening, serving
from bench.streams import Readers, readers
from bongsu.api.stream import PATH
from bongsu.api.websocket import PATH as SOCKET_PATH
from bongsu.live.encode import NOTIFICATION, after_id, with_id
from bongsu.live.messages import write_messages
from bongsu.live.wire_sse import SSE
from bongsu.model import Guarantee, new_id, utc_now
from bongsu.runtime.keys import Keys
from bongsu.runtime.redis_signals import RedisSignals
from bongsu.runtime.topics import MESSAGES_TOPIC
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import same
from bongsu.store.members import ensure_members
from bongsu.store.messages.content import MessageContent

RIVAL = "sse_starlette"
HAS_RIVAL = find_spec(RIVAL) is not None
TITLE, BODY = "겨울 외투 (남색, M)", "찜한 상품이 23% 내렸습니다: 129,000원 → 99,000원"

_numbers = count(1)

ADD_MESSAGE = same("""
    INSERT INTO bongsu_messages (event_id, notice_index, locale, type, subject, title, body, ref_id, data,
                                 channels, priority, guarantee, is_critical, created_at)
    VALUES ($1, 0, 'ko', 'PRICE_DROP', 's', $2, $3, $4, '{}', 8, 1, 'at_most_once', false, now())
    RETURNING message_id""")
ADD_NOTIFICATIONS = same("""
    INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
    SELECT member_id, CAST($1 AS bigint), 8, now() FROM bongsu_members""")
ADD_UNREAD = same("UPDATE bongsu_members SET unread = unread + 1")
VACUUM = same("VACUUM ANALYZE bongsu_members, bongsu_notifications, bongsu_messages")


class Audience(Protocol):
    """A server and those who read its streams."""

    server: Server

    async def open(self, count: int) -> None:
        """So many streams more, each of which is up to date when this returns."""

    async def send(self) -> float:
        """One message to all; the seconds until the last of them had it."""


def _mark() -> str:
    """No two messages are the same, so that a late one is not taken for the next."""
    return f"sku-{next(_numbers):08d}."


def _asking(count: int, path: str, headers: Sequence[str] = ()) -> list[bytes]:
    more = headers or [""] * count
    return [f"GET {path} HTTP/1.1\r\nHost: bench\r\n{line}\r\n".encode() for line in more]


# The handshake of a WebSocket. Nobody looks at the answer to the key.
UPGRADE = "".join(
    f"{line}\r\n"
    for line in (
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
)


# --- ours ---------------------------------------------------------------------------------------------------------------


class Ours:
    """A gateway on PostgreSQL and Redis, used as workers use it: the message is in the store, a signal names it."""

    def __init__(
        self, server: Server, some: Readers, settings: Settings, store: Store, signals: RedisSignals, is_ws: bool
    ) -> None:
        self.server = server
        self._is_ws = is_ws
        self._readers = some
        self._keys = Keys.load(settings)
        self._store = store
        self._signals = signals

    async def open(self, count: int) -> None:
        members = [f"member-{len(self._readers) + number:06d}" for number in range(count)]
        async with self._store.transaction() as tx:
            await ensure_members(tx, members)
        tokens = [self._keys.member_token(one, timedelta(hours=1)) for one in members]
        path, more = (f"{SOCKET_PATH}?notifications=true", UPGRADE) if self._is_ws else (PATH, "")
        requests = _asking(count, path, [f"Authorization: Bearer {one}\r\n{more}" for one in tokens])
        # The cursor is what a stream is given last, when it is up to date.
        await asyncio.to_thread(self._readers.open, requests, b'"cursor":"' if self._is_ws else b"id: ")

    async def send(self) -> float:
        mark = _mark()
        message_id = await self._commit(mark)
        waiting = asyncio.create_task(_watch(self._readers, mark))
        await asyncio.sleep(0)
        began = time.perf_counter()
        self._signals.send(MESSAGES_TOPIC, write_messages([message_id]))
        return await waiting - began

    async def _commit(self, mark: str) -> int:
        """What a fan-out leaves. Not timed: it has a benchmark of its own."""
        async with self._store.transaction() as tx:
            (row,) = await tx.fetch(ADD_MESSAGE(new_id(), TITLE, BODY, mark))
            message_id = int(row["message_id"])
            await tx.execute(ADD_NOTIFICATIONS(message_id), ADD_UNREAD())
        async with self._store.single() as tx:
            await tx.execute(VACUUM())
        return message_id


@contextlib.asynccontextmanager
async def ours(settings: Settings, profile: Path | None = None, *, is_ws: bool = False) -> AsyncIterator[Ours]:
    store, signals = Store.open(settings), RedisSignals(settings.redis_url)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        with cores.servers():
            server = await stack.enter_async_context(serving(settings, profile, role="gateway"))
        await signals.start()
        stack.push_async_callback(signals.stop)
        some = stack.enter_context(readers(server.port))
        yield Ours(server, some, settings, store, signals, is_ws)


# --- others -------------------------------------------------------------------------------------------------------------


class Theirs:
    """A server that is posted what to write to everybody."""

    def __init__(self, server: Server, some: Readers, body: Callable[[str], bytes]) -> None:
        self.server = server
        self._readers = some
        self._body = body

    async def open(self, count: int) -> None:
        await asyncio.to_thread(self._readers.open, _asking(count, "/stream"), b"retry: ")

    def _request(self, mark: str) -> bytes:
        return encode("/send", self._body(mark), "text/event-stream", KEYS["api_keys"])

    async def send(self) -> float:
        mark = _mark()
        request = self._request(mark)
        client = await Client.connect(self.server.port)
        waiting = asyncio.create_task(_watch(self._readers, mark))
        await asyncio.sleep(0)
        began = time.perf_counter()
        await client.send(request)
        seconds = await waiting - began
        client.close()
        return seconds


class TheirSockets(Theirs):
    """The same for WebSockets. `websockets` answers nothing but GET, so the message is in the query."""

    async def open(self, count: int) -> None:
        await asyncio.to_thread(self._readers.open, _asking(count, "/stream", [UPGRADE] * count), b'"op":"ready"')

    def _request(self, mark: str) -> bytes:
        return f"GET /send?{quote(self._body(mark))} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()


@contextlib.asynccontextmanager
async def websockets_broadcast(folder: Path) -> AsyncIterator[Theirs]:
    async with _theirs("bench.rivals.websockets_app", folder, _text, TheirSockets) as audience:
        yield audience


@contextlib.asynccontextmanager
async def starlette_loop(folder: Path) -> AsyncIterator[Theirs]:
    async with _theirs("bench.rivals.starlette_ws_app", folder, _text, TheirSockets) as audience:
        yield audience


@contextlib.asynccontextmanager
async def bare(folder: Path) -> AsyncIterator[Theirs]:
    """Writes to everybody the very bytes that one of our readers gets."""
    async with _theirs("bench.bare_streams", folder, _frames) as audience:
        yield audience


@contextlib.asynccontextmanager
async def rival(folder: Path) -> AsyncIterator[Theirs]:
    """Makes of the data the frames that our readers get."""
    async with _theirs("bench.rivals.sse_starlette_app", folder, _data) as audience:
        yield audience


@contextlib.asynccontextmanager
async def _theirs(
    module: str, folder: Path, body: Callable[[str], bytes], kind: type[Theirs] = Theirs
) -> AsyncIterator[Theirs]:
    async with contextlib.AsyncExitStack() as stack:
        with cores.servers():
            server = await stack.enter_async_context(listening(["-m", module], folder))
        yield kind(server, stack.enter_context(readers(server.port)), body)


def _frames(mark: str) -> bytes:
    content = MessageContent(1, "", "PRICE_DROP", TITLE, BODY, mark, "{}", Guarantee.AT_LEAST_ONCE, "ko", 1, None)
    data = with_id(1_000_000, after_id(utc_now(), content))
    return SSE.event(NOTIFICATION, 1_000_000, data) + SSE.badge(10)


def _text(mark: str) -> bytes:
    return b'{"op":"notification","cursor":"1000000",' + _data(mark)[1:]


def _data(mark: str) -> bytes:
    return _frames(mark).partition(b"\ndata: ")[2].partition(b"\n")[0]


async def _watch(some: Readers, mark: str) -> float:
    def watch() -> float:
        # The pool's threads were started from wherever.
        with cores.clients():
            return some.until_all_have(mark.encode())

    return await asyncio.to_thread(watch)
