"""One line a request in the log, with an id that the answer carries too, so that the two can be found from each other."""

from __future__ import annotations

import re
import secrets
import time

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bongsu.api.security_headers import with_security_headers
from bongsu.runtime import telemetry

_log = telemetry.log("bongsu.http")

# A caller's own id is kept when it is one; anything else could write lines of its own into the log.
_SAFE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
# Asked every few seconds by machines: they would be most of the log.
_QUIET = {"/healthz", "/readyz", "/metrics"}


class RequestLog:
    """ASGI middleware, written below the framework because every request pays for it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        structlog.contextvars.bind_contextvars(request_id=request_id)
        started = time.perf_counter()
        status: int | None = None

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = (*message.get("headers", ()), (b"x-request-id", request_id.encode()))
                message["headers"] = with_security_headers(headers)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            if status is None:
                raise
            # Answered with a 500 and logged where it was caught; the server would only log it again.
        finally:
            if scope["path"] not in _QUIET or status != 200:
                milliseconds = round((time.perf_counter() - started) * 1000, 1)
                _log.info("request", method=scope["method"], path=scope["path"], status=status, ms=milliseconds)
            structlog.contextvars.unbind_contextvars("request_id")


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SAFE_ID.fullmatch(value):
            return str(value.decode())
    return secrets.token_hex(8)
