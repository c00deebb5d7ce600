"""A faster parser for NDJSON lines: an event that is plainly valid is read by msgspec instead of pydantic.

It never refuses a line: what it is not sure of goes to the exact parser (`Event`), which alone decides what is refused and
with which message. What it accepts is stored exactly as the exact parser would have stored it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from bongsu.model import ID_LIMIT, NAME_LIMIT, Event, is_beyond_doubt, new_id, utc_now
from bongsu.model.payload import DEPTH_LIMIT, STRING_LIMIT
from bongsu.store.outbox import NewEvent

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_LIMIT)]
_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=ID_LIMIT)]


class _Line(msgspec.Struct, rename="camel", forbid_unknown_fields=True, gc=False):
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

_decode = msgspec.json.Decoder(_Line).decode
_encode = msgspec.json.Encoder().encode
# As the standard libraries write a time: both parsers read this form alike.
_is_common_time = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:[0-9]{2})"
).fullmatch


def fast_parser(exact: Callable[[int, bytes], Event]) -> Callable[[int, bytes], Event | NewEvent]:
    """A parser that uses `exact` where the fast one is not sure. `exact` raises if the line is invalid."""

    def read(number: int, line: bytes) -> Event | NewEvent:
        return read_line(line) or exact(number, line)

    return read


def read_line(line: bytes) -> NewEvent | None:
    """The row to be stored, or None if the exact parser has to decide.

    All in one function: for a short line, calls are a measurable part.
    """
    try:
        found = _decode(line)
        written = found.occurred_at
        if written is msgspec.UNSET:
            moment = utc_now()
        elif not _is_common_time(written) or not is_beyond_doubt(moment := datetime.fromisoformat(written)):
            return None
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None
    event_type, actor_id, target_id, ref_id = found.event_type, found.actor_id, found.target_id, found.ref_id
    text = _encode(found.payload)
    if (
        # Stricter than required: only control characters are refused.
        not event_type.isprintable()
        or not (actor_id is None or actor_id.isprintable())
        or not (target_id is None or target_id.isprintable())
        or not (ref_id is None or ref_id.isprintable())
        # NUL, which a database may refuse. Numbers are finite, or msgspec would not have read them.
        or (b"\\" in text and b"\\u0000" in text)
        or (len(text) > SURELY_FLAT and not _is_short_and_flat(text))
    ):
        return None
    return NewEvent(found.event_id, event_type, moment, actor_id, target_id, ref_id, text.decode())


def _is_short_and_flat(text: bytes) -> bool:
    return len(text) <= STRING_LIMIT and text.count(b"{") + text.count(b"[") <= DEPTH_LIMIT
