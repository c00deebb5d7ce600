"""`python -m bench.rivals.starlette_ws_app --port N`: Starlette's WebSockets on uvicorn, and a loop that sends to each.

uvloop, the same WebSocket implementation of uvicorn as ours, no compression, no pings.
"""

from __future__ import annotations

import sys
from urllib.parse import unquote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

everybody: set[WebSocket] = set()


async def ready(_request: Request) -> Response:
    return Response()


async def send(request: Request) -> Response:
    data = unquote(request.url.query)
    for one in list(everybody):
        await one.send_text(data)
        await one.send_text('{"op":"badge","unread":10}')
    return Response(status_code=202)


async def say(request: Request) -> Response:
    data = unquote(request.url.query)
    for one in list(everybody):
        await one.send_text(data)
    return Response(status_code=202)


async def stream(socket: WebSocket) -> None:
    await socket.accept()
    everybody.add(socket)
    try:
        await socket.send_text('{"op":"ready"}')
        await socket.receive()
    finally:
        everybody.discard(socket)


app = Starlette(
    routes=[Route("/readyz", ready), Route("/send", send), Route("/say", say), WebSocketRoute("/stream", stream)]
)

if __name__ == "__main__":
    uvicorn.run(
        app, port=int(sys.argv[sys.argv.index("--port") + 1]), loop="uvloop", http="httptools", lifespan="off",
        access_log=False, log_level="warning", timeout_graceful_shutdown=1, ws="websockets-sansio",
        ws_per_message_deflate=False, ws_ping_interval=None,
    )  # fmt: skip
