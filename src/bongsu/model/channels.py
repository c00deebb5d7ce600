"""The channels there are: everything that differs by channel, in one table. Only how a sender is built stands elsewhere, in
deliver/channels/registry.py, because it needs the senders.

The built-in channels stand here. Those that apps declare (`app.channel("ALIMTALK", …)`) are rows of the store, which gives
each its bit; `use_declared` puts them into this table at the start of a process, and again now and then.
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
    """The built-in channels. Where one of them may be named, the name of a channel that an app declares may stand too."""

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
    # A row of its own for each member and channel.
    OWN = "own"
    # No address and no delivery: the inbox row is what the member gets.
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    name: str
    # Sets of channels are stored as a sum of these, so that SQL can intersect them: a bit must never change.
    bit: int
    address: Address
    # The address in texts for operators: "has no phone".
    address_name: str
    # Slots: deliveries that a process may have claimed and not yet recorded. A provider that hangs takes no more than these.
    concurrency: int = 512
    # Its name in sentences for operators, and the setting without which it is simulated.
    label: str = ""
    setting: str = ""


# FCM lets a project send 10,000 a second and takes about 100 ms for each: a thousand are being sent, and half as many again
# are waiting to be recorded. E-mail and SMS have four slots for each connection or thread (8 of smtp.py, 16 of
# sms_apprise.py): while one is sent on it, others are claimed and recorded. More would only wait, and for as long as they
# are claimed no other process can send them.
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

_specs: dict[str, ChannelSpec] = {one.name: one for one in BUILT_IN}


def channels() -> tuple[ChannelSpec, ...]:
    """All channels that this process knows, in the order of their bits."""
    return tuple(_specs.values())


def names_with_deliveries() -> tuple[str, ...]:
    """The channels on which something is sent: all but the inbox."""
    return tuple(one.name for one in _specs.values() if one.address is not Address.NONE)


def channel_names() -> str:
    """For messages that say what there is."""
    return ", ".join(_specs)


def find_channel(name: str) -> ChannelSpec:
    spec = _specs.get(name)
    if spec is None:
        raise ValueError(f"there is no channel {name!r:.100}, there are {channel_names()}")
    return spec


def describe_channel(name: str) -> ChannelSpec:
    """For texts about what was sent on it: also of a channel that this process has not learnt of yet."""
    return _specs.get(name) or _own(name, bit=0)


def _own(name: str, bit: int) -> ChannelSpec:
    return ChannelSpec(name, bit, Address.OWN, f"{name} address", label=name)


def use_declared(bits: Mapping[str, int]) -> None:
    """Know the channels of apps by what the store has: the bit of each. Replaces those known before."""
    own = (_own(name, bit) for name, bit in sorted(bits.items(), key=lambda one: one[1]))
    specs = {one.name: one for one in (*BUILT_IN, *own)}
    if specs != _specs:
        _specs.clear()
        _specs.update(specs)


def to_bits(names: Iterable[str]) -> int:
    return sum(find_channel(name).bit for name in set(names))


def from_bits(bits: int) -> tuple[str, ...]:
    return tuple(one.name for one in _specs.values() if bits & one.bit)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """In the table's order, so that equal sets always read the same."""
    return from_bits(to_bits(names))


# --- fields that name a channel ---------------------------------------------------------------------------------------


def _known(name: str) -> str:
    """Says what there is as pydantic does for an enumeration."""
    if name not in _specs:
        *others, last = (f"'{one}'" for one in _specs)
        raise PydanticCustomError("enum", "Input should be {expected}", {"expected": f"{', '.join(others)} or {last}"})
    return name


def _with_addresses(name: str) -> str:
    own = [one.name for one in _specs.values() if one.address is Address.OWN]
    if name not in own:
        there_are = f"there are {', '.join(own)}" if own else "there is none"
        raise PydanticCustomError(
            "channel", "must be a channel that an app declares, and {there_are}", {"there_are": there_are}
        )
    return name


ChannelName = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema({"type": "string", "examples": [one.name for one in BUILT_IN], "description": "The name of a channel"}),
]
# Of a channel whose addresses are given by its name.
AddressedChannel = Annotated[str, AfterValidator(_with_addresses)]
