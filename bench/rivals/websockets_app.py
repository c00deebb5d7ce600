"""`python -m bench.rivals.websockets_app --port N`: the `websockets` server and its `broadcast`, as fast as it goes.

uvloop, no compression, no pings. What is asked for as `/send?…` goes to everybody: a notification, and how many are unread.
As `/say?…`: that alone, a chat message.
"""

from __future__ import annotations

import asyncio
import sys
from urllib.parse import unquote_to_bytes

import uvloop
from websockets.asyncio.server import ServerConnection, broadcast, serve
from websockets.http11 import Request, Response

everybody: set[ServerConnection] = set()


def answer(connection: ServerConnection, request: Request) -> Response | None:
    path, _, query = request.path.partition("?")
    if path == "/readyz":
        return connection.respond(200, "")
    if path in ("/send", "/say"):
        broadcast(everybody, unquote_to_bytes(query).decode())
        if path == "/send":
            broadcast(everybody, '{"op":"badge","unread":10}')
        return connection.respond(202, "")
    return None


async def stream(connection: ServerConnection) -> None:
    everybody.add(connection)
    try:
        await connection.send('{"op":"ready"}')
        await connection.wait_closed()
    finally:
        everybody.discard(connection)


async def main(port: int) -> None:
    # No limit on handshakes at once: the readers come a hundred at a time.
    async with serve(
        stream, "127.0.0.1", port, process_request=answer, compression=None, ping_interval=None, backlog=2048
    ):  # fmt: skip
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[sys.argv.index("--port") + 1])))
