"""What a sender is given and what it returns.

A sender never raises for what a provider answered or did not answer: that is an outcome, and the dispatcher decides by it.
An exception is a bug, and is treated as Unknown, because the message may have been sent before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from bongsu.model.member import Platform
from bongsu.model.notice import Priority


@dataclass(slots=True)
class Outgoing:
    """One delivery to be sent: the message and its address. Read it, do not change it."""

    delivery_id: int
    notification_id: int
    member_id: str
    # The device's token, the e-mail address or the phone number.
    address: str
    type: str
    title: str
    body: str
    ref_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    priority: Priority = Priority.NORMAL
    platform: Platform | None = None
    locale: str | None = None
    # The same on every attempt: 32 characters of base64url, so that what arrives twice is shown once.
    collapse_id: str = ""
    # It is not sent after this time.
    expires_at: datetime | None = None
    # Data for the app alone: it shows nothing by itself, the app decides what to do with it.
    is_silent: bool = False
    # Which attempt this is, the first being 1: waits that a provider leaves to us double with it.
    attempt: int = 1
    is_critical: bool = False
    # Its notice has more recipients than fit into one step of deciding.
    is_bulk: bool = False

    @property
    def is_urgent(self) -> bool:
        """Where a quota or connections are short. Not a critical notice to all members: it would leave nothing to others."""
        return self.is_critical and not self.is_bulk


class Scope(StrEnum):
    """What an answer is about: this delivery alone, all of its platform, or everything on the channel."""

    DELIVERY = "delivery"
    PLATFORM = "platform"
    CHANNEL = "channel"


@dataclass(frozen=True)
class Accepted:
    """The provider has accepted it. Whether it reached the member's screen cannot be known."""

    reference: str = ""
    # Nothing is configured for the channel: it was written to the log instead.
    is_simulated: bool = False


@dataclass(frozen=True)
class Retry:
    """Not accepted, and may be later; not before so many seconds have passed.

    With Scope.CHANNEL the provider asks the whole channel to wait. If nothing was sent (`is_held`), the channel cannot send
    at all now: it pauses, and a probe is sent soon, then less and less often.
    """

    code: str
    after_seconds: float = 0.0
    scope: Scope = Scope.DELIVERY
    detail: str = ""
    # Nothing was sent: the channel itself is waiting. Not an attempt, and none of the delivery's retries is used up.
    is_held: bool = False
    # The provider refused it, but is known to do so for messages it has delivered: a repeat may arrive twice.
    may_have_arrived: bool = False


@dataclass(frozen=True)
class Gone:
    """The address is dead. Nothing may be sent there again until it is registered again."""

    code: str
    detail: str = ""


@dataclass(frozen=True)
class Refused:
    """Not accepted, and never will be as it is. The address may be good."""

    code: str
    detail: str = ""


@dataclass(frozen=True)
class Misconfigured:
    """Our own credentials or settings are wrong. This delivery fails, and is tried again after an operator corrected them.

    The channel, or with Scope.PLATFORM the platform, pauses when most of the recent answers are such. Refused credentials
    (`is_for_all`) concern every message: the channel pauses at once.
    """

    code: str
    detail: str = ""
    scope: Scope = Scope.CHANNEL
    is_for_all: bool = False


@dataclass(frozen=True)
class Unknown:
    """It was sent and the answer was lost: it may have been accepted, or not."""

    code: str
    detail: str = ""


Outcome = Accepted | Retry | Gone | Refused | Misconfigured | Unknown


class Sender(Protocol):
    """Sends on one channel. `send` is called many times at once."""

    @property
    def channel(self) -> str:
        """The channel's name. A class attribute will do: `channel = "ALIMTALK"`."""

    async def send(self, outgoing: Outgoing) -> Outcome:
        """Send it, once. Retries are the dispatcher's."""
        ...

    async def close(self) -> None:
        """Close connections. May be called twice."""
        ...
