"""One connection of HTTP/1.1: a request goes out in one write, and its answer comes back, whole or not at all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

# A provider's answer is a few hundred bytes. More than this is not an answer to a push, and many of them would exhaust the
# memory.
MOST_BYTES = 1 << 20
# Until the head is there; servers and proxies themselves allow 8 to 32 kB.
MOST_HEAD_BYTES = 1 << 16


class Answer(NamedTuple):
    """`headers` are found by name in capitals or not."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class NotSent:
    """No connection: nothing was sent."""

    detail: str


@dataclass(frozen=True, slots=True)
class ResponseLost:
    """It was sent, perhaps, and no answer came."""

    is_timeout: bool
    detail: str


# Called once with the result of a request. It does not raise; False means that the caller has given it up.
OnAnswer = Callable[[Answer | NotSent | ResponseLost], bool]


class Headers(Mapping[str, str]):
    """Found by name in capitals or not. Decoded when first read: of most answers they are never read."""

    __slots__ = ("_lines", "_texts")

    def __init__(self, lines: Mapping[bytes, bytes]) -> None:
        self._lines = lines
        self._texts: dict[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        return self._read()[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"Headers({self._read()})"

    def _read(self) -> dict[str, str]:
        if self._texts is None:
            lines = self._lines.items()
            self._texts = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in lines}
        return self._texts


class Keeper(Protocol):
    """Owner of connections: called when one can be used again, and when one is closed."""

    def keep(self, connection: Connection) -> None: ...

    def forget(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """`ask` is called when the answer before is there, and not on one that is closing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, keeper: Keeper) -> None:
        self._keeper = keeper
        self._transport: asyncio.Transport | None = None
        self._on_answer: OnAnswer | None = None
        # When what it waits for has to be there: an answer, or the next request.
        self.until = math.inf
        self.closed: asyncio.Future[None] = loop.create_future()
        self._received = 0
        self._has_head = False
        self._whole: Answer | None = None
        self._lasts = False
        self._lines: dict[bytes, bytes] = {}
        self._pieces: list[bytes] = []
        # Called by the parser, and no Python of ours in between.
        self.on_header = self._lines.__setitem__
        self.on_body = self._pieces.append
        self._parser = HttpResponseParser(self)

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def ask(self, request: bytes, until: float, on_answer: OnAnswer) -> None:
        """From here on the request may have been sent. `on_answer` is called once; nothing is raised."""
        assert self._transport is not None
        self.until = until
        self._received = 0
        self._has_head = False
        self._on_answer = on_answer
        self._transport.write(request)

    def expire(self) -> None:
        """Nothing came until `until`."""
        self._lose(True, "no answer in time")

    def abort(self) -> None:
        """Close at once. An answer that is waited for is lost."""
        self._lose(False, "the connection was closed here")

    # --- the transport's calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but ancestry

    def data_received(self, data: bytes) -> None:
        if self._on_answer is None:
            # Nothing was asked: what comes now would be taken for the answer to the next request.
            self.abort()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            # After a whole answer it spoils the connection alone.
            self._lasts = False
            if self._whole is None:
                self._lose(False, f"the answer is not HTTP/1.1: {error}")
                return
        if self._whole is not None:
            self._finish(self._whole)
        elif self._received > (most := MOST_BYTES if self._has_head else MOST_HEAD_BYTES):
            self._lose(False, f"the answer is longer than {most} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._keeper.forget(self)
        if not self.closed.done():
            self.closed.set_result(None)
        if exc is None and self._on_answer is not None and self._has_head and _ends_with_connection(self._lines):
            self._report(Answer(self._parser.get_status_code(), Headers(self._lines), b"".join(self._pieces)))
            return
        where = "in the middle of the answer" if self._received else "before the answer"
        self._report(ResponseLost(False, f"the connection was closed {where}{f': {exc}' if exc else ''}"))

    # --- the parser's calls -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._whole is not None:
            self._lasts = False  # more answers than requests

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_message_complete(self) -> None:
        if self._whole is not None:
            return
        status = self._parser.get_status_code()
        if status >= 200:
            self._lasts = self._parser.should_keep_alive()
            self._whole = Answer(status, Headers(self._lines.copy()), b"".join(self._pieces))
        # 1xx: the answer is still to come.
        self._has_head = False
        self._lines.clear()
        self._pieces.clear()

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _finish(self, whole: Answer) -> None:
        self._whole = None
        is_wanted = self._report(whole)
        if is_wanted and self._lasts and not self.is_closing:
            self._keeper.keep(self)
        else:
            self.abort()

    def _lose(self, is_timeout: bool, detail: str) -> None:
        self.until = math.inf
        self._report(ResponseLost(is_timeout, detail))
        if self._transport is not None:
            self._transport.abort()

    def _report(self, result: Answer | ResponseLost) -> bool:
        """False when the caller has given it up."""
        on_answer, self._on_answer = self._on_answer, None
        return on_answer is not None and on_answer(result)


def _ends_with_connection(lines: Mapping[bytes, bytes]) -> bool:
    """An answer without a length ends where the connection does, as in HTTP/1.0."""
    return not any(name.lower() in (b"content-length", b"transfer-encoding") for name in lines)
