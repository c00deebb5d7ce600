"""The recovery job: gives retryable failures another round, settles abandoned claims, ends what has expired.

It changes a bounded number of rows per step, so that dispatchers hardly wait for it. If its process dies, another goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

from bongsu.clock.run import Run
from bongsu.errors import StoreError, StoreRolledBack, StoreUnreachable
from bongsu.model.channels import names_with_deliveries
from bongsu.model.job import Job
from bongsu.runtime import telemetry
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import DELIVERIES_TOPIC
from bongsu.store import Store
from bongsu.store.deliveries import ClaimContinuity
from bongsu.store.deliveries import recovery as statements

# Rows that one transaction changes. More would hold their locks for longer than dispatchers should wait.
BATCH = 1_000
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)

_log = telemetry.log("bongsu.recover")


# What the counts of a run are called in its result.
_WORDS = {
    "given": "given another round",
    "expired": "expired",
    "unknown": "unknown",
    "again": "sent again after a crash",
    "too_late": "too late for another round",
}


def describe(counts: Mapping[str, int], *, is_any_stale: bool) -> str:
    """What a run did."""
    done = [f"{counts[name]} {words}" for name, words in _WORDS.items() if counts.get(name)]
    return ", ".join(done + ["some wait for a dispatcher"] * is_any_stale) or "nothing to do"


class Recovery:
    """Any number may run at once: each skips rows that another has locked."""

    def __init__(
        self,
        store: Store,
        signals: Signals,
        batch: int = BATCH,
        new_continuity: Callable[[], ClaimContinuity] = lambda: ClaimContinuity(gap_seconds=3600, grace_seconds=0),
    ) -> None:
        """`new_continuity` gives each run what it needs to know before it takes a claim for abandoned."""
        self._store = store
        self._signals = signals
        self._batch = batch
        self._new_continuity = new_continuity

    def job(self, cron: str) -> Job:
        return Job(
            "recover",
            "Retries deliveries that failed for a while, settles those of crashed dispatchers, ends expired ones.",
            self.work,
            cron,
            # The next slot does the same work. If the last slot of the day was missed, nothing is retried at night.
            misfire_grace=timedelta(minutes=5),
        )

    async def work(self, run: Run) -> str:
        """The cursor is the last delivery that was given another round. The other parts leave nothing behind that they
        would find again, so they need none."""
        continuity = await self._begin_continuity()
        stale: set[bool] = set()
        failed = await self._run_parts(run, continuity, stale)
        if run.counts["given"] or run.counts["again"] or stale:
            self._signals.send(DELIVERIES_TOPIC)
        if failed is not None:
            raise failed
        return describe(run.counts, is_any_stale=bool(stale))

    async def settle(self, run: Run) -> None:
        """Only settle abandoned claims, as a part of another job."""
        await self._settle_abandoned(run, await self._begin_continuity())
        if run.counts["again"]:
            self._signals.send(DELIVERIES_TOPIC)

    async def _begin_continuity(self) -> ClaimContinuity:
        """If the store has just come back, leases have ended that live dispatchers are about to renew or to record."""
        continuity = self._new_continuity()
        for seconds in (continuity.grace_seconds, 0.0):
            async with self._store.transaction() as tx:
                await statements.settle_abandoned(tx, 0, continuity)
            await asyncio.sleep(seconds)
        return continuity

    async def _run_parts(self, run: Run, continuity: ClaimContinuity, stale: set[bool]) -> StoreError | None:
        """Each in an attempt of its own: where one is slow because much waits, the others are done all the same. The first
        error, if there is one: the run has failed, and the next does the rest."""
        parts = [partial(self._settle_abandoned, run, continuity), partial(self._give_rounds, run)]
        for channel in names_with_deliveries():
            for rank in statements.RANKS:
                parts += [partial(self._expire, run, channel, rank), partial(self._find_stale, stale, channel, rank)]
        failed = None
        for part in parts:
            try:
                await part()
            except (StoreUnreachable, StoreRolledBack):
                raise  # the run goes on from its cursor when the store is back
            except StoreError as error:
                _log.error("part of the recovery failed", part=part.func.__name__.strip("_"), error=str(error))
                failed = failed or error
        return failed

    async def _settle_abandoned(self, run: Run, continuity: ClaimContinuity) -> None:
        # After an outage in the middle of this run the next run settles the rest.
        is_more = continuity.with_abandoned
        while is_more:
            async with run.step() as step:
                settled = await statements.settle_abandoned(step, self._batch, continuity)
                unknown = sum(count for (_, status), count in settled.items() if status == "UNKNOWN")
                step.save(counts={"unknown": unknown, "again": settled.total() - unknown})
            for (channel, status), count in settled.items():
                if status == "UNKNOWN":
                    _count(channel, "UNKNOWN", "ABANDONED", count)
            is_more = settled.total() == self._batch

    async def _find_stale(self, stale: set[bool], channel: str, rank: int) -> None:
        async with self._store.read() as tx:
            if await statements.is_any_stale(tx, channel, rank):
                stale.add(True)

    async def _expire(self, run: Run, channel: str, rank: int) -> None:
        begin: datetime | None = _FIRST
        while begin is not None:
            async with run.step() as step:
                count, last = await statements.expire_stale(step, channel, rank, begin, self._batch)
                step.save(counts={"expired": count})
            _count(channel, "FAIL", "EXPIRED", count)
            begin = last if count == self._batch else None

    async def _give_rounds(self, run: Run) -> None:
        # In the order of ids: one that fails again meanwhile waits for the next run.
        is_more = True
        while is_more:
            async with run.step() as step:
                rounds = await statements.give_rounds(step, -1 if run.cursor is None else run.cursor, self._batch)
                is_more = rounds.last_id is not None
                if is_more:
                    step.save(cursor=rounds.last_id, counts={"given": rounds.given, "too_late": rounds.too_late})


def _count(channel: str, status: str, code: str, count: int) -> None:
    if count:
        telemetry.DELIVERIES.labels(channel, status, code).inc(count)
        _log.error("deliveries ended", status=status, channel=channel, code=code, count=count)
