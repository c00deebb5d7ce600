"""Wakes the dispatchers, in all processes, of the channels that a step has written deliveries for.

A signal that is lost costs a poll interval: dispatchers look for due deliveries by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from bongsu.decide.progress import Decision
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import DELIVERIES_TOPIC


class ChannelLoop(Protocol):
    """A dispatcher, as far as waking goes."""

    @property
    def channel(self) -> str: ...
    def wake(self) -> None: ...


class DispatcherWaker:
    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def decided(self, decision: Decision) -> None:
        """For the event worker, after each commit. Dispatchers of other channels are not woken: each would ask the store."""
        if decision.deliveries:
            self._signals.send(DELIVERIES_TOPIC, _encode(_channels_of(decision)))

    def waking(self, dispatcher: ChannelLoop) -> AbstractContextManager[None]:
        """While the block runs, signals wake this dispatcher."""
        return self._signals.listen(DELIVERIES_TOPIC, partial(_on_signal, dispatcher))


def _channels_of(decision: Decision) -> set[str]:
    """The channels that a step may have written deliveries for."""
    return {channel for event in decision.events for notice in event.notices for channel in notice.type.channels}


def _encode(channels: Iterable[str]) -> bytes:
    return ",".join(sorted(channels)).encode()


def _on_signal(dispatcher: ChannelLoop, data: bytes | None) -> None:
    # A signal that names no channel is for all of them.
    if not data or dispatcher.channel in data.decode().split(","):
        dispatcher.wake()
