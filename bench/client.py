"""An HTTP client that costs next to nothing: requests are encoded beforehand, of answers only the status is read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import cast

# Handed to the socket at a time; a body of many megabytes would otherwise be held twice.
PIECE = 256 * 1024


class UnexpectedAnswer(RuntimeError):
    """The server did not accept what the benchmark sent, so there is nothing to measure. The message is its answer."""


def encode(path: str, body: bytes, kind: str, key: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client(asyncio.Protocol):
    """One connection, kept open; one request at a time."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def connect(cls, port: int) -> Client:
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return client

    async def send(self, request: bytes, expected: bytes = b"HTTP/1.1 202 ") -> None:
        """Send it and wait until it was answered as expected."""
        self._answer = asyncio.get_running_loop().create_future()
        for first in range(0, len(request), PIECE):
            await self._writable.wait()
            self._transport.write(request[first : first + PIECE])
        answer = await self._answer
        if not answer.startswith(expected):
            raise UnexpectedAnswer(answer.decode(errors="replace")[:1000])

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or len(body) < _content_length(head):
            return
        answer, self._received = bytes(self._received), bytearray()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()


def _content_length(head: bytes | bytearray) -> int:
    _, found, after = head.lower().partition(b"content-length:")
    return int(after.partition(b"\r\n")[0]) if found else 0


async def send_all(port: int, connections: int, requests: Iterable[bytes]) -> None:
    """Over new connections, because a server hangs up on clients that are silent while a round is prepared.

    Each takes the next request as soon as its last was answered.
    """
    waiting = iter(requests)
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(_send_while_any(port, waiting))


async def _send_while_any(port: int, waiting: Iterator[bytes]) -> None:
    client = await Client.connect(port)
    for request in waiting:
        await client.send(request)
    client.close()
