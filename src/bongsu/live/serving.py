"""Serving one reader, from its first frame to its last, whatever wire it reads.

A status other than 200 ends a browser's EventSource for good. So everyone with a valid token gets a stream; if it cannot be
served now, the stream says so, gives the time to reconnect, and ends.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from bongsu.errors import RedisUnreachable, StoreError, TooBusy
from bongsu.live.connection import Connection
from bongsu.live.encode import retry_milliseconds
from bongsu.live.hub import Hub
from bongsu.live.member_state import Stream
from bongsu.live.pings import PingSchedule
from bongsu.runtime import telemetry
from bongsu.settings import Settings
from bongsu.store.core.query import LARGEST_ID

# A reader that has not taken what it missed within this time has stalled. One that was not served within it, because too
# many come at once or the store hangs, is asked to come back.
ATTACH_SECONDS = 30.0

_log = telemetry.log("bongsu.live")


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads, until when they may, and from where on."""

    member_id: str
    expires_at: datetime
    # Whether the token came in the session cookie.
    is_by_cookie: bool
    # The last cursor the reader has seen.
    after: int | None = None
    # False: nothing of the inbox is sent.
    with_notifications: bool = True


_CURSOR = re.compile(r"[0-9]{1,19}", re.ASCII)


def read_cursor(given: object) -> int | None:
    """The cursor that a reader has sent. Anything that is not a cursor of ours counts as none: the reader begins at the
    newest."""
    if isinstance(given, int):
        given = str(given)
    number = int(given) if isinstance(given, str) and _CURSOR.fullmatch(given) else -1
    return number if 0 <= number <= LARGEST_ID else None


# Returns when the connection has ended.
UntilClosed = Callable[[Stream], Awaitable[None]]
# Why a reader cannot be served now, and after how many milliseconds it should come back.
Refusal = tuple[str, int]


class Serving:
    def __init__(self, hub: Hub, pings: PingSchedule, settings: Settings, refusal: Callable[[], Refusal | None]) -> None:
        self._hub = hub
        self._pings = pings
        self._settings = settings
        self._refusal = refusal

    async def serve(self, reader: Reader, connection: Connection, until_closed: UntilClosed) -> int | None:
        """Serve until the connection has ended, theirs or ours: `until_closed` returns then. Returns the cursor that the
        reader has then."""
        stream = Stream(reader.member_id, connection, is_by_cookie=reader.is_by_cookie)
        try:
            await self.open(stream, reader)
            await until_closed(stream)
        finally:
            self.close(stream)
        return stream.cursor if stream.is_live else reader.after

    async def open(self, stream: Stream, reader: Reader) -> None:
        """Bring a new stream up to date and keep it so, or say that it cannot be served now. `close` it in any case."""
        connection = stream.connection
        if opening := connection.wire.opening(retry_milliseconds()):
            connection.write(opening)
        if (refusal := self._refusal()) is not None:
            connection.end(*refusal)
            return
        left = (reader.expires_at - datetime.now(UTC)).total_seconds()
        most = self._settings.sse_timeout_seconds
        stream.time_limit = "timeout" if most <= left else "expired"
        self._pings.add(stream, asyncio.get_running_loop().time() + min(left, most))
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                await self._hub.attach(stream, reader.after, reader.with_notifications)
        except (RedisUnreachable, StoreError, TooBusy, TimeoutError) as error:
            if connection.is_behind:
                connection.cut()
                return
            _log.warning("stream not opened", error=str(error) or "timed out")
            connection.end("unavailable", retry_milliseconds(self._hub.attaching))

    def close(self, stream: Stream) -> None:
        """Forget a stream that has ended."""
        self._pings.remove(stream)
        self._hub.detach(stream)
        connection = stream.connection
        _log.info("stream ended", connection=connection.connection_id, reason=connection.end_reason or "left")
