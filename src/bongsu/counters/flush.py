"""The flush: every few seconds, what was counted is applied to the values, and to the team's own tables.

Each batch is one transaction. Any number of processes may try; one at a time holds the lock and works. A target that fails
keeps the deltas of its counter in the log, where GET counts them, and no other counter waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bongsu.clock.runs import Runs
from bongsu.counters.pending import PendingSums
from bongsu.counters.recount import recount_job
from bongsu.errors import JobRunning, RunLost
from bongsu.runtime import telemetry
from bongsu.runtime.backoff import doubling
from bongsu.runtime.loop import Loop
from bongsu.runtime.redis import AWAY
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.counters.deltas import count_pending
from bongsu.store.counters.flush import Batch, Scope, find_keys, flush
from bongsu.store.counters.user_targets import Fault, Target, apply_target, fault_of, is_busy, read_target

# Deltas in one transaction: 100,000 counters are applied in about a second.
BATCH = 200_000
# Keys of a target in one transaction: its rows are locked until the commit, and the team's own statements wait for it.
TARGET_BATCH = 10_000
# How long a flush waits for Redis to answer whether the pending sums are complete.
REDIS_SECONDS = 1.0
# A target that fails is tried again after this, then after twice as long, up to the longest.
FIRST_HOLD_SECONDS, LONGEST_HOLD_SECONDS = 1.0, 60.0
# Keys that a target refuses are remembered up to so many; with more of them the whole counter waits.
MOST_HELD_KEYS = 1_000


@dataclass
class _Hold:
    """What is not tried again before that time (monotonic), after so many failures."""

    until: float = 0.0
    failures: int = 0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def lengthen(self) -> None:
        self.failures += 1
        self.until = time.monotonic() + doubling(FIRST_HOLD_SECONDS, self.failures, LONGEST_HOLD_SECONDS)


class Flusher(Loop):
    """Applies deltas. One in each process with the role worker."""

    def __init__(self, store: Store, settings: Settings, pending: PendingSums | None = None, *, batch: int = BATCH) -> None:
        super().__init__("counter-flush", settings.counter_flush_seconds)
        self._store = store
        self._settings = settings
        self._pending = pending
        self._batch = batch
        self._statements: Mapping[str, str] = settings.targets
        self._targets: dict[str, Target] = {}
        # Counters, and single keys of counters, whose targets have failed.
        self._held: dict[str, _Hold] = {}
        self._held_keys: dict[tuple[str, str], _Hold] = {}
        self._runs = Runs(store, settings.lease_seconds)
        self._recount = recount_job(settings, pending)

    async def tick(self) -> int:
        """One batch of the counters without a target, and one for each with a target."""
        if self._pending is not None:
            await self._recount_if_lost(self._pending)
        batch = await self._flush(Scope(other_than=sorted(self._statements)))
        is_more = batch is not None and batch.deltas >= self._batch
        for counter in self._statements:
            is_more |= await self._flush_target(counter)
        async with self._store.read() as tx:
            left = await count_pending(tx)
        telemetry.COUNTER_PENDING.set(left.deltas)
        telemetry.COUNTER_LAG.set(left.age)
        return int(is_more)

    async def _flush(self, scope: Scope, target: Target | None = None) -> Batch | None:
        """One transaction; its batch, if it had something to do."""
        began = time.perf_counter()
        with_applied = target is not None or self._pending is not None
        async with self._store.transaction() as tx:
            batch = await flush(tx, scope, self._batch, with_applied=with_applied)
            if batch is not None and target is not None:
                await apply_target(tx, target, batch.applied)
        if batch is not None:
            telemetry.COUNTER_FLUSHES.observe(time.perf_counter() - began)
            telemetry.COUNTER_KEYS.inc(batch.keys)
            if self._pending is not None:
                self._pending.take(batch.applied)
        return batch

    # --- targets ------------------------------------------------------------------------------------------------------

    async def _flush_target(self, counter: str) -> bool:
        """A batch of a counter with a target, unless it is held. Returns whether there is more to do."""
        if not self._held.get(counter, _Hold()).is_over:
            return False
        self._held_keys = {
            key: hold for key, hold in self._held_keys.items() if hold.failures and not self._is_outdated(hold)
        }
        async with self._store.read() as tx:
            found = await find_keys(tx, counter, TARGET_BATCH + len(self._held_keys))
        keys = [key for key in found if self._held_keys.get((counter, key), _Hold()).is_over]
        if not keys:
            return False
        try:
            if counter not in self._targets:
                self._targets[counter] = await read_target(self._store, counter, self._statements[counter])
            await self._flush_keys(self._targets[counter], keys)
        except Exception as error:
            if fault_of(error) is Fault.STORE and not is_busy(error):
                raise
            self._hold_counter(counter, error)
            return False
        self._held.pop(counter, None)
        return len(keys) >= TARGET_BATCH

    async def _flush_keys(self, target: Target, keys: Sequence[str]) -> None:
        """All in one transaction. If one of the keys is at fault, the halves apart, until it is alone and held."""
        try:
            await self._flush(Scope(counter=target.counter, keys=keys), target)
        except Exception as error:
            if fault_of(error) is not Fault.KEY or len(self._held_keys) >= MOST_HELD_KEYS:
                raise
            if len(keys) == 1:
                self._hold_key(target.counter, keys[0], error)
                return
            middle = len(keys) // 2
            await self._flush_keys(target, keys[:middle])
            await self._flush_keys(target, keys[middle:])
        else:
            for key in keys if self._held_keys else ():
                self._held_keys.pop((target.counter, key), None)

    def _hold_counter(self, counter: str, error: Exception) -> None:
        hold = self._held.setdefault(counter, _Hold())
        hold.lengthen()
        telemetry.COUNTER_TARGET_FAILURES.labels(counter).inc()
        self._log.error("counter target failed", counter=counter, error=str(error), failures=hold.failures)

    def _hold_key(self, counter: str, key: str, error: Exception) -> None:
        hold = self._held_keys.setdefault((counter, key), _Hold())
        hold.lengthen()
        telemetry.COUNTER_TARGET_FAILURES.labels(counter).inc()
        self._log.error("counter target refused a key", counter=counter, key=key, error=str(error), failures=hold.failures)

    @staticmethod
    def _is_outdated(hold: _Hold) -> bool:
        """Not tried again long after it was due: its deltas no longer exist."""
        return time.monotonic() > hold.until + 10 * LONGEST_HOLD_SECONDS

    # --- the pending sums in Redis ------------------------------------------------------------------------------------

    async def _recount_if_lost(self, pending: PendingSums) -> None:
        try:
            # Before the flush, which must not wait for a Redis that does not answer.
            async with asyncio.timeout(REDIS_SECONDS):
                if await pending.are_complete():
                    return
        except AWAY:
            return
        self._log.warning("pending sums lost in Redis, counting them again")
        try:
            await self._runs.run_by_hand(self._recount, "counter-flush")
        except (JobRunning, RunLost):
            return
