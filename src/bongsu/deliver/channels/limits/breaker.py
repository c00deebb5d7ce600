"""A circuit breaker: when a provider keeps failing, nothing is sent for a while, and then one send as a probe. Pure.

Closed, everything passes. After so many failures in a row it opens, and nothing passes. When its time is over it is half
open: one send passes as a probe, a critical one if one waits. The probe's success closes it; its failure opens it again.
Each probe doubles the time until the next, up to a limit, whether it is answered or not: a provider that is well again may
never answer what it was sent before.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import StrEnum

# How long others wait at least while a probe is under way.
PROBE_ANSWER_SECONDS = 1.0
# How long others leave the probe to a critical send that was held. A held one comes back after a second at the earliest, and
# then waits to be claimed. Longer → others wait in vain where it was cancelled.
CRITICAL_LEAD_SECONDS = 2.0


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Each call takes the time, in seconds of any clock that does not run backwards. `key` identifies a send."""

    # The limit is how long a push may wait after its provider has recovered. Longer → fewer deliveries use up an attempt as
    # a probe during a long outage, and fewer are claimed in vain.
    def __init__(self, failures: int = 10, open_seconds: float = 1.0, most_open_seconds: float = 5.0) -> None:
        # In a row, because a provider that fails every third call is better retried than left alone.
        self._limit = failures
        self._first_seconds = open_seconds
        self._most_seconds = most_open_seconds
        self._failures = 0
        self._open_seconds = open_seconds
        self._until: float | None = None
        # The send that is the probe, and since when.
        self._probe: Hashable = None
        self._probed_at = 0.0
        self._is_critical_waiting = False

    def state(self, now: float) -> State:
        if self._until is None:
            return State.CLOSED
        return State.HALF_OPEN if self._probe is not None or now >= self._until else State.OPEN

    @property
    def is_closed(self) -> bool:
        return self._until is None

    def wait(self, now: float, *, is_critical: bool = False) -> float:
        """The seconds until it is worth asking again; nothing if a send may pass now."""
        if self._until is None:
            return 0.0
        lead = CRITICAL_LEAD_SECONDS if self._is_critical_waiting and not is_critical else 0.0
        wait = self._until + lead - now
        if wait <= 0:
            return 0.0
        self._is_critical_waiting |= is_critical
        if self._probe is None:
            return wait
        # The probe is usually answered soon, and then all may go. One that takes long may take twice as long.
        return min(wait, max(PROBE_ANSWER_SECONDS, now - self._probed_at))

    def ask(self, now: float, key: Hashable, *, is_critical: bool = False) -> float:
        """As `wait`; if it returns nothing, this send passes, and its result has to be reported."""
        wait = self.wait(now, is_critical=is_critical)
        if self._until is not None and not wait:
            # This one is the probe. If its result is not reported in this time, the next may go.
            self._probe, self._probed_at = key, now
            self._open_seconds = min(self._open_seconds * 2, self._most_seconds)
            self._until = now + self._open_seconds
            # Another passes only when no critical one came in its lead.
            self._is_critical_waiting = is_critical
        return wait

    def succeeded(self) -> None:
        """The provider answered as it should. One answer is enough: it is up."""
        self._failures = 0
        self._until = self._probe = None
        self._open_seconds = self._first_seconds
        self._is_critical_waiting = False

    def failed(self, now: float, key: Hashable) -> bool:
        """It did not. True when this failure opened the circuit."""
        self._failures += 1
        if self._until is None:
            if self._failures < self._limit:
                return False
        elif key != self._probe:
            return False  # sent before it opened, or replaced by a later probe
        self._probe = None
        self._until = now + self._open_seconds
        return True
