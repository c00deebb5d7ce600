"""Bongsu: an event goes in, and the right people are notified of it once."""

from bongsu.clock.run import Run
from bongsu.ingress.publish import Published, publish
from bongsu.model import (
    Action,
    Channel,
    Delta,
    Digest,
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
from bongsu.model.outcome import (
    Accepted,
    Gone,
    Misconfigured,
    Outcome,
    Outgoing,
    Refused,
    Retry,
    Scope,
    Sender,
    Unknown,
)
from bongsu.rules import App

__all__ = [
    "Accepted",
    "Action",
    "App",
    "Channel",
    "Delta",
    "Digest",
    "Event",
    "Everyone",
    "Gone",
    "Guarantee",
    "Interested",
    "Listed",
    "Misconfigured",
    "Notice",
    "NoticeType",
    "Outcome",
    "Outgoing",
    "Priority",
    "Published",
    "Refused",
    "Retry",
    "Run",
    "Scope",
    "Selected",
    "Sender",
    "Unknown",
    "publish",
]
