"""Deliveries that were claimed and are not sent, because there is nothing to say any more."""

from __future__ import annotations

from dataclasses import dataclass

# Why (codes.py).
WITHHELD = frozenset({"READ", "DELETED", "MUTED", "LEFT_ROOM"})


@dataclass(frozen=True)
class Withheld:
    """Why there is nothing to say any more, and whether the results of its message are counted."""

    code: str
    is_bulk: bool
    detail: str | None = None
