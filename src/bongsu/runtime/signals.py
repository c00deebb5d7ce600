"""Signals: hints that there is work or news. Losing one costs time, never data, so sending never fails and never waits.

A listener is called with the signal's data, or with None for "some may have been missed": after Redis was away, say.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Protocol

from bongsu.runtime import telemetry

Listener = Callable[[bytes | None], None]
# Told False when other processes are out of reach, and True when they are back.
Watcher = Callable[[bool], None]


class Signals(Protocol):
    """What both kinds promise. `start` and `stop` may be called twice, `stop` before `start`."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def send(self, topic: str, data: bytes = b"") -> None:
        """Tell every listener of the topic, in every process, soon. Never raises, never blocks."""

    def listen(self, topic: str, listener: Listener) -> contextlib.AbstractContextManager[None]:
        """Call the listener for each signal while the context is open. A listener must be quick."""

    async def heard(self, topic: str) -> bool:
        """Wait until listeners of the topic miss nothing more. False when other processes are out of reach."""

    @property
    def is_together(self) -> bool:
        """Whether other processes can be heard, as far as is known."""

    def watch(self, watcher: Watcher) -> contextlib.AbstractContextManager[None]:
        """Tell the watcher, while the context is open, when other processes get out of reach or are back."""


class LocalSignals:
    """Signals within one process: a listener is called in the sender's own step."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, list[Listener]] = defaultdict(list)
        self._watchers: list[Watcher] = []
        self._log = telemetry.log("bongsu.signals")

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def send(self, topic: str, data: bytes = b"") -> None:
        self._deliver(topic, data)

    @contextlib.contextmanager
    def listen(self, topic: str, listener: Listener) -> Iterator[None]:
        self._listeners[topic].append(listener)
        try:
            yield
        finally:
            self._listeners[topic].remove(listener)
            if not self._listeners[topic]:
                del self._listeners[topic]

    async def heard(self, topic: str) -> bool:
        return True

    @property
    def is_together(self) -> bool:
        return True

    @contextlib.contextmanager
    def watch(self, watcher: Watcher) -> Iterator[None]:
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def _deliver(self, topic: str, data: bytes | None) -> None:
        for listener in tuple(self._listeners.get(topic, ())):
            try:
                listener(data)
            except Exception:
                self._log.exception("listener crashed", topic=topic)

    def _tell_watchers(self, is_together: bool) -> None:
        for watcher in tuple(self._watchers):
            try:
                watcher(is_together)
            except Exception:
                self._log.exception("watcher crashed")
