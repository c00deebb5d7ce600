"""The simulator's replies, in the exact format of Google's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from email.utils import formatdate
from enum import StrEnum
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson

from bongsu.simulator.config import RetryAfter
from bongsu.simulator.rules import Violation

_TYPES = "type.googleapis.com/"


class Manner(StrEnum):
    """How a reply is transmitted."""

    WHOLE = "whole"
    DRIP = "drip"
    RESET = "reset"
    SILENCE = "silence"


class Reply(NamedTuple):
    """A reply before it is encoded. `code` is what the ledger calls it."""

    status: int
    body: bytes
    code: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json; charset=UTF-8"
    manner: Manner = Manner.WHOLE
    delay: float = 0.0
    # How long the sender has to wait before it retries; None if it need not wait, or must not retry.
    asked_seconds: float | None = None


def accepted(project: str, name: str) -> Reply:
    return Reply(200, orjson.dumps({"name": f"projects/{project}/messages/{name}"}), "ACCEPTED")


def error(
    status: int,
    rpc: str,
    message: str,
    code: str = "",
    more: Sequence[dict[str, Any]] = (),
    headers: tuple[tuple[str, str], ...] = (),
    asked_seconds: float | None = None,
) -> Reply:
    """A google.rpc.Status, with an FcmError in its details if there is a code."""
    details = [*more]
    if code:
        details.append({"@type": f"{_TYPES}google.firebase.fcm.v1.FcmError", "errorCode": code})
    body: dict[str, Any] = {"code": status, "message": message, "status": rpc}
    if details:
        body["details"] = details
    return Reply(status, orjson.dumps({"error": body}), code or f"HTTP_{status}", headers, asked_seconds=asked_seconds)


def bad_request(found: Sequence[Violation]) -> Reply:
    listed = [{"field": violation.field, "description": violation.description} for violation in found]
    detail = {"@type": f"{_TYPES}google.rpc.BadRequest", "fieldViolations": listed}
    return error(400, "INVALID_ARGUMENT", found[0].description, "INVALID_ARGUMENT", [detail])


def bad_json(why: str) -> Reply:
    return error(400, "INVALID_ARGUMENT", f"Invalid JSON payload received. {why}")


REFUSED = bad_request([Violation("message.data", "Invalid data payload")])
UNREGISTERED = error(404, "NOT_FOUND", "Requested entity was not found.", "UNREGISTERED")
BAD_TOKEN = error(
    400, "INVALID_ARGUMENT", "The registration token is not a valid FCM registration token", "INVALID_ARGUMENT"
)
SENDER_ID_MISMATCH = error(403, "PERMISSION_DENIED", "SenderId mismatch", "SENDER_ID_MISMATCH")
THIRD_PARTY_AUTH_ERROR = error(
    401, "UNAUTHENTICATED", "The APNs certificate or the web push key was refused", "THIRD_PARTY_AUTH_ERROR"
)
APNS_GONE = error(
    400,
    "INVALID_ARGUMENT",
    "Request contains an invalid argument.",
    "INVALID_ARGUMENT",
    [{"@type": f"{_TYPES}google.firebase.fcm.v1.ApnsError", "statusCode": 410, "reason": "Unregistered"}],
)
UNAUTHENTICATED = error(
    401,
    "UNAUTHENTICATED",
    "Request had invalid authentication credentials. Expected OAuth 2 access token.",
    headers=(("WWW-Authenticate", 'Bearer realm="https://accounts.google.com/", error="invalid_token"'),),
)
FORBIDDEN = error(403, "PERMISSION_DENIED", "Permission 'cloudmessaging.messages.create' denied on the project.")
INTERNAL = error(500, "INTERNAL", "Internal error encountered.", "INTERNAL", asked_seconds=10.0)
TRUNCATED = Reply(500, INTERNAL.body[: len(INTERNAL.body) // 2], "TRUNCATED", asked_seconds=10.0)
GARBAGE = Reply(200, b'{"name": \x00\xff', "GARBAGE")


def _page(status: int, code: str, asked_seconds: float | None = None) -> Reply:
    phrase = HTTPStatus(status).phrase
    body = f"<!DOCTYPE html>\n<html><title>Error {status} ({phrase})</title><p>That is an error.</html>\n".encode()
    return Reply(status, body, code, content_type="text/html; charset=UTF-8", asked_seconds=asked_seconds)


BAD_GATEWAY = _page(502, "BAD_GATEWAY", 10.0)
NOT_FOUND = _page(404, "NOT_FOUND")


def unavailable(wait: RetryAfter, epoch: float, code: str = "UNAVAILABLE") -> Reply:
    """Without a code it comes from a proxy in front of FCM that got no reply from it."""
    header, asked = _retry_after(wait, epoch, 10.0)
    return error(503, "UNAVAILABLE", "The service is currently unavailable.", code, (), header, asked)


def quota(wait: RetryAfter, epoch: float, subject: str) -> Reply:
    header, asked = _retry_after(wait, epoch, 60.0)
    broken = [{"subject": subject, "description": f"Message rate exceeded for {subject}"}]
    detail = {"@type": f"{_TYPES}google.rpc.QuotaFailure", "violations": broken}
    return error(429, "RESOURCE_EXHAUSTED", f"Quota exceeded for {subject}.", "QUOTA_EXCEEDED", [detail], header, asked)


def _retry_after(wait: RetryAfter, epoch: float, floor: float) -> tuple[tuple[tuple[str, str], ...], float]:
    match wait.form:
        case "seconds":
            whole = math.ceil(wait.seconds)
            return (("Retry-After", str(whole)),), float(whole)
        case "date":
            # A date has whole seconds: round up, so that the sender does not retry too early.
            return (("Retry-After", formatdate(math.ceil(epoch + wait.seconds), usegmt=True)),), wait.seconds
        case "nonsense":
            return (("Retry-After", "soon"),), floor
    return (), floor


def access_token(token: str, seconds: float) -> Reply:
    return Reply(200, orjson.dumps({"access_token": token, "expires_in": int(seconds), "token_type": "Bearer"}))


def no_access_token(status: int, why: str) -> Reply:
    return Reply(status, orjson.dumps({"error": why, "error_description": "The simulator is configured to refuse."}))


def json_reply(value: Any) -> Reply:
    """A reply of the simulator's control API."""
    return Reply(200, orjson.dumps(value), content_type="application/json")


def problem(status: int, detail: str, mistakes: Sequence[dict[str, Any]] = ()) -> Reply:
    body: dict[str, Any] = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    if mistakes:
        body["errors"] = list(mistakes)
    return Reply(status, orjson.dumps(body), content_type="application/problem+json")
