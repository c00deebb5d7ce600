"""The table of channels: everything that differs by channel. Only how a sender is built is elsewhere, in
deliver/channels/registry.py, because it needs the senders.

The built-in channels are listed here. Those that apps declare (`app.channel("ALIMTALK", …)`) are rows of the store, which
gives each its bit; `use_declared` puts them into this table when a process starts, and refreshes them from time to time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticCustomError


class Channel(StrEnum):
    """The built-in channels. Wherever one is accepted, the name of a channel that an app declares is accepted too."""

    PUSH = "PUSH"
    SMS = "SMS"
    EMAIL = "EMAIL"
    IN_APP = "IN_APP"


class Address(StrEnum):
    """Where the addresses of a channel are stored. EMAIL and PHONE are columns of the member."""

    # One delivery for each device that may be pushed to.
    DEVICES = "devices"
    EMAIL = "email"
    PHONE = "phone"
    # One row for each member and channel.
    OWN = "own"
    # No address and no delivery: the notification is only in the inbox.
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    name: str
    # Sets of channels are stored as a sum of these, so that SQL can intersect them: a bit must never change.
    bit: int
    address: Address
    # What the address is called in texts for operators: "has no phone".
    address_name: str
    # Slots: deliveries that a process may have claimed and not yet recorded. A provider that hangs takes no more than these.
    concurrency: int = 512
    # The channel in texts for operators, and the setting without which it is simulated.
    label: str = ""
    setting: str = ""


# FCM lets a project send 10,000 a second and takes about 100 ms for each: a thousand are being sent, and half as many again
# are waiting to be recorded. E-mail and SMS by Apprise have four slots for each connection or thread (8 of smtp.py, 16 of
# apprise_sender.py): while one is sent on it, others are claimed and recorded. More would only wait, and for as long as they
# are claimed no other process can send them. SMS by an HTTP gateway has a connection for each slot.
BUILT_IN = (
    ChannelSpec(Channel.PUSH, 1, Address.DEVICES, "device", 1_536, label="push", setting="BONGSU_FCM_CREDENTIALS"),
    ChannelSpec(Channel.SMS, 2, Address.PHONE, "phone", 64, label="SMS", setting="BONGSU_SMS_URL"),
    ChannelSpec(Channel.EMAIL, 4, Address.EMAIL, "e-mail address", 32, label="e-mail", setting="BONGSU_SMTP_URL"),
    ChannelSpec(Channel.IN_APP, 8, Address.NONE, "address"),
)

# Channels of apps have the bits from this one on. A set of channels is stored in 32 bits, with a sign.
FIRST_OWN_BIT, MOST_OWN = 16, 26
# It becomes a key of JSON, a label of metrics and an option of the command line.
CHANNEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")

_specs: dict[str, ChannelSpec] = {spec.name: spec for spec in BUILT_IN}


def channels() -> tuple[ChannelSpec, ...]:
    """All channels known to this process, in the order of their bits."""
    return tuple(_specs.values())


def names_with_deliveries() -> tuple[str, ...]:
    """The channels that have deliveries: all but the inbox."""
    return tuple(spec.name for spec in _specs.values() if spec.address is not Address.NONE)


def channel_names() -> str:
    """All names, for error messages."""
    return ", ".join(_specs)


def find_channel(name: str) -> ChannelSpec:
    spec = _specs.get(name)
    if spec is None:
        raise ValueError(f"there is no channel {name!r:.100}, there are {channel_names()}")
    return spec


def describe_channel(name: str) -> ChannelSpec:
    """For texts about past deliveries: also works for a channel that this process has not loaded yet."""
    return _specs.get(name) or _own(name, bit=0)


def _own(name: str, bit: int) -> ChannelSpec:
    return ChannelSpec(name, bit, Address.OWN, f"{name} address", label=name)


def use_declared(bits: Mapping[str, int]) -> None:
    """Replace the channels of apps in the table by those of the store, given with their bits."""
    own = (_own(name, bit) for name, bit in sorted(bits.items(), key=lambda item: item[1]))
    specs = {spec.name: spec for spec in (*BUILT_IN, *own)}
    if specs != _specs:
        _specs.clear()
        _specs.update(specs)


def to_bits(names: Iterable[str]) -> int:
    return sum(find_channel(name).bit for name in set(names))


def from_bits(bits: int) -> tuple[str, ...]:
    return tuple(spec.name for spec in _specs.values() if bits & spec.bit)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """In the table's order, so that equal sets always read the same."""
    return from_bits(to_bits(names))


# --- fields that name a channel ---------------------------------------------------------------------------------------


def _known(name: str) -> str:
    """Lists the choices as pydantic does for an enumeration."""
    if name not in _specs:
        *others, last = (f"'{known}'" for known in _specs)
        raise PydanticCustomError("enum", "Input should be {expected}", {"expected": f"{', '.join(others)} or {last}"})
    return name


def _with_addresses(name: str) -> str:
    own = [spec.name for spec in _specs.values() if spec.address is Address.OWN]
    if name not in own:
        there_are = f"there are {', '.join(own)}" if own else "there is none"
        raise PydanticCustomError(
            "channel", "must be a channel that an app declares, and {there_are}", {"there_are": there_are}
        )
    return name


ChannelName = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema(
        {
            "type": "string",
            "format": "channel",
            "examples": [spec.name for spec in BUILT_IN],
            "description": "The name of a channel",
        }
    ),
]
# The name of a channel whose addresses are rows of bongsu_addresses.
AddressedChannel = Annotated[str, AfterValidator(_with_addresses)]
