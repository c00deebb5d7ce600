"""A reader of streams that behaves as a browser's EventSource: it comes back after `retry`, and says where it was."""

from __future__ import annotations

import asyncio
import contextlib
import json
import select
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

WAIT_SECONDS = 30
# A browser waits for seconds before it comes back; a test need not. The order of things stays the same.
HASTE = 0.02
PATH = "/api/notifications/stream"


@dataclass
class Frame:
    event: str
    data: Any
    id: str


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def lines(self) -> AsyncIterator[str]:
        """The lines of a body that comes in chunks. The end of the connection is the end of the lines."""
        rest = b""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                rest += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
                *whole, rest = rest.split(b"\n")
                for line in whole:
                    yield line.decode()

    async def body(self) -> bytes:
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.reader.readexactly(int(self.headers.get("content-length", "0")))

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def ask(
    address: str, headers: Mapping[str, str], path: str = PATH, method: str = "GET", receive_bytes: int | None = None
) -> Answer:
    """With `receive_bytes`, no more than about that many wait here to be read: the rest waits with the server."""
    url = urlsplit(address)
    line = socket.socket()
    line.setblocking(False)
    if receive_bytes is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    head = [f"{method} {path} HTTP/1.1", f"Host: {url.netloc}", *(f"{name}: {value}" for name, value in headers.items())]
    async with asyncio.timeout(WAIT_SECONDS):
        try:
            await asyncio.get_running_loop().sock_connect(line, (url.hostname, url.port))
        except BaseException:
            line.close()
            raise
        reader, writer = await asyncio.open_connection(sock=line)
        try:
            writer.write("\r\n".join([*head, "", ""]).encode())
            status, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        except BaseException as error:
            writer.transport.abort()
            if isinstance(error, asyncio.IncompleteReadError):
                raise ConnectionError("no answer") from None
            raise
    named = (one.partition(": ") for one in fields)
    return Answer(int(status.split()[1]), {name.lower(): value for name, _, value in named}, reader, writer)


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(eq=False)
class EventSource:
    """Comes back until it is closed, to one of its addresses after the other, as through a load balancer."""

    addresses: Sequence[str]
    headers: Mapping[str, str]
    path: str = PATH
    # The reader of a plain page does not know what `bye` means; one that does, stays away when it was replaced.
    stays_away: bool = False
    receive_bytes: int | None = None
    frames: list[Frame] = field(default_factory=list)
    connections: int = 0
    last_id: str = ""
    retry: float = 3000
    status: int | None = None
    is_open: bool = False
    _reads: asyncio.Event = field(default_factory=_set_event)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _task: asyncio.Task[None] | None = None
    _answer: Answer | None = None

    async def __aenter__(self) -> EventSource:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def seen(self, event: str) -> list[Any]:
        return [frame.data for frame in self.frames if frame.event == event]

    @property
    def told(self) -> list[int]:
        return [int(one["id"]) for one in self.seen("notification")]

    def stall(self) -> None:
        """Stop reading, and stay connected."""
        self._reads.clear()

    def go_on(self) -> None:
        self._reads.set()

    @property
    def is_cut(self) -> bool:
        """Whether the other end has cut a connection that nobody reads: the system knows without a look at what is in it."""
        assert self._answer is not None
        number = self._answer.writer.get_extra_info("socket").fileno()
        if number < 0:
            return True
        poll = select.poll()
        poll.register(number, 0)
        return bool(poll.poll(0))

    async def until(self, is_so: Callable[[EventSource], bool]) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._changed:
                await self._changed.wait_for(lambda: is_so(self))
        except TimeoutError:
            shown = [(one.event, one.data) for one in self.frames[-10:]]
            raise AssertionError(f"waited in vain; status {self.status}, told {self.told[-20:]}, last {shown}") from None

    async def until_told(self, ids: Sequence[int]) -> None:
        await self.until(lambda self: len(self.told) >= len(ids))
        assert self.told == list(ids)

    async def until_seen(self, event: str, count: int = 1) -> list[Any]:
        await self.until(lambda self: len(self.seen(event)) >= count)
        return self.seen(event)

    async def until_live(self) -> EventSource:
        """The cursor is given when everything that was missed has been told."""
        await self.until(lambda self: self.last_id != "")
        return self

    async def _run(self) -> None:
        place = 0
        while self._task is not None:
            address = self.addresses[place % len(self.addresses)]
            place += 1
            with contextlib.suppress(OSError, TimeoutError):
                if not await self._read(address):
                    return
            await self._say(is_open=False)
            await asyncio.sleep(self.retry / 1000 * HASTE)

    async def _read(self, address: str) -> bool:
        """One connection, to its end. False when a browser would not come back."""
        headers = {**self.headers, "Accept": "text/event-stream"}
        if self.last_id:
            headers["Last-Event-ID"] = self.last_id
        self._answer = answer = await ask(address, headers, self.path, receive_bytes=self.receive_bytes)
        self.connections += 1
        await self._say(status=answer.status, is_open=answer.status == 200)
        try:
            if answer.status != 200:
                return False
            return await self._take(answer)
        finally:
            answer.writer.transport.abort()

    async def _take(self, answer: Answer) -> bool:
        event, data, last_id = "message", "", self.last_id
        async for line in answer.lines():
            await self._reads.wait()
            name, _, value = line.partition(": ")
            if name == "id":
                last_id = value
            elif name == "retry":
                self.retry = float(value)
            elif name == "event":
                event = value
            elif name == "data":
                data += value
            elif not line:
                # Not before the event is whole.
                self.last_id = last_id
                if data:
                    self.frames.append(Frame(event, json.loads(data), self.last_id))
                await self._say()
                if self.stays_away and event == "bye" and json.loads(data)["reason"] == "replaced":
                    return False
                event, data = "message", ""
        return True

    async def _say(self, **state: Any) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        async with self._changed:
            self._changed.notify_all()
