"""The words of Bongsu as values. Frozen, no I/O.

An `Event` is checked when it is made: what exists can be stored, on either database, and read back as it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from bongsu.model.channels import AddressedChannel, ChannelName
from bongsu.model.channels import Channel as Channel
from bongsu.model.payload import Payload, no_payload, storable

# A clock that is a day ahead is a clock that is wrong; a day covers every time zone mistake short of that.
FUTURE_SECONDS = 86_400
DAYS_TO_1970 = date(1970, 1, 1).toordinal()


class EventStatus(StrEnum):
    """PENDING until a worker has finished with it. Then DONE; or FAILED, with its error kept; or UNHANDLED, because no rule
    handles its type; or CANCELLED."""

    PENDING = "PENDING"
    DONE = "DONE"
    FAILED = "FAILED"
    UNHANDLED = "UNHANDLED"
    CANCELLED = "CANCELLED"


def new_id() -> UUID:
    """A version-7 UUID: time first, so that rows written together lie together in the index."""
    millis, fraction = divmod(time.time_ns(), 1_000_000)
    tail = int.from_bytes(os.urandom(8), "big")
    sub_millis = fraction * 4096 // 1_000_000
    return UUID(int=millis << 80 | 0x7 << 76 | sub_millis << 64 | 0x2 << 62 | tail >> 2)


def utc_now() -> datetime:
    return datetime.now(UTC)


def is_beyond_doubt(moment: datetime) -> bool:
    """Whether its date is after 1970 and no later than today's. Nearly all are; an exact look costs more than the rest."""
    return DAYS_TO_1970 + 1 < moment.toordinal() <= DAYS_TO_1970 + time.time() // 86_400


def _plausible(moment: datetime) -> datetime:
    if is_beyond_doubt(moment):
        return moment
    seconds = moment.timestamp()
    if seconds < 0:
        raise PydanticCustomError("too_early", "lies before 1970: send the moment it happened")
    if seconds > time.time() + FUTURE_SECONDS:
        raise PydanticCustomError("too_late", "lies more than a day in the future: check the sender's clock")
    return moment


# Control characters (NUL among them, which PostgreSQL refuses) have no place in a name or an id.
_PRINTABLE = r"^[^\x00-\x1f\x7f]+$"
NAME_LIMIT, ID_LIMIT = 200, 255
Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_LIMIT, pattern=_PRINTABLE)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=ID_LIMIT, pattern=_PRINTABLE)]


class Wire(BaseModel):
    """What comes and goes as JSON: camelCase, nothing unknown, nothing silently converted."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, alias_generator=to_camel, populate_by_name=True, hide_input_in_errors=True
    )


class Event(Wire):
    """A fact from the business: something happened. Its row is the outbox."""

    event_type: Name
    # Not strict, so that Python callers may hand over the text of a UUID; JSON has only text.
    event_id: Annotated[UUID, Field(strict=False)] = Field(default_factory=new_id)
    occurred_at: Annotated[AwareDatetime, AfterValidator(_plausible)] = Field(default_factory=utc_now)
    actor_id: Id | None = None
    target_id: Id | None = None
    ref_id: Id | None = None
    payload: Annotated[dict[str, Any], AfterValidator(storable)] = Field(default_factory=no_payload)

    @property
    def payload_text(self) -> str:
        assert isinstance(self.payload, Payload)
        return self.payload.text


class Priority(StrEnum):
    """HIGH goes before NORMAL before LOW, and none waits for ever."""

    HIGH = "HIGH"
    NORMAL = "NORMAL"
    LOW = "LOW"


class Guarantee(StrEnum):
    """What becomes of a delivery of which nobody knows whether it arrived: sent again, or held for an operator."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


class Reason(StrEnum):
    """Why a member of the audience got no notification."""

    USER_OPTED_OUT = "USER_OPTED_OUT"
    NO_ADDRESS = "NO_ADDRESS"
    DUPLICATE = "DUPLICATE"
    RATE_LIMITED = "RATE_LIMITED"


class Action(StrEnum):
    """What a member did with a product."""

    VIEW = "VIEW"
    CLICK = "CLICK"
    ADD_TO_CART = "ADD_TO_CART"
    PURCHASE = "PURCHASE"


@dataclass(frozen=True)
class Interested:
    """Who did one of these things with the product within so many days. Exact, however many they are."""

    product_id: str
    actions: frozenset[Action]
    days: int


