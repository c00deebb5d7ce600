"""Signals: hints that there is work or news. Losing one costs time, never data, so sending never fails and never waits.

A listener is called with the signal's data, or with None if signals may have been missed, for example while Redis was
unreachable.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Protocol

from bongsu.runtime import telemetry

Listener = Callable[[bytes | None], None]
# Called with False when other processes become unreachable, and with True when they are reachable again.
Watcher = Callable[[bool], None]


class Signals(Protocol):
    """The interface of LocalSignals and RedisSignals. `start` and `stop` may be called twice, `stop` before `start`."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def send(self, topic: str, data: bytes = b"") -> None:
        """Call every listener of the topic, in every process, soon. Never raises, never blocks."""

    def listen(self, topic: str, listener: Listener) -> contextlib.AbstractContextManager[None]:
        """Call the listener for each signal while the context is open. A listener must be quick."""

    async def wait_subscribed(self, topic: str) -> bool:
        """Wait until listeners of the topic miss no more signals. False if other processes are unreachable."""

    @property
    def is_connected(self) -> bool:
        """Whether signals of other processes arrive, as far as is known."""

    def watch(self, watcher: Watcher) -> contextlib.AbstractContextManager[None]:
        """While the context is open, call the watcher when other processes become unreachable or reachable."""


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

    async def wait_subscribed(self, topic: str) -> bool:
        return True

    @property
    def is_connected(self) -> bool:
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

    def _notify_watchers(self, is_connected: bool) -> None:
        for watcher in tuple(self._watchers):
            try:
                watcher(is_connected)
            except Exception:
                self._log.exception("watcher crashed")
