"""The lease of a loop's claims: after how long others may claim the same rows, and when to renew it. No I/O."""

from __future__ import annotations

import time


class Lease:
    """All claims of a loop have the same lease and are renewed together.

    After a third of it, so that one failed attempt and a slow step leave another attempt in time.
    """

    def __init__(self, seconds: float, busy_seconds: float = 0.0) -> None:
        """`busy_seconds` is how long the loop may be at work on a claim before it renews it. A lease is never shorter than
        twice that: if it ended meanwhile, another process would do the same work again."""
        self.seconds = max(seconds, 2 * busy_seconds)
        self._renewed_at = time.monotonic()

    @property
    def renewal_seconds(self) -> float:
        """How long after a renewal the next is due."""
        return self.seconds / 3

    def is_renewal_due(self, now: float) -> bool:
        """`now` is a time.monotonic()."""
        return now - self._renewed_at >= self.renewal_seconds

    def is_over(self, now: float) -> bool:
        """Whether others may have claimed the same rows by now. `now` is a time.monotonic()."""
        return now - self._renewed_at >= self.seconds

    def renewed(self, at: float) -> None:
        """`at` is from before the statement: the store may have begun it at once, and taken long over it."""
        self._renewed_at = at
