"""Decoding: bytes from outside become an Event or a Behavior, or a Rejected with the reason.

There is no HTTP in it: request bodies, NDJSON lines and broker messages are decoded alike. pydantic alone decides what is
rejected and why. An event that is plainly valid is read by msgspec, in half the time; whatever msgspec is not sure of goes
to pydantic, and what it accepts is stored exactly as pydantic would have stored it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec
from pydantic import TypeAdapter, ValidationError

from bongsu.model import DOTS, ID_LIMIT, NAME_LIMIT, Behavior, Event, has_plausible_date, new_id, utc_now
from bongsu.model.payload import DEPTH_LIMIT, STRING_LIMIT, TOO_MANY_VALUES, has_too_many_values
from bongsu.store.outbox import NewEvent

_T = TypeVar("_T")

# What is longer is decoded in a thread, so that others are answered meanwhile.
LARGE = 65_536
# Of more mistakes than this the list itself would take longer than the decoding.
MISTAKES_LIMIT = 1_000


@dataclass(frozen=True, slots=True)
class Mistake:
    location: Sequence[str | int]
    message: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why something cannot be decoded: every mistake, and where it is."""

    mistakes: Sequence[Mistake]
    is_json: bool = True

    @property
    def reason(self) -> str:
        """The first mistake, in one line."""
        first = self.mistakes[0]
        return ".".join(map(str, first.location)) + ": " * bool(first.location) + first.message


Decode = Callable[[bytes], _T | Rejected]


async def decode_apart(decode: Callable[[bytes], _T], data: bytes) -> _T:
    """Decode without keeping the event loop: in a thread if it is long. How many values it may have bounds the time for
    which the interpreter is not free for others, because a parser keeps it to itself."""
    return await asyncio.to_thread(decode, data) if len(data) > LARGE else decode(data)


def decode_json(adapter: TypeAdapter[_T], data: bytes) -> _T | Rejected:
    """JSON as the adapter's type."""
    if has_too_many_values(data):
        return Rejected([Mistake((), TOO_MANY_VALUES)])
    try:
        return adapter.validate_json(data, by_alias=True, by_name=False)
    except ValidationError as error:
        if (count := error.error_count()) > MISTAKES_LIMIT:
            return Rejected([Mistake((), f"has {count} mistakes, which are too many to name")])
        found = error.errors(include_url=False, include_input=False, include_context=False)
        return Rejected([Mistake(each["loc"], each["msg"]) for each in found], is_json=found[0]["type"] != "json_invalid")


_event = TypeAdapter(Event)
_behavior = TypeAdapter(Behavior)


def decode_event(data: bytes) -> Event | NewEvent | Rejected:
    """One event, as it is sent by any way in."""
    if not has_too_many_values(data) and (plain := _decode_plain_event(data)) is not None:
        return plain
    decoded: Event | Rejected = decode_json(_event, data)
    return decoded


def decode_behavior(data: bytes) -> Behavior | Rejected:
    return decode_json(_behavior, data)


# --- events that are plainly valid ------------------------------------------------------------------------------------

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LIMIT)]
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_LIMIT)]


class _PlainEvent(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
    """The fields of an event. null is accepted where `Event` accepts it, and nowhere else."""

    event_type: _Name
    event_id: UUID = msgspec.field(default_factory=new_id)
    # As text, because msgspec rounds what is finer than a microsecond, and pydantic cuts it off.
    occurred_at: str | msgspec.UnsetType = msgspec.UNSET
    actor_id: _Id | None = None
    target_id: _Id | None = None
    ref_id: _Id | None = None
    payload: dict[str, Any] = msgspec.field(default_factory=dict)


# A level takes two brackets, so a payload that is no longer than this is not too deep.
SURELY_FLAT = 2 * DEPTH_LIMIT

_decode = msgspec.json.Decoder(_PlainEvent).decode
_encode = msgspec.json.Encoder().encode
# As the standard libraries write a time: both parsers read this form alike.
_is_common_time = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
).fullmatch


def _decode_plain_event(data: bytes) -> NewEvent | None:
    """The row to be stored, or None if pydantic has to decide.

    All in one function: for a short event, calls are a measurable part.
    """
    try:
        found = _decode(data)
        written = found.occurred_at
        if written is msgspec.UNSET:
            moment = utc_now()
        elif not _is_common_time(written) or not has_plausible_date(moment := datetime.fromisoformat(written)):
            return None
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None
    event_type, actor_id, target_id, ref_id = found.event_type, found.actor_id, found.target_id, found.ref_id
    text = _encode(found.payload)
    if (
        # Stricter than required: only control characters are refused.
        not event_type.isprintable()
        or not (actor_id is None or (actor_id.isprintable() and actor_id not in DOTS))
        or not (target_id is None or (target_id.isprintable() and target_id not in DOTS))
        or not (ref_id is None or (ref_id.isprintable() and ref_id not in DOTS))
        # NUL, which a database may refuse. Numbers are finite, or msgspec would not have read them.
        or (b"\\" in text and b"\\u0000" in text)
        or (len(text) > SURELY_FLAT and not _is_short_and_flat(text))
    ):
        return None
    return NewEvent(found.event_id, event_type, moment, actor_id, target_id, ref_id, text.decode())


def _is_short_and_flat(text: bytes) -> bool:
    return len(text) <= STRING_LIMIT and text.count(b"{") + text.count(b"[") <= DEPTH_LIMIT
