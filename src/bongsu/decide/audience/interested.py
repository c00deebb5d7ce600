"""Interested: the members who did something with a product lately. Most such audiences are small, so many are looked up
together."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from bongsu.decide.audience.recipients import Recipients, Remainder
from bongsu.model import Interested
from bongsu.store.core.query import Transaction
from bongsu.store.decisions import recipients
from bongsu.store.decisions.recipients import Interest

# Audiences that are looked up in one step, at most. With forty members each they fill a step.
MOST_TOGETHER = 128


class InterestedMembers:
    """Adapts how many audiences it looks up at once to how many fit into a step."""

    def __init__(self) -> None:
        self._together = MOST_TOGETHER

    async def add(self, tx: Transaction, found: Recipients, others: Sequence[Remainder], now: datetime) -> None:
        """The first of these audiences, and those that the same statement can look up."""
        first = others[0].audience
        assert isinstance(first, Interested)
        looked_up = _alike(others[0], first, others)[: self._together]
        interests = [
            Interest(remainder.notice_index, audience.product_id, now - timedelta(days=audience.days), remainder.after)
            for remainder in looked_up
            if isinstance(audience := remainder.audience, Interested)
        ]
        # One more than fits, to know which of them do.
        members = await recipients.find_interested(tx, interests, first.actions, found.remaining + 1)
        for remainder in looked_up:
            found.add(remainder.notice_index, members[remainder.notice_index])
        self._adapt([remainder.notice_index for remainder in looked_up], found)

    def _adapt(self, looked_up: Sequence[int], found: Recipients) -> None:
        """Half as many the next time if not all of them fitted, twice as many if they did."""
        if any(index not in found.members or index in found.unfinished for index in looked_up):
            self._together = max(1, len(looked_up) // 2)
        elif len(looked_up) == self._together:
            self._together = min(MOST_TOGETHER, self._together * 2)


def _alike(first: Remainder, interested: Interested, others: Sequence[Remainder]) -> list[Remainder]:
    """Those that one statement can look up: not begun yet, and about the same actions. One that proved large goes alone."""
    if first.after:
        return [first]
    return [
        other
        for other in others
        if not other.after and isinstance(other.audience, Interested) and other.audience.actions == interested.actions
    ]
