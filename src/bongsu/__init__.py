"""Bongsu: an event goes in, the right people hear about it, once."""

from bongsu.ingress.transaction import Published, publish
from bongsu.model import (
    Action,
    Channel,
    Event,
    Everyone,
    Guarantee,
    Interested,
    Listed,
    Notice,
    NoticeType,
    Priority,
    Selected,
)
from bongsu.rules import App

__all__ = [
    "Action",
    "App",
    "Channel",
    "Event",
    "Everyone",
    "Guarantee",
    "Interested",
    "Listed",
    "Notice",
    "NoticeType",
    "Priority",
    "Published",
    "Selected",
    "publish",
]
