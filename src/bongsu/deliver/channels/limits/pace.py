"""Pacing under a quota per minute: a token bucket whose flow grows over its first minute. Pure."""

from __future__ import annotations

import math

# How the quota is cut: this share may go at once, the rest flows evenly. Any minute then holds the quota and no more,
# wherever the provider lets its minute begin.
BURST_SHARE = 0.01
MINUTE = 60.0


class Pace:
    """Computes how long each send waits. It is given the time in seconds of any clock that does not run backwards."""

    def __init__(self, per_minute: int, *, ramp_seconds: float = MINUTE, first_share: float = 0.1) -> None:
        self._capacity = max(1.0, per_minute * BURST_SHARE)
        self._flow = (per_minute - self._capacity) / MINUTE
        self._ramp_seconds = ramp_seconds
        self._first_share = first_share
        self._began = 0.0
        self._last = 0.0
        # Below nothing, it is a queue: so many sends wait for their turn.
        self._tokens = self._capacity
        self._is_to_begin = True

    def reserve(self, now: float, *, is_first: bool = False) -> float:
        """Take the next turn; the seconds until it is this send's turn. One that is first has its turn now, and those who
        come after it wait for one more."""
        flow = self._refill(now)
        # After a minute without sends the ramp begins again: providers throttle a sudden burst.
        is_quiet = now - self._last > MINUTE and self._tokens >= 0
        if self._is_to_begin or is_quiet:
            flow = self._flow * self._share(0.0)
            self._tokens = min(self._tokens, self._capacity * self._share(0.0))
            self._began, self._is_to_begin = now, False
        self._last = now
        self._tokens -= 1
        return 0.0 if is_first else max(0.0, -self._tokens / flow)

    def take(self, now: float) -> bool:
        """Take a turn that is now, if there is one."""
        if self._is_to_begin or now - self._last > MINUTE:
            return False  # the ramp begins with `reserve`
        self._refill(now)
        self._last = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def give_back(self) -> None:
        """Return a turn that was not used."""
        self._tokens += 1

    @property
    def waiting(self) -> int:
        """Sends that had to wait when the last one came."""
        return max(0, math.ceil(-self._tokens))

    def restart(self) -> None:
        """The provider has reported its quota as exceeded: begin the ramp again."""
        self._is_to_begin = True

    def _refill(self, now: float) -> float:
        """What has flowed in since the last; how much flows in a second."""
        flow = self._flow * self._share(now - self._began)
        self._tokens = min(self._capacity, self._tokens + flow * (now - self._last))
        return flow

    def _share(self, seconds: float) -> float:
        if seconds >= self._ramp_seconds:
            return 1.0
        return self._first_share + (1 - self._first_share) * seconds / self._ramp_seconds
