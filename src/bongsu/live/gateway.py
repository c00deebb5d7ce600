"""The gateway: everything a process needs to serve streams, started and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice

from starlette.types import Receive, Send

from bongsu.live import frames
from bongsu.live.hub import Hub
from bongsu.live.pings import PingSchedule
from bongsu.live.registry import LocalRegistry, RedisRegistry, Registry
from bongsu.live.sse import Reader, SseEndpoint
from bongsu.live.stream import Stream
from bongsu.live.withdrawals import MissedWithdrawals
from bongsu.runtime import telemetry
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import DISCONNECT_TOPIC, MESSAGES_TOPIC, WITHDRAWN_TOPIC
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.messages.content import MessageCache

# A stop closes so many streams at a time, with a pause between: 10,000 of them take 5 s, well within what a stop may take,
# and the other instances get 2,000 a second instead of all at once.
SLICE = 200
SLICE_SECONDS = 0.1


class Gateway:
    def __init__(
        self, store: Store, signals: Signals, settings: Settings, message_cache: MessageCache | None = None
    ) -> None:
        self._signals = signals
        self._registry: Registry = (
            RedisRegistry(settings.redis_url, signals, settings)
            if settings.redis_url
            else LocalRegistry(signals, settings.sse_max_connections)
        )
        self.hub = Hub(store, signals, self._registry, settings.sse_replay, message_cache or MessageCache())
        self._missed = MissedWithdrawals(store, self.hub, self.hub.catch_up.add_withdrawn, settings.poll_seconds)
        self._pings = PingSchedule(
            settings.sse_ping_seconds, settings.sse_timeout_seconds, self.hub.catch_up.mark, self._time_is_up
        )
        self._sse = SseEndpoint(self.hub, self._registry, self._pings, settings, self._refusal)
        self._is_draining = False
        # How many streams were closed together: as many come back, and the time within which they do grows with it.
        self._closed_together = 0
        self._open = contextlib.AsyncExitStack()

    async def start(self) -> None:
        self._open.enter_context(self._signals.watch(self._on_connection))
        self._open.enter_context(self._signals.listen(DISCONNECT_TOPIC, self.hub.disconnect))
        self._open.enter_context(self._signals.listen(MESSAGES_TOPIC, self.hub.catch_up.on_broadcast))
        self._open.enter_context(self._signals.listen(WITHDRAWN_TOPIC, self.hub.catch_up.on_message_withdrawn))
        for part in (self._registry, self.hub.catch_up, self._missed, self._pings):
            await part.start()
            self._open.push_async_callback(part.stop)

    async def stop(self) -> None:
        await self._open.aclose()

    async def serve_sse(self, reader: Reader, receive: Receive, send: Send) -> None:
        """Serve a stream to someone who may read it. Returns when it has ended."""
        await self._sse.serve(reader, receive, send)

    async def drain(self) -> None:
        """Close all streams, a slice at a time, and refuse new ones."""
        self._is_draining = True
        self._closed_together = len(self.hub)
        streams = self.hub.streams()
        while batch := list(islice(streams, SLICE)):
            for stream in batch:
                stream.end(frames.bye("restart", frames.retry_milliseconds(self._closed_together)), "restart")
            await asyncio.sleep(SLICE_SECONDS if len(batch) == SLICE else 0)

    def _time_is_up(self, stream: Stream) -> None:
        stream.end(frames.bye(stream.time_limit, frames.retry_milliseconds()), stream.time_limit)

    def _refusal(self) -> bytes | None:
        if self._is_draining:
            return frames.bye("restart", frames.retry_milliseconds(self._closed_together))
        if not self._signals.is_connected:
            return frames.unavailable(frames.retry_milliseconds(self._closed_together))
        return None

    def _on_connection(self, is_connected: bool) -> None:
        """Without Redis, signals of other processes do not arrive: close the streams, so that pages show it."""
        if is_connected:
            return
        self._closed_together = len(self.hub)
        telemetry.log("bongsu.live").warning("Redis unreachable, closing streams", streams=self._closed_together)
        for stream in list(self.hub.streams()):
            stream.end(frames.unavailable(frames.retry_milliseconds(self._closed_together)), "unavailable")
