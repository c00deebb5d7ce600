"""A limit on the calls of one member to this process: so many at once, and so many a second in the long run.

Each process counts by itself: with several, a member can make that many calls to each. Sharing the count would add a round
trip to Redis to every call, and the limit is there so that one member cannot take a process for themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from bongsu.errors import RateLimited

# Members that are forgotten together, when nothing counts against them any more.
SWEEP = 10_000


class RateLimit:
    """A token bucket for each member (GCRA): of each only the time is kept at which their bucket is full again."""

    def __init__(
        self,
        rate: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        refusal: type[RateLimited] = RateLimited,
    ) -> None:
        """`refusal` is what it raises: it names the settings of this limit."""
        self._interval = 1 / rate
        # One call may always be made when the bucket is full.
        self._tolerance = (burst - 1) / rate
        self._clock = clock
        self._refusal = refusal
        self._full_at: dict[str, float] = {}
        self._sweep_at = SWEEP

    def count(self, member_id: str) -> None:
        """Raises RateLimited, which does not count."""
        now = self._clock()
        full_at = max(self._full_at.get(member_id, now), now)
        too_early = full_at - now - self._tolerance
        # Less than a nanosecond is rounding.
        if too_early > 1e-9:
            raise self._refusal("You call too often", math.ceil(too_early))
        self._full_at[member_id] = full_at + self._interval
        if len(self._full_at) >= self._sweep_at:
            self._full_at = {member: moment for member, moment in self._full_at.items() if moment > now}
            self._sweep_at = len(self._full_at) + SWEEP
