"""Cursors: where a page ended, as a text that is opaque to callers, because what a page is ordered by is ours to change."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, TypeGuard

from pydantic_core import PydanticCustomError


def wrap(*parts: str | int) -> str:
    written = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(written).decode().rstrip("=")


def unwrap(cursor: str) -> list[Any]:
    """The parts it was made of; none when it was not made here. Whoever asks knows of what kind they must be."""
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4)))
        if isinstance(parts, list) and wrap(*parts) == cursor:
            return parts
    except (binascii.Error, ValueError, RecursionError):
        pass
    return []


def is_id(part: object) -> TypeGuard[int]:
    """Whether it is a number as the store gives them out. Python takes true for one."""
    return type(part) is int and 0 <= part < 2**63


def no_cursor() -> PydanticCustomError:
    return PydanticCustomError("cursor", "is no cursor: send what `next` said, or leave it out to begin with the newest")
