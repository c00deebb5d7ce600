"""What a channel is given and what it answers.

A channel never raises for what a provider said or did not say: that is an outcome, and the dispatcher decides by it. What
it raises is a bug, and is treated as Unknown, because nobody can tell how far it came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from bongsu.model import Channel, Platform, Priority


@dataclass(slots=True)
class Outgoing:
    """One delivery on its way out: what is said, to which address. To be read, not changed."""

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
    # The same on every try: 32 characters of base64url, so that what arrives twice is shown once.
    collapse_id: str = ""
    # After this moment it is worth nothing to the member.
    expires_at: datetime | None = None
    # Data for the app alone: it shows nothing by itself, the app decides what to do with it.
    is_silent: bool = False
    # All deliveries of one message say the same; 0 says nothing about that.
    message_id: int = 0
    # Which try this is, the first being 1: waits that a provider leaves to us double with it.
    attempt: int = 1


class Scope(StrEnum):
    """How far an answer reaches: this delivery alone, all of its platform, or everything on the channel."""

    DELIVERY = "delivery"
    PLATFORM = "platform"
    CHANNEL = "channel"


@dataclass(frozen=True)
class Accepted:
    """The provider has taken it on. That is not yet the member's screen, and all that can be known."""

    reference: str = ""
    # Nothing is configured for the channel: it was written to the log instead.
    is_simulated: bool = False


@dataclass(frozen=True)
class Retry:
    """Not taken on, and may be later; not before so many seconds have passed."""

    code: str
    after_seconds: float = 0.0
    scope: Scope = Scope.DELIVERY
    detail: str = ""
    # Nothing was sent: the channel itself is waiting. Not a try, and none of the delivery's retries is used up.
    is_held: bool = False
    # The provider said no, but is known to say so of what it has delivered: a repeat may be a second one.
    may_have_arrived: bool = False


@dataclass(frozen=True)
class Gone:
    """The address is dead. Nothing may be sent there again until it is registered anew."""

    code: str
    detail: str = ""


@dataclass(frozen=True)
class Refused:
    """Not taken on, and never will be as it stands. The address may be good."""

    code: str
    detail: str = ""


@dataclass(frozen=True)
class Misconfigured:
    """Our own credentials or settings are wrong: nothing goes out this way until somebody has mended them."""

    code: str
    detail: str = ""
    scope: Scope = Scope.CHANNEL


@dataclass(frozen=True)
class Unknown:
    """It was sent and the answer was lost: it may have been taken on, or not."""

    code: str
    detail: str = ""


Outcome = Accepted | Retry | Gone | Refused | Misconfigured | Unknown


class Sender(Protocol):
    """A channel's way out. `send` is called many times at once."""

    channel: Channel

    async def send(self, outgoing: Outgoing) -> Outcome:
        """Hand it over, once. Retries are the dispatcher's."""
        ...

    async def close(self) -> None:
        """Let go of connections. May be called twice."""
        ...


# Told what became of a send, once, whenever that is known; None when it is known that it was not taken on, and `send` is to
# try.
Land = Callable[[Outcome | None], None]


@runtime_checkable
class PromptSender(Sender, Protocol):
    """One that need not be waited for: a task for each of thousands of sends costs as much as the send."""

    def send_at_once(self, outgoing: Outgoing, land: Land) -> bool:
        """As `send`, if nothing has to be waited for before it goes out. False when something has to: nothing was done."""
        ...
