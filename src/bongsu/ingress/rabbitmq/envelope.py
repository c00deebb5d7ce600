"""The body of a message as an event: the common envelope, with an id that a redelivery repeats."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

import msgspec

from bongsu.ingress.decode import Mistake, Rejected, decode_event
from bongsu.ingress.rabbitmq.properties import UNREADABLE
from bongsu.model import Event
from bongsu.store.outbox import NewEvent

# Of ids made from a message_id that is not a UUID.
_NAMESPACE = UUID("8f3d2c64-6a0f-4a52-9d53-3c1d0e6f7a11")
_MISSING = "is missing, and so is the property message_id: a message that is delivered twice would be stored twice"


class _Identity(msgspec.Struct, rename="camel"):
    event_id: Any = msgspec.UNSET
    event_type: Any = msgspec.UNSET


_decode_identity = msgspec.json.Decoder(_Identity).decode


def with_event_id(body: bytes, message_id: str | None) -> bytes:
    """The body; if it names no eventId, with one made from the message_id, which many publishers set by themselves. One that
    cannot be read does not tell two messages apart."""
    if not message_id or UNREADABLE in message_id or b'"eventId"' in body:
        return body
    start = body.lstrip()
    if not start.startswith(b"{"):
        return body
    comma = b"" if start[1:].lstrip().startswith(b"}") else b","
    return b'{"eventId":"%b"%b%b' % (str(_as_uuid(message_id)).encode(), comma, start[1:])


def decode_message(data: bytes) -> Event | NewEvent | Rejected:
    """An event that names its eventId. By HTTP an event may leave it out, because a request is answered; a message may come
    through two queues, and again after a crash."""
    event = decode_event(data)
    if not isinstance(event, Rejected) and peek(data)[0] is None:
        return Rejected([Mistake(("eventId",), _MISSING)])
    return event


def peek(data: bytes) -> tuple[str | None, str | None]:
    """eventId and eventType as they are written, if they can be read: for the list of dead letters."""
    try:
        found = _decode_identity(data)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None, None
    return _text(found.event_id), _text(found.event_type)


def _text(value: object) -> str | None:
    return None if value is msgspec.UNSET or value is None else str(value)[:200]


def _as_uuid(message_id: str) -> UUID:
    try:
        return UUID(message_id)
    except ValueError:
        return uuid5(_NAMESPACE, message_id)
