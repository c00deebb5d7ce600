"""CORS: pages of the origins that were named may make member calls and load the bell. Others get no CORS headers."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What a member's page calls. Server calls take a key that must not be in a page, so they are not here.
SHARED = (
    "/api/notifications", "/api/session", "/api/preferences", "/api/devices", "/api/chat", "/bongsu-bell.js",
)  # fmt: skip
METHODS = "GET, POST, PUT, PATCH, DELETE"
HEADERS = "Authorization, Content-Type, Last-Event-ID, X-Request-ID"
# How long a browser remembers that it may ask: the most that Chromium keeps is two hours. A page of an origin that is no
# longer named gets nothing all the same, because each answer names again who may read it.
REMEMBERED_SECONDS = 7200


class Cors:
    """ASGI middleware. A credential in the request never makes an answer readable: the origin does."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_shared(scope["path"]):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")

        async def send_with_permission(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *permissions(origin, self._origins)]
            await send(message)

        if origin in self._origins and scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _answer_preflight(send_with_permission)
        else:
            await self._app(scope, receive, send_with_permission)


def _is_shared(path: str) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in SHARED)


def permissions(origin: str | None, origins: Collection[str]) -> list[tuple[bytes, bytes]]:
    """The headers that let a page of a named origin read an answer."""
    # Also without an origin: a cache must not give one page the answer that was made for another.
    headers = [(b"vary", b"Origin")]
    if origin is not None and origin in origins:
        headers += [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-credentials", b"true"),
            (b"access-control-expose-headers", b"X-Request-ID, Retry-After"),
        ]
    return headers


async def _answer_preflight(send: Send) -> None:
    permissions = {
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": HEADERS,
        "Access-Control-Max-Age": str(REMEMBERED_SECONDS),
    }
    headers = [(name.lower().encode(), value.encode()) for name, value in permissions.items()]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
