"""A TCP forwarder before a server: it can be cut, as a network, without ending the server that other tests use."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Forwarder:
    """Serves on a port of its own, on the event loop of the test."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._port = 0

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.cut()
        # One that was accepted at this moment has its task by then.
        for _ in range(5):
            await asyncio.sleep(0)
        while self._connections:
            await self.cut()
            await asyncio.wait(self._connections, timeout=1)

    @property
    def url(self) -> str:
        """That of the server, by way of this."""
        user = self._target.netloc.rpartition("@")[0]
        return self._target._replace(netloc=f"{user}@127.0.0.1:{self._port}").geturl()

    async def cut(self) -> None:
        """End every connection; refuse new ones."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def mend(self) -> None:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        writers = [writer]
        try:
            self._writers.add(writer)
            # Cut since it was accepted, or while the server was reached.
            if self._server is not None:
                there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
                writers.append(back)
                self._writers.add(back)
                if self._server is not None:
                    await asyncio.gather(_copy(reader, back), _copy(there, writer))
        except OSError:
            writer.transport.abort()
        finally:
            for one in writers:
                one.close()
                with contextlib.suppress(OSError):
                    await one.wait_closed()
                self._writers.discard(one)
            self._connections.discard(connection)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
