"""What FCM's answers mean. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from bongsu.deliver.channels.http.retry_after import LONGEST_ASKED, retry_after
from bongsu.deliver.channels.push.message import DETAIL_LIMIT
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Refused, Retry, Scope, Unknown

# The waits that FCM's documentation asks for, without a Retry-After; they double with each try.
QUOTA_SECONDS = 60.0
SERVER_SECONDS = 10.0
# Doubling ends here: FCM wants a message given up after an hour.
LONGEST_WAIT = 3600.0
# What came back together should not come again together. Added on top, because floors are floors.
SPREAD = 0.2


@dataclass(frozen=True)
class _Error:
    """An error of FCM, a google.rpc.Status, as far as it could be read."""

    # FcmError's errorCode. Empty where it is missing: then the answer is not from FCM but from something in front of it.
    code: str = ""
    message: str = ""
    # The fields that BadRequest lists, and the quotas that QuotaFailure names.
    fields: tuple[str, ...] = ()
    quotas: tuple[str, ...] = ()
    apns_status: str = ""
    raw: str = field(default="", repr=False)

    @property
    def detail(self) -> str:
        return (self.message or self.raw)[:DETAIL_LIMIT]

    @property
    def is_about_the_token(self) -> bool:
        """A bad argument is a dead token only if no other field is listed. Never guessed."""
        if self.fields:
            return set(self.fields) == {"message.token"}
        return "registration token" in self.message.lower()


def read_answer(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: datetime,
    attempt: int = 1,
    spread: float = 0.0,
) -> Outcome:
    """What FCM's answer means. `spread`, between 0 and 1, randomises waits, so that they do not all end together."""
    if 200 <= status < 300:
        return read_success(status, body)
    error = _parse(body)
    if status == 429:
        wait = _wait(QUOTA_SECONDS, attempt, spread, retry_after(headers, now))
        return Retry(error.code or "QUOTA_EXCEEDED", wait, _reach(error), error.detail)
    if status >= 500 or status == 408:
        wait = _wait(SERVER_SECONDS, attempt, spread, retry_after(headers, now))
        # A 503 may come for what is delivered nonetheless. With an FcmError it is from FCM itself: it was not delivered.
        return Retry(error.code or f"HTTP_{status}", wait, detail=error.detail, may_have_arrived=not error.code)
    return _refusal(status, error)


def _wait(floor: float, attempt: int, spread: float, asked: float | None) -> float:
    wait = floor * 2.0 ** min(attempt - 1, 30) if asked is None else asked
    return min(wait, LONGEST_WAIT if asked is None else LONGEST_ASKED) * (1 + SPREAD * spread)


def read_success(status: int, body: bytes) -> Outcome:
    try:
        name = orjson.loads(body)["name"]
    except (ValueError, TypeError, KeyError):
        name = None
    if status == 200 and isinstance(name, str) and name:
        return Accepted(name)
    return Unknown("BAD_ANSWER", f"{status} without a message's name: {_text(body)}")


def _refusal(status: int, error: _Error) -> Outcome:  # noqa: PLR0911 (a table, one row a line)
    match status, error.code:
        case _, "UNREGISTERED":
            return Gone("UNREGISTERED", error.detail)
        case 400, "INVALID_ARGUMENT" if error.apns_status == "410":
            return Gone("UNREGISTERED", error.detail)
        case 400, "INVALID_ARGUMENT" if error.is_about_the_token:
            return Gone("INVALID_ARGUMENT", error.detail)
        case _, "SENDER_ID_MISMATCH":
            return Gone("SENDER_ID_MISMATCH", error.detail)
        case _, "THIRD_PARTY_AUTH_ERROR" | "APNS_AUTH_ERROR":
            return Misconfigured("THIRD_PARTY_AUTH_ERROR", error.detail, Scope.PLATFORM)
        case 401 | 407, _:
            return Misconfigured("UNAUTHENTICATED", error.detail, is_for_all=True)
        case 403, _:
            return Misconfigured("PERMISSION_DENIED", error.detail, is_for_all=True)
        case 404, _:
            return Misconfigured("NOT_FOUND", error.detail)
        case 400, _:
            about = f"{', '.join(error.fields)}: " if error.fields else ""
            return Refused("INVALID_ARGUMENT", f"{about}{error.detail}"[:DETAIL_LIMIT])
        case 413, _:
            return Refused("PAYLOAD_TOO_LARGE", error.detail)
    if status < 400:
        # Such as a redirect: BONGSU_FCM_URL leads to something that is not FCM.
        return Misconfigured(f"HTTP_{status}", error.detail)
    return Refused(error.code or f"HTTP_{status}", error.detail)


def is_failure(outcome: Outcome) -> bool:
    """Whether the circuit breaker counts it. An exceeded quota is not a failure: FCM works, and asks for a wait."""
    match outcome:
        case Unknown() | Retry(may_have_arrived=True) | Retry(code="UNAVAILABLE" | "INTERNAL" | "UNREACHABLE"):
            return True
    return False


def is_answer(outcome: Outcome) -> bool:
    """Whether FCM answered, and so accepts our credentials; an ordinary 503 too."""
    match outcome:
        case Unknown() | Retry(is_held=True) | Retry(code="UNREACHABLE"):
            return False
    return True


def _reach(error: _Error) -> Scope:
    """The quota of one device may be exceeded while the project is well within its own."""
    text = " ".join((error.message, *error.quotas)).lower()
    return Scope.DELIVERY if "device" in text else Scope.CHANNEL


def _parse(body: bytes) -> _Error:
    """Whatever can be understood of an error's body: it may be HTML, half of it may be missing."""
    raw = _text(body)
    try:
        error = orjson.loads(body)["error"]
    except (ValueError, TypeError, KeyError):
        return _Error(raw=raw)
    if not isinstance(error, dict):
        return _Error(raw=raw)
    code, apns_status, fields, quotas = "", "", [], []
    for kind, detail in _details(error):
        match kind:
            case "google.firebase.fcm.v1.FcmError":
                code = str(detail.get("errorCode", ""))
            case "google.firebase.fcm.v1.ApnsError":
                apns_status = str(detail.get("statusCode", ""))
            case "google.rpc.BadRequest":
                fields += [str(violation.get("field", "")) for violation in _objects(detail.get("fieldViolations"))]
            case "google.rpc.QuotaFailure":
                violations = _objects(detail.get("violations"))
                quotas += [f"{violation.get('subject')} {violation.get('description')}" for violation in violations]
    message = error.get("message")
    return _Error(code, message if isinstance(message, str) else "", tuple(fields), tuple(quotas), apns_status, raw)


def _details(error: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for detail in _objects(error.get("details")):
        yield str(detail.get("@type", "")).removeprefix("type.googleapis.com/"), detail


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(body: bytes) -> str:
    return " ".join(body[: 2 * DETAIL_LIMIT].decode("utf-8", "replace").split())[:DETAIL_LIMIT]
