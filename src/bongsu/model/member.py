"""Member: profile, devices and preferences, and what members do with products."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from bongsu.model.addresses import Email, Phone
from bongsu.model.audience import Action
from bongsu.model.base import PRINTABLE, Id, Name, PastTime, Wire, Zone
from bongsu.model.channels import AddressedChannel, ChannelName


class Platform(StrEnum):
    """The operating system or browser of a device."""

    ANDROID = "ANDROID"
    IOS = "IOS"
    WEB = "WEB"


class DeviceStatus(StrEnum):
    """INVALID after the provider reported that the token is not registered any more; registering the device again makes it
    ACTIVE."""

    ACTIVE = "ACTIVE"
    INVALID = "INVALID"


class Member(Wire):
    """A member's profile. A field that is left out is unknown."""

    locale: Annotated[str, StringConstraints(pattern=r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*$", max_length=35)] | None = None
    timezone: Zone | None = None
    email: Email | None = None
    phone: Phone | None = None
    # Addresses for channels that apps declare, by channel name.
    addresses: dict[AddressedChannel, Annotated[str, StringConstraints(min_length=1, max_length=320, pattern=PRINTABLE)]] = (
        Field(default_factory=dict, json_schema_extra={"propertyNames": {"format": "own-channel"}})
    )


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
    at: PastTime | None = None


class Product(Wire):
    """A product, as notifications name it."""

    name: Name
    price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    stock: Annotated[int, Field(ge=0, le=2**62)] | None = None


class TypePreference(Wire):
    """A member's preference for one notice type. Without channels: those of the type."""

    enabled: bool = True
    # A channel named twice is the same as once.
    channels: Annotated[frozenset[ChannelName], Field(json_schema_extra={"uniqueItems": False})] | None = None


Minute = Annotated[str, StringConstraints(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]


class QuietHours(Wire):
    """From start to end in the member's own time; they span midnight if the end is the earlier of the two."""

    start: Minute
    end: Minute

    @model_validator(mode="after")
    def _lasts(self) -> QuietHours:
        if self.start == self.end:
            raise PydanticCustomError("no_length", "start and end are the same: use null for no quiet hours")
        return self


class Preferences(Wire):
    """Which notifications a member wants, and when. The default is everything at any hour."""

    enabled: bool = True
    types: Annotated[dict[Name, TypePreference], Field(max_length=200)] = Field(
        default_factory=dict, json_schema_extra={"additionalProperties": False}
    )
    quiet_hours: QuietHours | None = None
