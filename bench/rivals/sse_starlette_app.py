"""`python -m bench.rivals.sse_starlette_app --port N`: sse-starlette on uvicorn, set up as well as it can be.

uvloop and httptools, no access log, no pings, a queue for each stream as its own examples have it. What is posted to `/send`
goes to everybody as ours goes: a notification with an id of the reader's own, and how many are unread.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import uvicorn
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

everybody: set[asyncio.Queue[str]] = set()


async def ready(_request: Request) -> Response:
    return Response()


async def send(request: Request) -> Response:
    data = (await request.body()).decode()
    for one in everybody:
        one.put_nowait(data)
    return Response(status_code=202)


async def stream(_request: Request) -> Response:
    response: Response = EventSourceResponse(_events(), ping=0, sep="\n")
    return response


async def _events() -> AsyncIterator[ServerSentEvent]:
    queue: asyncio.Queue[str] = asyncio.Queue()
    everybody.add(queue)
    unread = 0
    try:
        yield ServerSentEvent(retry=1000)
        while True:
            data = await queue.get()
            unread += 1
            yield ServerSentEvent(data, event="notification", id=str(unread), sep="\n")
            yield ServerSentEvent(f'{{"unread":{unread}}}', event="badge", sep="\n")
    finally:
        everybody.discard(queue)


app = Starlette(routes=[Route("/readyz", ready), Route("/send", send, methods=["POST"]), Route("/stream", stream)])

if __name__ == "__main__":
    uvicorn.run(
        app, port=int(sys.argv[sys.argv.index("--port") + 1]), loop="uvloop", http="httptools", lifespan="off",
        access_log=False, log_level="warning", timeout_graceful_shutdown=1,
    )  # fmt: skip
