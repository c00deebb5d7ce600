"""Servers in the test's own loop, on bare streams, that do as the test says."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from bongsu.deliver.channels.http.client import HttpClient
from bongsu.deliver.channels.http.http1 import Connection

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """One connection, seen from the server."""

    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._server = server

    async def hear(self) -> bytes:
        """One request, which is written down; nothing when the client has hung up."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            request = head + await self.reader.readexactly(int(length or b"0"))
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            return b""
        self._server.requests.append(request)
        self._server.heard.set()
        return request

    async def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()


Script = Callable[[Peer], Awaitable[None]]


class Server:
    def __init__(self, script: Script) -> None:
        self.port = 0
        self.connections = 0
        self.requests: list[bytes] = []
        self.heard = asyncio.Event()
        # Set when a connection has ended, from whichever side.
        self.ended = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        self._script = script

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/send"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(Peer(self, reader, writer)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, peer: Peer) -> None:
        try:
            await self._script(peer)
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            peer.writer.transport.abort()


@contextlib.asynccontextmanager
async def serving(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(script)
    listener = await asyncio.start_server(server.accept, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        tasks = list(server.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)


def answering(*pieces: bytes) -> Script:
    """Says the same to every request, and keeps the connection."""

    async def script(peer: Peer) -> None:
        while await peer.hear():
            await peer.say(*pieces)

    return script


def hanging_up_after(*pieces: bytes) -> Script:
    async def script(peer: Peer) -> None:
        await peer.hear()
        await peer.say(*pieces)
        peer.writer.close()
        await peer.writer.wait_closed()

    return script


async def silence(peer: Peer) -> None:
    while await peer.hear():
        pass


def only(wire: HttpClient) -> Connection:
    (connection,) = wire._connections()
    return connection


def in_use(wire: HttpClient) -> int:
    return sum(not connection.is_closing for connection in wire._connections())
