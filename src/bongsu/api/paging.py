"""Cursors: where a page ended, as a text that is opaque to callers, because what a page is ordered by is ours to change.

A cursor is a dataclass of numbers, texts, times, UUIDs and enums. On the wire it is a JSON array of its fields in base64,
with null for a default.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_type_hints
from uuid import UUID

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

# For the API's document: callers cannot make one themselves.
CursorText = Annotated[str, Field(json_schema_extra={"format": "cursor"})]

_C = TypeVar("_C")


def encode_cursor(cursor: Any) -> str:
    values = ((field, getattr(cursor, field.name)) for field in fields(cursor))
    return encode_parts(*(None if value == field.default else _plain(value) for field, value in values))


def decode_cursor(kind: type[_C], text: str) -> _C:
    """Raises the mistake that is reported to the caller if the text was not made by `encode_cursor` of such a cursor."""
    try:
        parts = json.loads(base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
        if isinstance(parts, list) and encode_parts(*parts) == text:
            readers = _readers(kind)  # type: ignore[arg-type]
            given = zip(readers.items(), parts, strict=True)
            return kind(**{name: read(part) for (name, read), part in given if part is not None})
    except (binascii.Error, ValueError, TypeError, OverflowError, RecursionError):
        pass
    raise not_a_cursor()


def cursor_of(kind: type[Any]) -> BeforeValidator:
    """For a parameter: `Annotated[PageCursor, cursor_of(PageCursor)]`."""
    return BeforeValidator(partial(decode_cursor, kind), json_schema_input_type=CursorText)


def not_a_cursor() -> PydanticCustomError:
    return PydanticCustomError(
        "cursor", "is not a cursor: send the `next` of the previous page, or leave it out to begin with the newest"
    )


def encode_parts(*parts: Any) -> str:
    written = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(written).decode().rstrip("=")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID | Enum) else value


@cache
def _readers(kind: type[Any]) -> dict[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind)
    return {field.name: _READERS.get(hints[field.name], hints[field.name]) for field in fields(kind)}


def _id(part: object) -> int:
    # Python takes true for a number.
    if type(part) is not int or not 0 <= part < 2**63:
        raise ValueError(part)
    return part


def _text(part: object) -> str:
    if not isinstance(part, str) or "\x00" in part:
        raise ValueError(part)
    return part


def _moment(part: object) -> datetime:
    moment = datetime.fromisoformat(_text(part))
    if moment.tzinfo is None or moment.astimezone(UTC).year < 1970:
        raise ValueError(part)
    return moment


def _uuid(part: object) -> UUID:
    return UUID(_text(part))


_READERS: dict[type[Any], Callable[[Any], Any]] = {int: _id, str: _text, datetime: _moment, UUID: _uuid}
