"""What FCM is sent: a delivery in, a message out, within FCM's limits. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import orjson

from bongsu.model import Priority
from bongsu.model.outcome import Outgoing, Refused

# Bytes that a device may be sent. FCM does not document how it counts, so we count the JSON with all its quotes.
PAYLOAD_LIMIT = 4096
# The longest any of the three services keeps a message for a device that is away.
LONGEST_TTL = timedelta(weeks=4)
# APNs takes 64 bytes, web push 32 characters of this alphabet: one id for all has to fit the narrower.
COLLAPSE_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")

# Ours. What a rule put under one of these names travels as data_<name>, and so does what FCM keeps for itself.
OWN_KEYS = frozenset({"nid", "notificationId", "type", "refId", "title", "body"})
FCM_KEYS = frozenset({"from", "notification", "message_type"})
FCM_PREFIXES = ("google.", "gcm.")

# Enough of a provider's text to understand it in a log line.
DETAIL_LIMIT = 300

_URGENCY = {Priority.HIGH: "high", Priority.NORMAL: "normal", Priority.LOW: "low"}


def request_body(outgoing: Outgoing, now: datetime) -> bytes | Refused:
    """The body of the call; or why it is not to be made, because FCM would refuse it or it has expired."""
    if not outgoing.address:
        return Refused("NO_TOKEN", "the device has no token")
    if outgoing.collapse_id and not COLLAPSE_ID.fullmatch(outgoing.collapse_id):
        return Refused("BAD_COLLAPSE_ID", "a collapse id is at most 32 characters of base64url")
    if outgoing.expires_at is not None and outgoing.expires_at <= now:
        return Refused("EXPIRED", f"it expired at {outgoing.expires_at.isoformat()}")
    try:
        message = build_message(outgoing, now)
        body = orjson.dumps({"message": message})
        # The body holds everything that is counted: a short one, as nearly all are, need not be counted.
        size = len(body) if len(body) <= PAYLOAD_LIMIT else payload_size(message)
    except (TypeError, ValueError, RecursionError) as error:
        # Half a surrogate pair, or a number that JSON cannot represent.
        return Refused("UNENCODABLE", str(error)[:DETAIL_LIMIT])
    if size > PAYLOAD_LIMIT:
        return Refused("PAYLOAD_TOO_LARGE", f"{size} bytes of text and data, FCM takes {PAYLOAD_LIMIT}: shorten the text")
    return body


def build_message(outgoing: Outgoing, now: datetime) -> dict[str, Any]:
    """The message as FCM wants it, for all platforms at once: the platform that an app registered may be wrong or old."""
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
    """The largest number of bytes that any platform would be sent."""
    data = message["data"]
    notification = {**message.get("notification", {}), **message["webpush"].get("notification", {})}
    on_ios = orjson.dumps({**message["apns"]["payload"], **data})
    elsewhere = orjson.dumps({"notification": notification, "data": data})
    return max(len(on_ios), len(elsewhere))


def _data(outgoing: Outgoing) -> dict[str, str]:
    """Strings to strings, as FCM requires; any other value becomes its JSON."""
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
    # Most other values are whole numbers: the encoder takes ten times as long to write the same.
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
        # APNs rejects background pushes of priority 10, and any other key in aps would make it an alert.
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
