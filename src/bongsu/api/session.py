"""`POST /api/session` and `DELETE`: the member's token in a cookie, for EventSource, which cannot send headers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response

from bongsu.api.auth import MEMBER_CALL, OPEN_CALL, SESSION_COOKIE, Authenticator
from bongsu.api.problems import problems
from bongsu.settings import Settings


def router(auth: Authenticator, settings: Settings, on_logout: Callable[[str], None]) -> APIRouter:
    routes = APIRouter(tags=["inbox"])

    @routes.post(
        "/api/session",
        status_code=204,
        responses=problems(401, 403, 429, 503),
        summary="Begin a session",
        openapi_extra=MEMBER_CALL,
    )
    async def begin(request: Request) -> Response:
        """Keeps the member token of this request in a cookie until it expires, for EventSource, which cannot send
        headers."""
        token, _, expires_at = await auth.bearer_until(request)
        response = Response(status_code=204)
        _set_cookie(settings, request, response, token, max(0, int((expires_at - datetime.now(UTC)).total_seconds())))
        return response

    @routes.delete(
        "/api/session", status_code=204, responses=problems(503), summary="End the session", openapi_extra=OPEN_CALL
    )
    async def end(request: Request) -> Response:
        """Removes the cookie, and ends the streams that the member opened with it: pages that still have a cookie
        reconnect. The token itself stays valid until it expires."""
        if (member_id := await auth.member_of_session(request)) is not None:
            on_logout(member_id)
        response = Response(status_code=204)
        _set_cookie(settings, request, response, "", 0)
        return response

    return routes


def _set_cookie(settings: Settings, request: Request, response: Response, value: str, seconds: int) -> None:
    is_secure = request.scope["scheme"] == "https"
    # Pages of another site may use it only if their origin was named, and browsers allow that over https alone.
    is_shared = is_secure and request.headers.get("origin") in settings.origins
    response.set_cookie(
        SESSION_COOKIE,
        value,
        max_age=seconds,
        path="/api",
        httponly=True,
        secure=is_secure,
        samesite="none" if is_shared else "lax",
    )
