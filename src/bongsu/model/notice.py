"""Notice: what a rule wants sent, and what holds for all notices of a type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from bongsu.model.audience import Audience

# The type of pushes about chat messages. Their text is made when they are sent.
CHAT_MESSAGE = "CHAT_MESSAGE"


class Priority(StrEnum):
    """The order of sending: HIGH before NORMAL before LOW. A low one is delayed, not starved."""

    HIGH = "HIGH"
    NORMAL = "NORMAL"
    LOW = "LOW"


class Guarantee(StrEnum):
    """What happens to a delivery whose outcome is unknown: it is sent again, or held for an operator."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


class Reason(StrEnum):
    """Why a member of the audience got no notification."""

    USER_OPTED_OUT = "USER_OPTED_OUT"
    NO_ADDRESS = "NO_ADDRESS"
    DUPLICATE = "DUPLICATE"
    RATE_LIMITED = "RATE_LIMITED"


@dataclass(frozen=True)
class Digest:
    """Notices of one key become one notification: updated in place while its window is open and it is unread, and pushed
    once, when the window ends."""

    # The length of the window. None: BONGSU_DIGEST_SECONDS. 0: no digest.
    seconds: float | None = None


@dataclass(frozen=True)
class NoticeType:
    """A kind of notice and what holds for all of its kind."""

    name: str
    channels: tuple[str, ...]
    priority: Priority = Priority.NORMAL
    guarantee: Guarantee = Guarantee.AT_MOST_ONCE
    # Critical ones ignore caps, quiet hours and the global switch, and do not count towards the cap.
    is_critical: bool = False
    # The dedup window. None: BONGSU_DUPLICATE_HOURS.
    duplicate_hours: float | None = None
    # A push, an SMS or a mail about it is not sent later than this. None: no limit.
    expires_hours: float | None = None
    # At most so many members a minute are sent it; their inboxes have it at once. None: as fast as the channels allow.
    pace_per_minute: int | None = None
    # None: each notice is a notification of its own.
    digest: Digest | None = None
    # Whether it counts towards the daily cap, and is not sent over it. What is critical does neither.
    is_capped: bool = True


@dataclass(frozen=True)
class Notice:
    """What a rule wants sent, to whom, and about what."""

    type: NoticeType
    audience: Audience
    # What it is about: a second notice of the same type and subject within the dedup window is a duplicate.
    subject: str = ""
    ref_id: str | None = None
    # What it is gathered by, if its type has a digest. None: its ref_id; without that it is a notification of its own.
    digest_key: str | None = None
    # For the template, and passed on to the member's app.
    data: Mapping[str, Any] = field(default_factory=dict)
    # The product whose name the template may use.
    product_id: str | None = None
    # Used as they are, instead of the type's template.
    title: str | None = None
    body: str | None = None
    # One of many that come at once: its deliveries rank as those of a campaign, however few members it is for.
    bulk: bool = False
    # A push, an SMS or a mail about it is not sent later than this. None: as the type has it.
    expires_at: datetime | None = None
