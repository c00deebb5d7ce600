"""Evaluates the rules, as the worker does."""

from __future__ import annotations

from typing import Any

from bongsu.model import Event, Notice
from bongsu.rules import Rules, catalogue
from bongsu.settings import Settings


def notices_of(
    event_type: str, rules: Rules | None = None, payload: dict[str, Any] | None = None, **fields: Any
) -> list[Notice]:
    """What the rules give for such an event."""
    event = Event(event_type=event_type, payload=payload or {}, **fields)
    return (rules or catalogue(Settings())).detect(event)


def the_only(notices: list[Notice]) -> Notice:
    (notice,) = notices
    return notice
