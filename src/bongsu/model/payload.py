"""An event's payload: JSON that both databases can store and later readers can read, numbers of any length included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson
from pydantic_core import PydanticCustomError

# Longer than any text for a push, a mail or a page; short enough for a log line.
STRING_LIMIT = 65_536
# SQLite's JSON functions stop at 1,000 levels and the HTTP parser at 200; business facts are not nested deeper than this.
DEPTH_LIMIT = 64

# Parsers build all values in one piece, and meanwhile nothing else runs in the process: 150,000 take some 50 ms, and the 4.5
# million numbers that fit into 10 MB took seconds. A notification to 100,000 listed members has two thirds of it.
VALUES_LIMIT = 150_000
TOO_MANY_VALUES = f"has more than {VALUES_LIMIT:,} values: send less in one piece"


def has_too_many_values(text: bytes) -> bool:
    """By its commas, those in texts included: counting takes a hundredth of the time that parsing takes."""
    return len(text) > VALUES_LIMIT and text.count(b",") >= VALUES_LIMIT


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), check_circular=False).encode
# What the exact encoder refuses must not be converted by the fast one.
_AS_IS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


def _values(value: Any, path: str, depth: int = 1) -> Iterator[tuple[str, str, int]]:
    """Every string in a JSON value, keys included, with its path and its depth."""
    match value:
        case str():
            yield path, value, depth
        case dict():
            yield path, "", depth
            for key, inner in value.items():
                if not isinstance(key, str):
                    raise PydanticCustomError("not_json", "{path} has a key that is not text", {"path": path})
                yield f"{path}.{key[:40]}", key, depth
                yield from _values(inner, f"{path}.{key[:40]}", depth + 1)
        case list() | tuple():
            yield path, "", depth
            for index, inner in enumerate(value):
                yield from _values(inner, f"{path}[{index}]", depth + 1)


def _check_strings(payload: dict[str, Any]) -> None:
    for path, text, depth in _values(payload, "payload"):
        if depth > DEPTH_LIMIT:
            raise PydanticCustomError("too_deep", "nests deeper than {limit} levels", {"limit": DEPTH_LIMIT})
        if "\x00" in text:
            raise PydanticCustomError("nul", "{path} contains a NUL character: remove it", {"path": path})
        if len(text) > STRING_LIMIT:
            raise PydanticCustomError(
                "too_long",
                "{path} is {length} characters long, the limit is {limit}",
                {"path": path, "length": len(text), "limit": STRING_LIMIT},
            )


class Payload(dict[str, Any]):
    """An event's details, and `text`: the JSON that was checked and is what the store keeps."""

    __slots__ = ("text",)
    text: str


def storable_text(text: str, limit: int) -> str:
    """A text from outside as both databases take it, without NUL and halves of surrogate pairs, and cut."""
    return text.replace("\0", "").encode(errors="replace").decode()[:limit]


def storable(payload: dict[str, Any]) -> Payload:
    """Refuse what a database cannot store or a later reader cannot parse.

    orjson writes null for NaN and stops at surrogates, large numbers and foreign types. So its text is used
    only when nothing in it can be a sign of that, or of a string that needs a check; else the exact encoder decides.
    """
    try:
        text = orjson.dumps(payload, option=_AS_IS)
    except TypeError:
        text = b"null"
    if (
        b"null" in text
        or b"\\u0000" in text
        or len(text) > STRING_LIMIT
        or text.count(b"{") + text.count(b"[") > DEPTH_LIMIT
    ):
        if has_too_many_values(text):
            raise PydanticCustomError("too_many", TOO_MANY_VALUES)
        text = _encode_exactly(payload)
        _check_strings(payload)
    checked = Payload(payload)
    checked.text = text.decode()
    return checked


def _encode_exactly(payload: dict[str, Any]) -> bytes:
    try:
        return _encode(payload).encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("surrogate", "contains a lone surrogate, which is not a character: remove it") from None
    except RecursionError:
        raise PydanticCustomError("too_deep", "nests deeper than {limit} levels", {"limit": DEPTH_LIMIT}) from None
    except ValueError:
        raise PydanticCustomError("not_finite", "contains NaN, an infinity or a number beyond all range") from None
    except TypeError as error:
        raise PydanticCustomError("not_json", "is not JSON: {why}", {"why": str(error)}) from None


# orjson makes a float of an integer that 64 bits do not hold. Found as a run of digits, with all digits mapped to zero: a
# quarter of the cost of a regular expression.
_DIGITS_ALONE = bytes(b"0"[0] if chr(byte) in "0123456789" else b" "[0] for byte in range(256))
_LONG_NUMBER = b"0" * 19


def read_payload(text: str) -> Payload:
    """Parse a stored payload. Raises ValueError if it is not one that `storable` would have written."""
    encoded = text.encode()
    is_long = _LONG_NUMBER in encoded.translate(_DIGITS_ALONE)
    payload = Payload(json.loads(text) if is_long else orjson.loads(encoded))
    payload.text = text
    return payload


def no_payload() -> Payload:
    empty = Payload()
    empty.text = "{}"
    return empty
