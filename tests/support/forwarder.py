"""A TCP forwarder before a server: it can be cut, as a network, without ending the server that other tests use."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Forwarder:
    """Serves on a port of its own, on the event loop of the test.

    Not asyncio.Server: one that is closed when it has just accepted a connection leaves that open, which is a warning, and
    so the failure of a test, whenever it is collected.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._listener: socket.socket | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._port = 0
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def __aenter__(self) -> Self:
        await self.mend()
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.flow()
        while True:
            await self.cut()
            if not self._connections:
                break
            await asyncio.wait(self._connections, timeout=1)

    @property
    def url(self) -> str:
        """That of the server, by way of this."""
        user = self._target.netloc.rpartition("@")[0]
        return self._target._replace(netloc=f"{user}@127.0.0.1:{self._port}").geturl()

    async def cut(self) -> None:
        """End every connection; refuse new ones."""
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        for writer in list(self._writers):
            writer.transport.abort()

    def hang(self) -> None:
        """Connections stay open, new ones too, and nothing comes through."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    async def mend(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        # The caller may have gone away already.
        with contextlib.suppress(OSError):
            accepted, _ = listener.accept()
            connection = asyncio.create_task(self._forward(accepted))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

    async def _forward(self, accepted: socket.socket) -> None:
        writers: list[asyncio.StreamWriter] = []
        try:
            reader, writer = await asyncio.open_connection(sock=accepted)
            writers.append(writer)
            self._writers.add(writer)
            # Cut since it was accepted, or while the server was reached.
            if self._listener is not None:
                there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
                writers.append(back)
                self._writers.add(back)
                if self._listener is not None:
                    await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
        except OSError:
            pass
        finally:
            for one in writers:
                one.close()
                with contextlib.suppress(OSError):
                    await one.wait_closed()
                self._writers.discard(one)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
