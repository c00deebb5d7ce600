"""FCM HTTP v1 as data: the message a delivery becomes, the limits it keeps, and what each answer means. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from bongsu.model import Priority
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Scope, Unknown

# What a device is sent may weigh this much. FCM does not say how it counts, so we count the JSON with all its quotes.
PAYLOAD_LIMIT = 4096
# The longest any of the three services keeps a message for a device that is away.
LONGEST_TTL = timedelta(weeks=4)
# APNs takes 64 bytes, web push 32 characters of this alphabet: one id for all has to fit the narrower.
COLLAPSE_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")

# Ours. What a rule put under one of these names travels as data_<name>, and so does what FCM keeps for itself.
OWN_KEYS = frozenset({"nid", "notificationId", "type", "refId", "title", "body"})
FCM_KEYS = frozenset({"from", "notification", "message_type"})
FCM_PREFIXES = ("google.", "gcm.")

# FCM asks for these when it does not say itself how long to wait; they double with each try.
QUOTA_SECONDS = 60.0
SERVER_SECONDS = 10.0
# Doubling ends here: FCM wants a message given up after an hour.
LONGEST_WAIT = 3600.0
# What is asked for is obeyed; but a date in the year 9999 is a mistake, and must not become one of ours.
LONGEST_ASKED = 86_400.0
# What came back together should not come again together. Added on top, because floors are floors.
SPREAD = 0.2

# Enough of a provider's words to understand them in a log line.
DETAIL_LIMIT = 300

_URGENCY = {Priority.HIGH: "high", Priority.NORMAL: "normal", Priority.LOW: "low"}


# --- what is sent -----------------------------------------------------------------------------------------------------


def request_body(outgoing: Outgoing, now: datetime) -> bytes | Refused:
    """The body of the call; or why it is not to be made, because FCM would refuse it or nobody wants it any more."""
    if not outgoing.address:
        return Refused("NO_TOKEN", "the device has no token")
    if outgoing.collapse_id and not COLLAPSE_ID.fullmatch(outgoing.collapse_id):
        return Refused("BAD_COLLAPSE_ID", "a collapse id is at most 32 characters of base64url")
    if outgoing.expires_at is not None and outgoing.expires_at <= now:
        return Refused("EXPIRED", f"it was worth something until {outgoing.expires_at.isoformat()}")
    try:
        message = build_message(outgoing, now)
        body = orjson.dumps({"message": message})
        # The body holds everything that is counted: a short one, as nearly all are, need not be counted.
        size = len(body) if len(body) <= PAYLOAD_LIMIT else payload_size(message)
    except (TypeError, ValueError, RecursionError) as error:
        # Half a surrogate pair, a number JSON has no word for: no JSON can carry it.
        return Refused("UNENCODABLE", str(error)[:DETAIL_LIMIT])
    if size > PAYLOAD_LIMIT:
        return Refused("PAYLOAD_TOO_LARGE", f"{size} bytes of text and data, FCM takes {PAYLOAD_LIMIT}: shorten the text")
    return body


def build_message(outgoing: Outgoing, now: datetime) -> dict[str, Any]:
    """The message as FCM wants it, for whatever the device runs: what an app says of its platform may be wrong or old."""
    message: dict[str, Any] = {
        "token": outgoing.address,
        "data": _data(outgoing),
        "android": _android(outgoing, now),
        "apns": _apns(outgoing),
        "webpush": _webpush(outgoing, now),
    }
    if not outgoing.is_silent:
        message["notification"] = {"title": outgoing.title, "body": outgoing.body}
    return message


def payload_size(message: Mapping[str, Any]) -> int:
    """How many bytes the hungriest of the platforms would be sent."""
    data = message["data"]
    notification = {**message.get("notification", {}), **message["webpush"].get("notification", {})}
    on_ios = orjson.dumps({**message["apns"]["payload"], **data})
    elsewhere = orjson.dumps({"notification": notification, "data": data})
    return max(len(on_ios), len(elsewhere))


def _data(outgoing: Outgoing) -> dict[str, str]:
    """Strings to strings, as FCM wants it; what is no string becomes its JSON."""
    data = {"notificationId": str(outgoing.notification_id), "type": outgoing.type}
    if outgoing.collapse_id:
        data["nid"] = outgoing.collapse_id
    if outgoing.ref_id is not None:
        data["refId"] = outgoing.ref_id
    if outgoing.is_silent:
        data |= {"title": outgoing.title, "body": outgoing.body}
    for key, value in outgoing.data.items():
        data[_free_key(key, outgoing.data)] = value if isinstance(value, str) else _as_text(value)
    return data


def _free_key(key: str, taken: Mapping[str, Any]) -> str:
    if not _is_reserved(key):
        return key
    renamed = f"data_{key}"
    while renamed in taken:
        renamed = f"data_{renamed}"
    return renamed


def _is_reserved(key: str) -> bool:
    return key in OWN_KEYS or key in FCM_KEYS or key.startswith(FCM_PREFIXES)


def _as_text(value: Any) -> str:
    # Most that are no text are whole numbers: the encoder takes ten times as long to write the same.
    return str(value) if type(value) is int else _json(value)


_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def _android(outgoing: Outgoing, now: datetime) -> dict[str, Any]:
    # Doze holds back what is not of high priority, and an app that is to act on silent data would act hours late.
    is_urgent = outgoing.is_silent or outgoing.priority is Priority.HIGH
    android: dict[str, Any] = {"priority": "high" if is_urgent else "normal"}
    if outgoing.expires_at is not None:
        android["ttl"] = f"{ttl(outgoing.expires_at, now)}s"
    if outgoing.collapse_id and not outgoing.is_silent:
        # Not collapse_key: a device keeps four of them, and ignores them for what it shows by itself.
        android["notification"] = {"tag": outgoing.collapse_id}
    return android


def _apns(outgoing: Outgoing) -> dict[str, Any]:
    aps: dict[str, Any]
    if outgoing.is_silent:
        # APNs rejects background pushes of priority 10, and any other word in aps would make it an alert.
        headers = {"apns-push-type": "background", "apns-priority": "5"}
        aps = {"content-available": 1}
    else:
        is_low = outgoing.priority is Priority.LOW
        headers = {"apns-push-type": "alert", "apns-priority": "5" if is_low else "10"}
        aps = {"alert": {"title": outgoing.title, "body": outgoing.body}}
        if not is_low:
            aps["sound"] = "default"
    if outgoing.collapse_id:
        headers["apns-collapse-id"] = outgoing.collapse_id
    if outgoing.expires_at is not None:
        headers["apns-expiration"] = str(int(outgoing.expires_at.timestamp()))
    return {"headers": headers, "payload": {"aps": aps}}


def _webpush(outgoing: Outgoing, now: datetime) -> dict[str, Any]:
    headers = {"Urgency": _URGENCY[outgoing.priority]}
    if outgoing.expires_at is not None:
        headers["TTL"] = str(ttl(outgoing.expires_at, now))
    webpush: dict[str, Any] = {"headers": headers}
    if outgoing.collapse_id:
        headers["Topic"] = outgoing.collapse_id
        if not outgoing.is_silent:
            webpush["notification"] = {"tag": outgoing.collapse_id}
    return webpush


def ttl(expires_at: datetime, now: datetime) -> int:
    """Whole seconds, rounded down: rather not shown than shown too late."""
    return int(min(expires_at - now, LONGEST_TTL).total_seconds())


# --- what is answered -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Error:
    """What FCM says in google.rpc.Status, as far as it could be read."""

    # FcmError's errorCode. Empty where it is missing: then not FCM has spoken, but something in front of it.
    code: str = ""
    message: str = ""
    # The fields that BadRequest complains about, and the quotas that QuotaFailure names.
    fields: tuple[str, ...] = ()
    quotas: tuple[str, ...] = ()
    apns_status: str = ""
    raw: str = field(default="", repr=False)

    @property
    def detail(self) -> str:
        return (self.message or self.raw)[:DETAIL_LIMIT]

    @property
    def is_about_the_token(self) -> bool:
        """A bad argument is a dead token only if nothing else was complained about. Never guessed."""
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
    """What FCM's answer means. `spread`, between 0 and 1, is the dice for waits that should not all end together."""
    if 200 <= status < 300:
        return taken_on(status, body)
    error = _parse(body)
    if status == 429:
        wait = _wait(QUOTA_SECONDS, attempt, spread, retry_after(headers, now))
        return Retry(error.code or "QUOTA_EXCEEDED", wait, _reach(error), error.detail)
    if status >= 500 or status == 408:
        wait = _wait(SERVER_SECONDS, attempt, spread, retry_after(headers, now))
        # It has answered 503 for what it then delivered. Where FcmError is given, the one who knows says that it was not.
        return Retry(error.code or f"HTTP_{status}", wait, detail=error.detail, may_have_arrived=not error.code)
    return _refusal(status, error)


