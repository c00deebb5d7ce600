"""Continuity of claims: since when the store has taken those of a dispatcher without a gap, by its own clock. Pure.

A lease that has ended does not prove that its owner is dead: the store may have been away, read-only or frozen, and the
owner is about to record or to renew. So every claim has a deadline (`begins_by`): if the store begins it later, it leases
nothing. That is the case for a claim that was on its way when the store stopped answering, whether or not its sender still
waits for it. After such a gap, abandoned deliveries are claimed only when the store has answered for a grace period again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

ALWAYS = datetime(9999, 1, 1, tzinfo=UTC)


class ClaimContinuity:
    """One for each dispatcher. Times are the store's."""

    def __init__(self, gap_seconds: float, grace_seconds: float) -> None:
        """With a gap of this length leases may have ended although their owners live; the grace is for those to return."""
        self.gap_seconds = gap_seconds
        self._gap = timedelta(seconds=gap_seconds)
        self.grace_seconds = grace_seconds
        self._grace = timedelta(seconds=grace_seconds)
        # The first claim since the last gap, and the last one.
        self._since: datetime | None = None
        self._last: datetime | None = None

    @property
    def begins_by(self) -> datetime:
        """A claim that the store begins later leases nothing."""
        return ALWAYS if self._last is None else self._last + self._gap

    @property
    def with_abandoned(self) -> bool:
        return self._last is not None and self._since is not None and self._last - self._since >= self._grace

    @property
    def had_gap(self) -> bool:
        """There was a gap before the last claim. If it was not the first, it has leased nothing."""
        return self._last is not None and self._last == self._since

    def answered(self, now: datetime) -> None:
        """The store began a claim at this time, and has committed it."""
        # A clock that was set back proves nothing about the time between.
        if self._last is None or not self._last <= now <= self._last + self._gap:
            self._since = now
        self._last = now
