"""A circuit breaker: when a provider keeps failing, nothing is sent for a while, and then one send as a probe. Pure.

Closed, everything passes. After so many failures in a row it opens, and nothing passes. When its time is over it is half
open: one send passes as a probe. The probe's success closes it; its failure opens it again for twice as long, up to a limit.
"""

from __future__ import annotations

from enum import StrEnum

# How long others wait while a probe is out.
PROBE_ANSWER_SECONDS = 1.0


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Each call takes the time, in seconds of any clock that does not run backwards."""

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

    def wait(self, now: float) -> float:
        """The seconds until it is worth asking again; nothing if a send may pass now."""
        if self._until is None or now >= self._until:
            return 0.0
        wait = self._until - now
        # The probe is usually answered soon, and then all may go.
        return min(wait, PROBE_ANSWER_SECONDS) if self._is_probing else wait

    def ask(self, now: float) -> float:
        """As `wait`; if it returns nothing, this send passes, and its result has to be reported."""
        wait = self.wait(now)
        if self._until is not None and not wait:
            # This one is the probe. If its result is never reported, the next may go after this time.
            self._is_probing = True
            self._until = now + self._open_seconds
        return wait

    def succeeded(self) -> None:
        """The provider answered as it should. One answer is enough: it is up."""
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
            return False  # sent before it opened
        else:
            self._open_seconds = min(self._open_seconds * 2, self._most_seconds)
        self._is_probing = False
        self._until = now + self._open_seconds
        return True