@dataclass(frozen=True)
class Listed:
    """Exactly these members."""

    member_ids: tuple[str, ...]


@dataclass(frozen=True)
class Everyone:
    """All members there are."""


@dataclass(frozen=True)
class Selected:
    """Whoever a SELECT of the user's own finds: one column of member ids, parameters by name (`:name`)."""

    sql: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


Audience = Interested | Listed | Everyone | Selected


@dataclass(frozen=True)
class NoticeType:
    """A kind of notice and what holds for all of its kind."""

    name: str
    channels: tuple[str, ...]
    priority: Priority = Priority.NORMAL
    guarantee: Guarantee = Guarantee.AT_MOST_ONCE
    # Critical ones ignore caps, quiet hours and the global switch, and do not count towards the cap.
    is_critical: bool = False
    # None: as BONGSU_DUPLICATE_HOURS says.
    duplicate_hours: float | None = None
    # How long a push, an SMS or a mail about it is worth sending. None: for ever.
    expires_hours: float | None = None
    # To how many members a minute it is sent, at most; they have it in the inbox at once. None: as fast as channels take it.
    pace_per_minute: int | None = None


@dataclass(frozen=True)
class Notice:
    """What a rule wants said, to whom, and about what."""

    type: NoticeType
    audience: Audience
    # What it is about: a second notice of the same type and subject within the window is a duplicate.
    subject: str = ""
    ref_id: str | None = None
    # For the template, and handed on to the member's app.
    data: Mapping[str, Any] = field(default_factory=dict)
    # The product whose name the template may want.
    product_id: str | None = None
    # Said as they stand, in place of the type's template.
    title: str | None = None
    body: str | None = None


class Platform(StrEnum):
    """What a device runs."""

    ANDROID = "ANDROID"
    IOS = "IOS"
    WEB = "WEB"


class DeviceStatus(StrEnum):
    """INVALID when the provider has said that the token is gone; registering again revives it."""

    ACTIVE = "ACTIVE"
    INVALID = "INVALID"


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a folder, such as Asia
        raise PydanticCustomError("timezone", "must be a time zone such as Asia/Seoul or UTC") from None
    return name


Zone = Annotated[str, AfterValidator(_zone)]


class Member(Wire):
    """What is known of a member besides the id. What is left out is not known."""

    locale: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*$", max_length=35)] | None = None
    timezone: Zone | None = None
    email: Annotated[str, StringConstraints(pattern=r"^[^@\s\x00-\x1f]+@[^@\s\x00-\x1f]+$", max_length=320)] | None = None
    phone: Annotated[str, StringConstraints(pattern=r"^\+?[0-9][0-9 ()-]{2,30}$")] | None = None
    # For channels that apps declare, by their names.
    addresses: dict[
        AddressedChannel, Annotated[str, StringConstraints(min_length=1, max_length=320, pattern=_PRINTABLE)]
    ] = Field(default_factory=dict)


class Device(Wire):
    """A device that can be pushed to."""

    # FCM names no limit; its tokens are about 160 characters long, and a web push subscription is longer. An index of
    # PostgreSQL takes 2,700 bytes.
    token: Annotated[str, StringConstraints(min_length=1, max_length=2048, pattern=r"^[\x21-\x7e]+$")]
    platform: Platform
    push_consent: bool


class Behavior(Wire):
    """Something a member did with a product. Without `at` it happened when it is stored, by the store's clock."""

    user_id: Id
    product_id: Id
    action: Action
    at: Annotated[AwareDatetime, AfterValidator(_plausible)] | None = None


class Product(Wire):
    """What is said of a product in notifications."""

    name: Name
    price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    stock: Annotated[int, Field(ge=0, le=2**62)] | None = None


class TypePreference(Wire):
    """A member's wish for one type. Channels left out: those the type has."""

    enabled: bool = True
    channels: frozenset[ChannelName] | None = None


Minute = Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class QuietHours(Wire):
    """From start to end in the member's own time; past midnight when the end is the earlier of the two."""

    start: Minute
    end: Minute

    @model_validator(mode="after")
    def _lasts(self) -> QuietHours:
        if self.start == self.end:
            raise PydanticCustomError("no_length", "start and end are the same: use null for no quiet hours")
        return self


class Preferences(Wire):
    """What a member wants to hear of, and when. The default is everything, always."""

    enabled: bool = True
    types: Annotated[dict[Name, TypePreference], Field(max_length=200)] = Field(default_factory=dict)
    quiet_hours: QuietHours | None = None
