"""What a dispatcher claims next: by rank, a share for each, and critical deliveries into slots that are theirs alone.

A slot is a delivery that is claimed and not yet recorded.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial

from bongsu.errors import StoreError
from bongsu.runtime.process import process_name
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import ClaimContinuity, ClaimedDelivery
from bongsu.store.ranks import CRITICAL, CRITICAL_BULK, RANKS, SHARED_PART, SHARED_TURNS, slots_for

# Claim when this part of the slots is free, and as many; the dispatcher records when this part of them has results.
# Statements then are about many rows.
SHARE = 4
# How often one is claimed while the channel is held. Longer → a provider that has recovered is noticed later.
PROBE_SECONDS = 1.0


class Claimer:
    """Claims deliveries of one channel for one dispatcher."""

    def __init__(self, store: Store, channel: str, slots: int, poll_seconds: float, continuity: ClaimContinuity) -> None:
        self._store = store
        self._channel = channel
        self._slots = slots
        self._poll_seconds = poll_seconds
        self._continuity = continuity
        # Critical deliveries in the slots that are theirs alone. All others share the rest.
        self._in_own_slots: set[int] = set()
        self._turn = 0
        # Whether more may be due, and whether critical ones may be: at the start, when woken for it, and after a claim that
        # was full. Else the store is asked once in a poll interval, and not after every outcome.
        self._is_more_due = self._is_critical_due = True
        self._look_at = self._look_for_critical_at = self._probe_at = self._asked_at = 0.0

    def wake(self) -> None:
        """Deliveries may be due."""
        self._is_more_due = self._is_critical_due = True

    def free(self, delivery_ids: Iterable[int]) -> None:
        """These are recorded, or given back."""
        self._in_own_slots.difference_update(delivery_ids)

    async def claim(self, used: int, lease_seconds: float, *, is_held: bool = False) -> list[ClaimedDelivery] | None:
        """A part of the slots: many enough to make the statement cheap, few enough to send some while more are claimed.

        While there are too few free slots for that, critical deliveries are claimed into the slots that are theirs alone.
        Never into the others: these would never have enough free ones for a claim of any other rank.

        `used` is how many slots are. While the channel is held, one delivery at a time is claimed, which may go as its
        probe: all others would only be given back. None: the store was not asked.
        """
        now = time.monotonic()
        if is_held:
            claimed = await self._claim_probe(used, lease_seconds, now)
        else:
            claimed = await self._claim_free(used, lease_seconds, now)
        if claimed is None and now - self._asked_at >= self._continuity.gap_seconds / 3:
            # All slots have been in use for long: claim nothing, only to see that the store answers (`ClaimContinuity`).
            await self._claim_ranks((CRITICAL,), 0, lease_seconds)
        return claimed

    async def _claim_free(self, used: int, lease_seconds: float, now: float) -> list[ClaimedDelivery] | None:
        """A portion if so many of the shared slots are free, else critical deliveries into their own slots."""
        portion = max(1, self._slots // SHARE)
        shared = slots_for(RANKS[-1], self._slots)
        is_due = self._is_more_due or now >= self._look_at
        if is_due and shared - (used - len(self._in_own_slots)) >= portion:
            return await self._claim_in_turn(portion, lease_seconds, now)
        if self._is_critical_due or now >= self._look_for_critical_at:
            return await self._claim_critical(lease_seconds, now)
        return None

    async def _claim_probe(self, used: int, lease_seconds: float, now: float) -> list[ClaimedDelivery] | None:
        # When the channel is free again, the others may be due.
        self.wake()
        if now < self._probe_at or used >= self._slots:
            return None
        self._probe_at = now + min(self._poll_seconds, PROBE_SECONDS)
        return await self._claim_ranks(RANKS, 1, lease_seconds)

    async def _claim_in_turn(self, portion: int, lease_seconds: float, now: float) -> list[ClaimedDelivery]:
        """By rank; now and then a part of it is for a later rank first, so that none starves."""
        self._is_more_due = self._is_critical_due = False
        self._look_at = self._look_for_critical_at = now + self._poll_seconds
        first = SHARED_TURNS[self._turn % len(SHARED_TURNS)]
        claimed: list[ClaimedDelivery] = []
        if first is not None:
            claimed += await self._claim_ranks((first,), max(1, portion // SHARED_PART), lease_seconds)
        if len(claimed) < portion:
            try:
                claimed += await self._claim_ranks(RANKS, portion - len(claimed), lease_seconds)
            except StoreError:
                # What the first statement claimed is to be sent: it is committed.
                if not claimed:
                    raise
                self.wake()
        self._turn += bool(claimed)
        if len(claimed) == portion:
            self._is_more_due = self._is_critical_due = True
        return claimed

    async def _claim_critical(self, lease_seconds: float, now: float) -> list[ClaimedDelivery] | None:
        for_few, for_many = self._free_own_slots(CRITICAL), self._free_own_slots(CRITICAL_BULK)
        limit = for_many if for_many > 0 else for_few
        if limit <= 0:
            return None
        self._is_critical_due, self._look_for_critical_at = False, now + self._poll_seconds
        ranks = (CRITICAL, CRITICAL_BULK) if for_many > 0 else (CRITICAL,)
        claimed = await self._claim_ranks(ranks, limit, lease_seconds)
        self._is_critical_due |= len(claimed) == limit
        self._in_own_slots.update(delivery.delivery_id for delivery in claimed)
        return claimed

    def _free_own_slots(self, rank: int) -> int:
        own = slots_for(rank, self._slots) - slots_for(RANKS[-1], self._slots)
        return own - len(self._in_own_slots)

    async def _claim_ranks(self, ranks: Sequence[int], limit: int, lease_seconds: float) -> list[ClaimedDelivery]:
        self._asked_at = time.monotonic()
        worker, continuity = process_name(), self._continuity
        claim = partial(statements.claim, self._store, self._channel, ranks, limit, lease_seconds, worker, continuity)
        claimed = await claim()
        if not claimed and self._continuity.had_gap:
            # The store was away, and the claim that shows it has leased nothing.
            claimed = await claim()
        return claimed
