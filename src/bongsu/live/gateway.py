"""The gateway: everything a process needs to serve streams, started and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice

from starlette.types import Receive, Send

from bongsu.chat.live_rooms import LiveRooms
from bongsu.live.catchup import CatchUp
from bongsu.live.connection import Connection, Wire
from bongsu.live.encode import retry_milliseconds
from bongsu.live.hub import Hub
from bongsu.live.member_state import OpenStreams, Stream
from bongsu.live.pings import PingSchedule
from bongsu.live.registry import LocalRegistry, RedisRegistry, Registry
from bongsu.live.serving import Reader, Refusal, Serving
from bongsu.live.wire_sse import HEADERS, SSE
from bongsu.runtime import telemetry
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import DISCONNECT_TOPIC, MESSAGES_TOPIC
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.messages.content import MessageCache

# A stop closes so many streams at a time, with a pause between: 10,000 of them take 5 s, well within what a stop may take,
# and the other instances get 2,000 a second instead of all at once.
SLICE = 200
SLICE_SECONDS = 0.1


class Gateway:
    def __init__(
        self,
        store: Store,
        signals: Signals,
        settings: Settings,
        message_cache: MessageCache | None = None,
        open_streams: OpenStreams | None = None,
    ) -> None:
        self._signals = signals
        self._registry: Registry = (
            RedisRegistry(settings.redis_url, signals, settings)
            if settings.redis_url
            else LocalRegistry(signals, settings.sse_max_connections)
        )
        messages = message_cache or MessageCache()
        self.open_streams = OpenStreams() if open_streams is None else open_streams
        self.catch_up = CatchUp(store, self.open_streams, messages)
        self.rooms = LiveRooms(store, signals, self.open_streams)
        self._hub = Hub(
            store, signals, self._registry, self.open_streams, self.rooms, self.catch_up.mark, settings.sse_replay, messages
        )
        self._pings = PingSchedule(settings.sse_ping_seconds, settings.sse_timeout_seconds, self._on_ping, self._time_is_up)
        self._serving = Serving(self._hub, self._pings, settings, self._refusal)
        self._is_draining = False
        # How many streams were closed together: as many come back, and the time within which they do grows with it.
        self._closed_together = 0
        self._open = contextlib.AsyncExitStack()

    async def start(self) -> None:
        self._open.enter_context(self._signals.watch(self._on_connection))
        self._open.enter_context(self._signals.listen(DISCONNECT_TOPIC, self._hub.disconnect))
        self._open.enter_context(self._signals.listen(MESSAGES_TOPIC, self.catch_up.on_broadcast))
        for part in (self._registry, self.catch_up, self.rooms, self._pings):
            await part.start()
            self._open.push_async_callback(part.stop)

    async def stop(self) -> None:
        await self._open.aclose()

    async def serve_sse(
        self,
        reader: Reader,
        transport: asyncio.Transport,
        headers: Sequence[tuple[bytes, bytes]],
        receive: Receive,
        send: Send,
    ) -> None:
        """Serve an SSE stream to someone who may read it. Returns when it has ended. The headers are those of the response
        besides those of every stream."""
        await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *headers]})
        stream = Stream(reader.member_id, self.connection(SSE, transport, send), is_by_cookie=reader.is_by_cookie)
        # As in Serving.serve, but with nothing in between that would be kept for each of thousands of idle streams.
        try:
            await self._serving.open(stream, reader)
            # Nothing more comes in on this connection but its end, ours or theirs.
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._serving.close(stream)

    def connection(self, wire: Wire, transport: asyncio.Transport, send: Send) -> Connection:
        return Connection(self._registry.new_id(), wire, transport, send)

    def give_new_id(self, connection: Connection) -> None:
        """Before the connection is served again: in the registry every id is entered once."""
        connection.connection_id = self._registry.new_id()

    def serve(
        self, reader: Reader, connection: Connection, until_closed: Callable[[Stream], Awaitable[None]]
    ) -> Awaitable[int | None]:
        """Serve a reader until the connection has ended, theirs or ours: `until_closed` returns then. Returns the cursor
        that the reader has then."""
        return self._serving.serve(reader, connection, until_closed)

    async def drain(self) -> None:
        """Close all streams, a slice at a time, and refuse new ones."""
        self._is_draining = True
        self._closed_together = len(self.open_streams)
        streams = iter(self.open_streams)
        while batch := list(islice(streams, SLICE)):
            for stream in batch:
                stream.connection.end("restart", retry_milliseconds(self._closed_together))
            await asyncio.sleep(SLICE_SECONDS if len(batch) == SLICE else 0)

    def _on_ping(self, member_ids: Iterable[str]) -> None:
        """Read the store, in case a signal was lost."""
        members = list(member_ids)
        self.catch_up.mark(members)
        self.rooms.check(members)

    def _time_is_up(self, stream: Stream) -> None:
        stream.connection.end(stream.time_limit, retry_milliseconds())

    def _refusal(self) -> Refusal | None:
        if self._is_draining:
            return "restart", retry_milliseconds(self._closed_together)
        if not self._signals.is_connected:
            return "unavailable", retry_milliseconds(self._closed_together)
        return None

    def _on_connection(self, is_connected: bool) -> None:
        """Without Redis, signals of other processes do not arrive: close the streams, so that pages show it."""
        if is_connected:
            return
        self._closed_together = len(self.open_streams)
        telemetry.log("bongsu.live").warning("Redis unreachable, closing streams", streams=self._closed_together)
        for stream in list(self.open_streams):
            stream.connection.end("unavailable", retry_milliseconds(self._closed_together))
