"""`python -m bench.bare_streams --port N`: a stream server with nothing in it but a set of connections and a write to each.

What is posted to `/send` goes to everybody who asked for anything else, byte for byte.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

READY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
OPENING = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nd\r\nretry: 1000\n\n\r\n"


class BareStream(asyncio.Protocol):
    everybody: set[asyncio.Transport] = set()  # noqa: RUF012 (of the process, as there is one server in it)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET /readyz "):
            self._transport.write(READY)
            self._transport.close()
        elif not head.startswith(b"POST /send "):
            self._transport.write(OPENING)
            self.everybody.add(self._transport)
        elif len(body) == int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
            for one in self.everybody:
                one.write(body)
            self._received = b""
            self._transport.write(ACCEPTED)

    def connection_lost(self, exc: Exception | None) -> None:
        self.everybody.discard(self._transport)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(BareStream, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[sys.argv.index("--port") + 1])))
