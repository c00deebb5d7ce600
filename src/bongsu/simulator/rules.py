"""The payload rules of FCM, as documented: which messages the simulator refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PAYLOAD_LIMIT = 4096
TOPIC_PAYLOAD_LIMIT = 2048

TARGETS = ("token", "fid", "topic", "condition")
KNOWN = frozenset({*TARGETS, "name", "notification", "data", "android", "apns", "webpush", "fcm_options", "fcmOptions"})
RESERVED = frozenset({"from", "notification", "message_type"})
RESERVED_PREFIXES = ("google.", "gcm.")
DURATION = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?s", re.ASCII)
WHOLE_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)
TOPIC_HEADER = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True, slots=True)
class Violation:
    """One field, and what is wrong with it."""

    field: str
    description: str


class Message:
    """A parsed message. Missing parts are empty."""

    __slots__ = (
        *("violations", "kind", "target", "data", "notification", "android", "android_notification"),
        *("apple", "aps", "web", "web_notification"),
    )

    def __init__(self, given: dict[str, Any], size: int) -> None:
        """`size` is its length as JSON, an upper bound of its payload."""
        self.violations: list[Violation] = []
        targets = [name for name in TARGETS if given.get(name)]
        self.kind = targets[0] if targets else ""
        self.target = str(given[self.kind]) if targets else ""
        if len(targets) != 1 or not isinstance(given[self.kind], str):
            self.violations.append(Violation("message", "Exactly one of token, fid, topic or condition is required"))
        if not KNOWN.issuperset(given):
            for unknown in sorted(set(given) - KNOWN):
                self.violations.append(Violation(f"message.{unknown}", f'Unknown name "{unknown}" at "message"'))
        self.data = self._object(given, "data")
        self.notification = self._object(given, "notification")
        self.android = self._object(given, "android")
        self.android_notification = self._object(self.android, "notification")
        apns = self._object(given, "apns")
        self.apple = self._headers(apns)
        self.aps = self._object(self._object(apns, "payload"), "aps")
        webpush = self._object(given, "webpush")
        self.web = self._headers(webpush)
        self.web_notification = self._object(webpush, "notification")
        self.violations.extend(_violations(self, size))

    def _object(self, parent: dict[str, Any], name: str) -> dict[str, Any]:
        found = parent.get(name)
        if isinstance(found, dict):
            return found
        if found is None:
            return {}
        self.violations.append(Violation(f"message…{name}", "must be an object"))
        return {}

    def _headers(self, part: dict[str, Any]) -> dict[str, str]:
        return {name.lower(): str(value) for name, value in self._object(part, "headers").items()}

    @property
    def collapse_ids(self) -> list[str]:
        """The distinct ids by which a device would recognise a repeat. More than one is a sender's mistake."""
        found = (
            self.data.get("nid"),
            self.android_notification.get("tag"),
            self.apple.get("apns-collapse-id"),
            self.web.get("topic"),
            self.web_notification.get("tag"),
        )
        return list(dict.fromkeys(map(str, filter(None, found))))

    def expiry(self, epoch: float) -> float | None:
        """When the message expires, in seconds since 1970; None if it does not say."""
        if expiration := self.apple.get("apns-expiration"):
            return float(expiration)
        ttl = str(self.android.get("ttl", "")).removesuffix("s") or self.web.get("ttl")
        return epoch + float(ttl) if ttl else None

    @property
    def payload_bytes(self) -> int:
        """The names and values of notification and data."""
        texts = "".join(
            [*self.notification, *map(str, self.notification.values()), *self.data, *map(str, self.data.values())]
        )
        return len(texts) if texts.isascii() else len(texts.encode("utf-8", "replace"))


def _violations(message: Message, size: int) -> Iterator[Violation]:
    for key, value in message.data.items():
        if not isinstance(value, str):
            yield Violation(f"message.data.{key}", "Invalid value: must be a string")
        if key in RESERVED or key.startswith(RESERVED_PREFIXES):
            yield Violation(f"message.data.{key}", f"Invalid data payload key: {key}")
    for key, value in message.notification.items():
        if not isinstance(value, str):
            yield Violation(f"message.notification.{key}", "Invalid value: must be a string")
    if str(message.android.get("priority", "normal")).lower() not in ("normal", "high"):
        yield Violation("message.android.priority", "must be NORMAL or HIGH")
    if "ttl" in message.android and not DURATION.fullmatch(str(message.android["ttl"])):
        yield Violation("message.android.ttl", "must be seconds followed by s")
    yield from _of_apns(message.apple, message.aps)
    yield from _of_web(message.web)
    limit = TOPIC_PAYLOAD_LIMIT if message.kind == "topic" else PAYLOAD_LIMIT
    if size > limit and message.payload_bytes > limit:
        yield Violation("message", f"Message is too big: {message.payload_bytes} bytes, the limit is {limit}")


def _of_apns(headers: dict[str, str], aps: dict[str, Any]) -> Iterator[Violation]:
    if len(headers.get("apns-collapse-id", "").encode("utf-8", "replace")) > 64:
        yield Violation("message.apns.headers", "apns-collapse-id is longer than 64 bytes")
    if "apns-expiration" in headers and not WHOLE_NUMBER.fullmatch(headers["apns-expiration"]):
        yield Violation("message.apns.headers", "apns-expiration must be seconds since 1970")
    if headers.get("apns-push-type") == "background":
        if headers.get("apns-priority") == "10":
            yield Violation("message.apns.headers", "a background push must have apns-priority 5")
        if set(aps) != {"content-available"}:
            yield Violation("message.apns.payload.aps", "a background push has content-available and nothing else")


def _of_web(headers: dict[str, str]) -> Iterator[Violation]:
    if "topic" in headers and not TOPIC_HEADER.fullmatch(headers["topic"]):
        yield Violation("message.webpush.headers", "Topic must be at most 32 characters of base64url")
    if "ttl" in headers and not WHOLE_NUMBER.fullmatch(headers["ttl"]):
        yield Violation("message.webpush.headers", "TTL must be whole seconds")
    if headers.get("urgency", "normal") not in ("very-low", "low", "normal", "high"):
        yield Violation("message.webpush.headers", "Urgency must be very-low, low, normal or high")
