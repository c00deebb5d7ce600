"""A circuit breaker: when a provider keeps failing, it is left alone for a while and then asked with one send. Pure.

Closed, everything passes. After so many failures in a row it opens, and nothing passes. When its time is over it is half
open: one send passes as a probe. The probe's success closes it; its failure opens it again for twice as long, up to a limit.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Told the time with each call, in seconds of any clock that does not run backwards."""

    def __init__(self, failures: int = 10, open_seconds: float = 10.0, most_open_seconds: float = 120.0) -> None:
        # In a row, because a provider that fails every third call is better retried than left alone.
        self._limit = failures
        self._first_seconds = open_seconds
        self._most_seconds = most_open_seconds
        self._failures = 0
        self._open_seconds = open_seconds
        self._until: float | None = None
        self._is_probing = False

    def state(self, now: float) -> State:
        if self._until is None:
            return State.CLOSED
        return State.HALF_OPEN if self._is_probing or now >= self._until else State.OPEN

    @property
    def is_closed(self) -> bool:
        return self._until is None

    def ask(self, now: float) -> float:
        """Nothing if a send may pass now, which then has to be told of; else the seconds until it is worth asking again."""
        if self._until is None:
            return 0.0
        if now < self._until:
            return self._until - now
        # This one is the probe. Should nobody ever tell how it went, the next may go when this time is over.
        self._is_probing = True
        self._until = now + self._open_seconds
        return 0.0

    def succeeded(self) -> None:
        """The provider answered as it should. One answer is enough: it lives."""
        self._failures = 0
        self._until = None
        self._is_probing = False
        self._open_seconds = self._first_seconds

    def failed(self, now: float) -> bool:
        """It did not. True when this failure opened the circuit."""
        self._failures += 1
        if self._until is None:
            if self._failures < self._limit:
                return False
        elif not self._is_probing:
            return False  # sent before it opened, and come back late
        else:
            self._open_seconds = min(self._open_seconds * 2, self._most_seconds)
        self._is_probing = False
        self._until = now + self._open_seconds
        return True
