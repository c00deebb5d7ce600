"""`GET /api/notifications/stream`: the route, who may open a stream, and which pages may read it.

An accepted stream bypasses the framework, whose layers would keep several kilobytes for each open stream. Everything else,
such as a refusal, is answered by the ordinary route below.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from fastapi import APIRouter, Depends, Response
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from bongsu.api import cors
from bongsu.api.auth import Gate, is_by_cookie
from bongsu.api.http_protocol import TRANSPORT, HttpProtocol
from bongsu.api.problems import ProblemError, problems
from bongsu.errors import BongsuError
from bongsu.live.gateway import Gateway
from bongsu.live.sse import Reader
from bongsu.store.core.query import LARGEST_ID

PATH = "/api/notifications/stream"
_ID = re.compile(r"[0-9]{1,19}", re.ASCII)


def router(gate: Gate) -> APIRouter:
    routes = APIRouter(tags=["inbox"], dependencies=[Depends(gate.member)])

    @routes.get(
        PATH,
        summary="Stream notifications (SSE)",
        responses={200: {"content": {"text/event-stream": {}}}, **problems(401, 403, 429, 503)},
        response_class=Response,
    )
    async def stream() -> Response:
        """New notifications and changes of the unread count, as server-sent events. With Last-Event-ID, also what was missed
        since then. The member token may come in the session cookie."""
        # An accepted stream comes this far only on a server without our protocol.
        raise ProblemError(503, "This server cannot stream: run it with `bongsu serve`")

    return routes


class StreamsFirst:
    """The application, with accepted streams before it."""

    def __init__(self, app: ASGIApp, gateway: Gateway, gate: Gate, origins: Collection[str]) -> None:
        self._app = app
        self._gateway = gateway
        self._gate = gate
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "GET":
            reader = await self._reader(scope)
            if reader is not None:
                protocol = reader.transport.get_protocol()
                assert isinstance(protocol, HttpProtocol)
                protocol.drop_input()
                await self._gateway.serve_sse(reader, receive, send)
                return
        await self._app(scope, receive, send)

    async def _reader(self, scope: Scope) -> Reader | None:
        """Who reads the stream, or None if no stream may be opened by this request."""
        request = Request(scope)
        transport = scope.get("extensions", {}).get(TRANSPORT)
        if transport is None:
            return None
        try:
            member_id, expires_at = await self._gate.member_until(request)
        except BongsuError:
            return None
        headers = cors.permissions(request.headers.get("origin"), self._origins)
        return Reader(member_id, expires_at, _last_event_id(request), transport, is_by_cookie(request), headers)


def _last_event_id(request: Request) -> int | None:
    """The reader's cursor. Anything that is not a cursor of ours counts as none: the reader begins anew."""
    given = request.headers.get("last-event-id") or request.query_params.get("lastEventId") or ""
    number = int(given) if _ID.fullmatch(given) else -1
    return number if 0 <= number <= LARGEST_ID else None
