"""`GET /api/notifications/stream`: the route, who may open a stream, and which pages may read it.

An accepted stream bypasses the framework, whose layers would keep several kilobytes for each open stream. Everything else,
such as a refusal, is answered by the ordinary route below.
"""

from __future__ import annotations

from collections.abc import Collection

from fastapi import APIRouter, Depends, Response
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from bongsu.api import cors
from bongsu.api.auth import Authenticator, is_by_cookie
from bongsu.api.chat_ops import ChatOps
from bongsu.api.problems import ProblemError, problems
from bongsu.api.websocket import Sockets
from bongsu.api.ws_protocol import TRANSPORT
from bongsu.errors import BongsuError
from bongsu.live.gateway import Gateway
from bongsu.live.serving import Reader, read_cursor

PATH = "/api/notifications/stream"


def router(auth: Authenticator) -> APIRouter:
    routes = APIRouter(tags=["inbox"], dependencies=[Depends(auth.member)])

    @routes.get(
        PATH,
        summary="Stream notifications (SSE)",
        responses={200: {"content": {"text/event-stream": {}}}, **problems(401, 403, 429, 503)},
        response_class=Response,
    )
    async def stream() -> Response:
        """What is new, updated and withdrawn in the inbox, and the unread count, as server-sent events. With Last-Event-ID,
        also what was missed since then. The member token may come in the session cookie. Apps read the same over the
        WebSocket `/api/chat/ws`."""
        # An accepted stream comes this far only on a server without our protocol.
        raise ProblemError(503, "This server cannot stream: run it with `bongsu serve`")

    return routes


class StreamsFirst:
    """The application, with accepted streams and WebSockets before it."""

    def __init__(
        self, app: ASGIApp, gateway: Gateway, auth: Authenticator, origins: Collection[str], chat: ChatOps | None
    ) -> None:
        self._app = app
        self._gateway = gateway
        self._auth = auth
        self._origins = frozenset(origins)
        self._sockets = Sockets(gateway, auth, chat)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._sockets.serve(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "GET":
            transport = scope.get("extensions", {}).get(TRANSPORT)
            # What is in a variable here is kept as long as the stream is open.
            if transport is not None and (reader := await self._reader(Request(scope))) is not None:
                transport.get_protocol().drop_input()
                await self._gateway.serve_sse(reader, transport, self._headers(scope), receive, send)
                return
        await self._app(scope, receive, send)

    def _headers(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """Which pages may read the stream."""
        return cors.permissions(Headers(scope=scope).get("origin"), self._origins)

    async def _reader(self, request: Request) -> Reader | None:
        """Who reads the stream, or None if no stream may be opened by this request."""
        try:
            member_id, expires_at = await self._auth.member_until(request)
        except BongsuError:
            return None
        given = request.headers.get("last-event-id") or request.query_params.get("lastEventId")
        return Reader(member_id, expires_at, is_by_cookie(request), read_cursor(given))
