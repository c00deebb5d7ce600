"""`GET /api/notifications/stream`, an application of its own: streams go through no framework, which would cost memory.

A status other than 200 ends a browser's EventSource for good. So only who has no right to a stream gets one; who comes at
a bad moment gets a stream that says so, says when to come back, and ends.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from bongsu.api.auth import Gate
from bongsu.api.problems import problem, problem_of
from bongsu.errors import BongsuError, RedisUnreachable, StoreError
from bongsu.live import frames
from bongsu.live.hub import Hub
from bongsu.live.pings import Wheel
from bongsu.live.registry import Registry
from bongsu.live.stream import TRANSPORT, Stream
from bongsu.runtime import telemetry
from bongsu.settings import Settings
from bongsu.store.inbox import LARGEST_ID

PATH = "/api/notifications/stream"
# A reader who does not take what it missed within this time takes nothing. One who has not been told by then, because too
# many come at once or the store hangs, is better told to come back.
ATTACH_SECONDS = 30.0

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    # The answer's end is the connection's end, so that nothing is kept of one that is over.
    (b"connection", b"close"),
]
_ID = re.compile(r"[0-9]{1,19}", re.ASCII)
_log = telemetry.log("bongsu.live")


class SseEndpoint:
    def __init__(
        self,
        hub: Hub,
        registry: Registry,
        wheel: Wheel,
        gate: Gate,
        settings: Settings,
        refusal: Callable[[], bytes | None],
    ) -> None:
        """The refusal is what to say instead when no stream can be served now."""
        self._hub = hub
        self._registry = registry
        self._wheel = wheel
        self._gate = gate
        self._settings = settings
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        cors = self._cors(request)
        transport = scope.get("extensions", {}).get(TRANSPORT)
        try:
            member_id, expires_at = self._gate.member_until(request)
        except BongsuError as error:
            await _refuse(problem_of(error), cors, scope, receive, send)
            return
        if transport is None:
            answer = problem(503, "This server cannot stream: run it with `bongsu serve`")
            await _refuse(answer, cors, scope, receive, send)
            return
        after = _last_event_id(request)
        del request
        await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, *cors]})
        stream = Stream(member_id, self._registry.new_id(), transport, send)
        try:
            await self._open(stream, after, expires_at)
            # Nothing more comes in on this connection but its end, ours or theirs.
            while (await receive())["type"] != "http.disconnect":
                pass
        finally:
            self._wheel.remove(stream)
            self._hub.detach(stream)
            _log.info("stream ended", connection=stream.connection_id, why=stream.end_reason or "left")

    async def _open(self, stream: Stream, after: int | None, expires_at: datetime) -> None:
        stream.write(frames.opening(frames.retry_milliseconds()))
        if (refusal := self._refusal()) is not None:
            stream.end(refusal, "refused")
            return
        left = (expires_at - datetime.now(UTC)).total_seconds()
        most = self._settings.sse_timeout_seconds
        stream.time_limit = "timeout" if most <= left else "expired"
        self._wheel.add(stream, asyncio.get_running_loop().time() + min(left, most))
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                await self._hub.attach(stream, after)
        except (RedisUnreachable, StoreError, TimeoutError) as error:
            if stream.is_behind:
                stream.cut()
                return
            _log.warning("a stream could not be opened", error=str(error) or "it took too long")
            stream.end(frames.unavailable(frames.retry_milliseconds(self._hub.attaching)), "unavailable")

    def _cors(self, request: Request) -> list[tuple[bytes, bytes]]:
        origin = request.headers.get("origin")
        if origin is None or origin not in self._settings.origins:
            return []
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-credentials", b"true"),
            (b"vary", b"Origin"),
        ]


async def _refuse(answer: JSONResponse, cors: list[tuple[bytes, bytes]], scope: Scope, receive: Receive, send: Send) -> None:
    answer.raw_headers += cors
    await answer(scope, receive, send)


def _last_event_id(request: Request) -> int | None:
    """Where the reader was. What is no cursor of ours is none: the reader begins anew."""
    given = request.headers.get("last-event-id") or request.query_params.get("lastEventId") or ""
    number = int(given) if _ID.fullmatch(given) else -1
    return number if 0 <= number <= LARGEST_ID else None
