"""Deliveries that were claimed and are not sent, because their content is no longer needed."""

from __future__ import annotations

from dataclasses import dataclass

# Why (codes.py).
WITHHELD = frozenset({"READ", "DELETED", "MUTED", "LEFT_ROOM"})


@dataclass(frozen=True)
class Withheld:
    """Why a delivery is no longer needed, and whether the results of its message are counted."""

    code: str
    is_bulk: bool
    detail: str | None = None
