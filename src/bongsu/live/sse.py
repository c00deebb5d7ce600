"""Serving one SSE stream, from the response's first byte to its last.

A status other than 200 ends a browser's EventSource for good. So everyone with a valid token gets a stream; if it cannot be
served now, the stream says so, gives the time to reconnect, and ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.types import Receive, Send

from bongsu.errors import RedisUnreachable, StoreError, TooBusy
from bongsu.live import frames
from bongsu.live.hub import Hub
from bongsu.live.pings import PingSchedule
from bongsu.live.registry import Registry
from bongsu.live.stream import Stream
from bongsu.runtime import telemetry
from bongsu.settings import Settings

# A reader that has not taken what it missed within this time has stalled. One that was not served within it, because too
# many come at once or the store hangs, is asked to come back.
ATTACH_SECONDS = 30.0

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    # The connection ends with the response, so that nothing of an ended stream stays in memory.
    (b"connection", b"close"),
]
_log = telemetry.log("bongsu.live")


@dataclass(frozen=True, slots=True)
class Reader:
    """Who opened a stream, until when they may read it, and on which connection."""

    member_id: str
    expires_at: datetime
    # The last cursor the reader has seen.
    after: int | None
    transport: asyncio.Transport
    # Whether the token came in the session cookie.
    is_by_cookie: bool
    # Headers of the response besides those of every stream.
    headers: list[tuple[bytes, bytes]]


class SseEndpoint:
    def __init__(
        self, hub: Hub, registry: Registry, pings: PingSchedule, settings: Settings, refusal: Callable[[], bytes | None]
    ) -> None:
        """`refusal` gives the frame to send instead when no stream can be served now."""
        self._hub = hub
        self._registry = registry
        self._pings = pings
        self._settings = settings
        self._refusal = refusal

    async def serve(self, reader: Reader, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *reader.headers]})
        stream = Stream(reader.member_id, self._registry.new_id(), reader.transport, send)
        stream.is_by_cookie = reader.is_by_cookie
        try:
            await self._open(stream, reader.after, reader.expires_at)
            # Nothing more comes in on this connection but its end, ours or theirs.
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._pings.remove(stream)
            self._hub.detach(stream)
            _log.info("stream ended", connection=stream.connection_id, reason=stream.end_reason or "left")

    async def _open(self, stream: Stream, after: int | None, expires_at: datetime) -> None:
        stream.write(frames.opening(frames.retry_milliseconds()))
        if (refusal := self._refusal()) is not None:
            stream.end(refusal, "refused")
            return
        left = (expires_at - datetime.now(UTC)).total_seconds()
        most = self._settings.sse_timeout_seconds
        stream.time_limit = "timeout" if most <= left else "expired"
        self._pings.add(stream, asyncio.get_running_loop().time() + min(left, most))
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                await self._hub.attach(stream, after)
        except (RedisUnreachable, StoreError, TooBusy, TimeoutError) as error:
            if stream.is_behind:
                stream.cut()
                return
            _log.warning("stream not opened", error=str(error) or "timed out")
            stream.end(frames.unavailable(frames.retry_milliseconds(self._hub.attaching)), "unavailable")
