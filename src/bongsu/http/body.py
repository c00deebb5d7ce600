"""Reading a request's body without trusting its size."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from bongsu.http.problems import ProblemError

# A JSON body is held whole, parsed whole and stored whole. What is larger comes as NDJSON, which is streamed.
BODY_LIMIT = 10 * 1024 * 1024


async def read_body(request: Request) -> bytes:
    """The whole body, or 413 as soon as it is known to be too large."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > BODY_LIMIT:
        raise _too_large()
    body = bytearray()
    async for chunk in stream_body(request):
        body += chunk
        if len(body) > BODY_LIMIT:
            raise _too_large()
    return bytes(body)


async def stream_body(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise ProblemError(400, "The connection closed before the body was complete") from None


def _too_large() -> ProblemError:
    return ProblemError(413, f"The body is larger than {BODY_LIMIT} bytes: send application/x-ndjson, or fewer at a time")