def _wait(floor: float, attempt: int, spread: float, asked: float | None) -> float:
    wait = floor * 2.0 ** min(attempt - 1, 30) if asked is None else asked
    return min(wait, LONGEST_WAIT if asked is None else LONGEST_ASKED) * (1 + SPREAD * spread)


def taken_on(status: int, body: bytes) -> Outcome:
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
        # A redirect, say: BONGSU_FCM_URL leads to something that is not FCM.
        return Misconfigured(f"HTTP_{status}", error.detail)
    return Refused(error.code or f"HTTP_{status}", error.detail)


def is_failure(outcome: Outcome) -> bool:
    """Whether the circuit breaker counts it. A quota is no failure: FCM is well, and says when to come back."""
    match outcome:
        case Unknown() | Retry(may_have_arrived=True) | Retry(code="UNAVAILABLE" | "INTERNAL" | "UNREACHABLE"):
            return True
    return False


def is_answer(outcome: Outcome) -> bool:
    """Whether FCM answered, and so has let us in; an ordinary 503 too."""
    match outcome:
        case Unknown() | Retry(is_held=True) | Retry(code="UNREACHABLE"):
            return False
    return True


def _reach(error: _Error) -> Scope:
    """One device may be told too often while the project is well within its quota."""
    words = " ".join((error.message, *error.quotas)).lower()
    return Scope.DELIVERY if "device" in words else Scope.CHANNEL


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """The seconds a Retry-After asks for, written as a number or a date; None when there is none that can be read."""
    text = next((value.strip() for name, value in headers.items() if name.lower() == "retry-after"), "")
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text, re.ASCII):
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


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
                fields += [str(one.get("field", "")) for one in _objects(detail.get("fieldViolations"))]
            case "google.rpc.QuotaFailure":
                quotas += [f"{one.get('subject')} {one.get('description')}" for one in _objects(detail.get("violations"))]
    message = error.get("message")
    return _Error(code, message if isinstance(message, str) else "", tuple(fields), tuple(quotas), apns_status, raw)


def _details(error: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for detail in _objects(error.get("details")):
        yield str(detail.get("@type", "")).removeprefix("type.googleapis.com/"), detail


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _text(body: bytes) -> str:
    return " ".join(body[: 2 * DETAIL_LIMIT].decode("utf-8", "replace").split())[:DETAIL_LIMIT]
