"""Errors as application/problem+json (RFC 9457). Foreign and own exceptions become answers in one table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match, Mount

from bongsu import errors
from bongsu.runtime import telemetry

_log = telemetry.log("bongsu.http")

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# How many mistakes one answer names. The caller corrects the first few and sends it again.
REPORTED_ERRORS = 20

STATUS: dict[type[errors.BongsuError], int] = {
    errors.BadKey: 401,
    errors.WrongKind: 403,
    errors.RateLimited: 429,
    errors.ChatRateLimited: 429,
    errors.NotInRoom: 403,
    errors.NotYourMessage: 403,
    errors.NoSuchRoom: 404,
    errors.NoSuchMessage: 404,
    errors.MessageDeleted: 409,
    errors.TooManyRooms: 409,
    errors.BadChatMessage: 422,
    errors.BadEvent: 422,
    errors.NoSuchCounter: 404,
    errors.CounterOverflow: 422,
    errors.NoSuchJob: 404,
    errors.NoSuchDeadLetter: 404,
    errors.NoSuchEvent: 404,
    errors.NothingToCancel: 409,
    errors.JobRunning: 409,
    errors.RunLost: 409,
    errors.ReplayWithoutFilter: 400,
    errors.SourceNotConfigured: 422,
    errors.SourceError: 503,
    errors.SourceAway: 503,
    errors.SourceLoginRefused: 503,
    errors.SourceDiffers: 503,
    errors.DeadLettersBusy: 503,
    errors.BadCursor: 422,
    errors.OutboxMissing: 503,
    errors.OutboxDiffers: 503,
    errors.OutboxTooOld: 503,
    errors.DriverMissing: 503,
    errors.StoreUnreachable: 503,
    errors.StoreLoginRefused: 503,
    errors.StoreTooNew: 503,
    errors.StoreTooOld: 503,
    errors.StoreBusy: 503,
    errors.StoreRolledBack: 503,
    errors.StoreTooSlow: 503,
    errors.StoreNotMigrated: 503,
    errors.StoreRefused: 503,
    errors.StoreDamaged: 503,
    errors.StoreFull: 503,
    errors.TooBusy: 503,
    errors.KeyServerUnreachable: 503,
}


class Mistake(BaseModel):
    loc: list[str | int]
    msg: str


class Problem(BaseModel):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[Mistake] = Field(default_factory=list)


_CONTENT = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the API's document: the problems that an endpoint may answer with."""
    return {status: {"description": HTTPStatus(status).phrase, "content": _CONTENT} for status in statuses}


class ProblemError(Exception):
    """Raised by endpoints to answer with a problem."""

    def __init__(self, status: int, detail: str, mistakes: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.mistakes = [{"loc": list(mistake["loc"]), "msg": mistake["msg"]} for mistake in mistakes[:REPORTED_ERRORS]]


def problem(status: int, detail: str, mistakes: Sequence[dict[str, Any]] = (), kind: str = "about:blank") -> JSONResponse:
    body: dict[str, Any] = {"type": kind, "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    if mistakes:
        body["errors"] = list(mistakes)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status)
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def install(app: FastAPI) -> None:
    """Make every error of the app read alike."""
    app.add_exception_handler(ProblemError, _from_problem)
    app.add_exception_handler(errors.BongsuError, _from_ours)
    app.add_exception_handler(RequestValidationError, _from_validation)
    app.add_exception_handler(HTTPException, _from_starlette)
    app.add_exception_handler(Exception, _from_surprise)


async def _from_problem(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)
    return problem(error.status, error.detail, error.mistakes)


async def _from_ours(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, errors.BongsuError)
    return problem_of(error)


def problem_of(error: errors.BongsuError) -> JSONResponse:
    status, text = STATUS.get(type(error), 500), str(error)
    if status >= 500:
        # The detail is for those who can read the log: it names the store's address, and members ask too.
        _log.warning("request failed", status=status, error=text)
        text = str(type(error)())
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()
    answer = problem(status, text, kind=f"urn:bongsu:{name}")
    if isinstance(error, errors.RateLimited):
        answer.headers["Retry-After"] = str(error.retry_after)
    return answer


async def _from_validation(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    mistakes = [{"loc": list(mistake["loc"]), "msg": mistake["msg"]} for mistake in error.errors()[:REPORTED_ERRORS]]
    return problem(422, "The request has mistakes: correct what `errors` names. Nothing was changed.", mistakes)


async def _from_starlette(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    detail = str(error.detail)
    if error.status_code in (404, 405):
        detail = f"There is no {request.method} {request.scope['path']} here: /docs shows what there is"
    answer = problem(error.status_code, detail)
    answer.headers.update(error.headers or {})
    if error.status_code == 405:
        answer.headers["Allow"] = ", ".join(_allowed(request))
    return answer


def _allowed(request: Request) -> list[str]:
    """The methods that the path of a request takes. The framework names those of one route, and a path may have several."""
    routes = [route for route in request.app.routes if not isinstance(route, Mount)]
    scopes = {method: {**request.scope, "method": method} for method in METHODS}
    found = [method for method in METHODS if any(route.matches(scopes[method])[0] is Match.FULL for route in routes)]
    return found or ["GET", "HEAD"]  # a directory of files


async def _from_surprise(_request: Request, error: Exception) -> JSONResponse:
    _log.error("request crashed", exc_info=error)
    return problem(500, "This is a fault in Bongsu. The log has it under the X-Request-ID of this answer.")
