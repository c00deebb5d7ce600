"""Channels as they are stored: one bit each, so that a set of them is a number that SQL can intersect."""

from __future__ import annotations

from collections.abc import Iterable

from bongsu.model import Channel

# The order must never change: it is stored.
BITS = {Channel.PUSH: 1, Channel.SMS: 2, Channel.EMAIL: 4, Channel.IN_APP: 8}
ALL_BITS = sum(BITS.values())


def to_bits(channels: Iterable[Channel]) -> int:
    return sum(BITS[channel] for channel in set(channels))


def from_bits(bits: int) -> tuple[Channel, ...]:
    return tuple(channel for channel, bit in BITS.items() if bits & bit)
