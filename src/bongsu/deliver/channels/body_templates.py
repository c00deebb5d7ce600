"""Bodies of FCM calls, cast instead of built: all deliveries of a message have one form, and each fills in what is its own.

A fan-out sends the same words to thousands of devices. Building and weighing each call anew would cost more than sending it.
"""

from __future__ import annotations

import re
import secrets
import string
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from operator import itemgetter

import orjson

from bongsu.deliver.channels import fcm
from bongsu.outcome import Outgoing, Refused

# BodyTemplates kept at hand.
KEPT = 256
# What stands where a delivery's own is put in. Nobody's text has these: they are drawn anew by each process.
_COLLAPSE_ID = secrets.token_hex(16)
_NOTIFICATION_ID = int.from_bytes(secrets.token_bytes(8)) | 1 << 63
_TOKEN = secrets.token_hex(16)
_HOLES = (f'"{_TOKEN}"'.encode(), str(_NOTIFICATION_ID).encode(), _COLLAPSE_ID.encode())
_URL_SAFE = (string.ascii_letters + string.digits + "-_").encode()
_HOLE = re.compile(b"|".join(_HOLES))


@dataclass(frozen=True, slots=True)
class _Form:
    # The body with its holes marked for %, and the order in which what is put in stands there.
    body: bytes
    order: Callable[[tuple[bytes, bytes, bytes]], tuple[bytes, ...]]
    # What it weighs without the digits of the notification's id. Collapse ids all have the same length.
    size: int
    # It says how many seconds it is worth something, so it is good for one of them.
    ttl: int | None


class BodyTemplates:
    """Makes the same bodies as `fcm.request_body`, and refuses the same."""

    def __init__(self) -> None:
        self._forms: OrderedDict[int, _Form] = OrderedDict()

    def request_body(self, outgoing: Outgoing, now: datetime) -> bytes | Refused:
        notification_id, collapse_id = b"%d" % outgoing.notification_id, outgoing.collapse_id.encode(errors="replace")
        # Of no message, or without the usual ids, it has no form.
        has_form = outgoing.message_id and outgoing.address and _is_usual(collapse_id)
        form = self._form(outgoing, now) if has_form else None
        if form is None or form.size + len(notification_id) > fcm.PAYLOAD_LIMIT:
            return fcm.request_body(outgoing, now)
        try:
            token = orjson.dumps(outgoing.address)
        except TypeError:
            return fcm.request_body(outgoing, now)
        return form.body % form.order((token, notification_id, collapse_id))

    def _form(self, outgoing: Outgoing, now: datetime) -> _Form | None:
        """None for what is not to be sent."""
        form, ttl = self._forms.get(outgoing.message_id), None
        if outgoing.expires_at is not None:
            if outgoing.expires_at <= now:
                return None
            ttl = fcm.ttl(outgoing.expires_at, now)
        if form is None or form.ttl != ttl:
            form = self._cast(outgoing, now, ttl)
        return form

    def _cast(self, outgoing: Outgoing, now: datetime, ttl: int | None) -> _Form | None:
        blank = replace(outgoing, address=_TOKEN, notification_id=_NOTIFICATION_ID, collapse_id=_COLLAPSE_ID)
        body = fcm.request_body(blank, now)
        if isinstance(body, Refused):
            return None
        size = fcm.payload_size(orjson.loads(body)["message"]) - len(str(_NOTIFICATION_ID))
        form = self._forms[outgoing.message_id] = _Form(*_marked(body), size, ttl)
        if len(self._forms) > KEPT:
            self._forms.popitem(last=False)
        return form


def _marked(body: bytes) -> tuple[bytes, Callable[[tuple[bytes, bytes, bytes]], tuple[bytes, ...]]]:
    # There are at least two, the token and the id, so what the getter gets is a tuple.
    found = [_HOLES.index(one) for one in _HOLE.findall(body)]
    return _HOLE.sub(b"%b", body.replace(b"%", b"%%")), itemgetter(*found)


def _is_usual(collapse_id: bytes) -> bool:
    return len(collapse_id) == len(_COLLAPSE_ID) and not collapse_id.translate(None, _URL_SAFE)
