"""The recovery job: gives retryable failures another round, settles abandoned claims, ends what has expired.

It changes a bounded number of rows per transaction, so that dispatchers hardly wait for it. If its process dies, the next
run does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from bongsu.clock.job import Job
from bongsu.errors import StoreError
from bongsu.model.channels import names_with_deliveries
from bongsu.runtime import telemetry
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import DELIVERIES_TOPIC
from bongsu.store import Store
from bongsu.store.deliveries import Contact
from bongsu.store.deliveries import recovery as statements

# Rows that one transaction changes. More would hold their locks for longer than dispatchers should wait.
BATCH = 1_000
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)

_log = telemetry.log("bongsu.recover")


@dataclass
class Tally:
    """What a run did."""

    given: int = 0
    too_late: int = 0
    expired: int = 0
    unknown: int = 0
    again: int = 0
    is_any_stale: bool = False

    def __str__(self) -> str:
        done = (
            (self.given, "given another round"),
            (self.expired, "expired"),
            (self.unknown, "unknown"),
            (self.again, "sent again after a crash"),
            (self.too_late, "too late for another round"),
        )
        waits = ["some wait for a dispatcher"] if self.is_any_stale else []
        return ", ".join([f"{count} {what}" for count, what in done if count] + waits) or "nothing to do"

    @property
    def is_work(self) -> bool:
        return bool(self.given or self.again or self.is_any_stale)


class Recovery:
    """Any number may run at once: each skips rows that another has locked."""

    def __init__(
        self,
        store: Store,
        signals: Signals,
        batch: int = BATCH,
        make_contact: Callable[[], Contact] = lambda: Contact(gap_seconds=3600, grace_seconds=0),
    ) -> None:
        """`make_contact` gives each run what it needs to know before it takes a claim for abandoned."""
        self._store = store
        self._signals = signals
        self._batch = batch
        self._make_contact = make_contact

    def job(self, cron: str) -> Job:
        return Job(
            "recover",
            cron,
            "Retries deliveries that failed for a while, settles those of crashed dispatchers, ends expired ones.",
            self.run,
            # The next slot does the same work. If the last slot of the day was missed, nothing is retried at night.
            misfire_grace=timedelta(minutes=5),
        )

    async def run(self) -> str:
        tally = Tally()
        contact = await self._begin_contact()
        failed = await self._run_parts(tally, contact)
        if tally.is_work:
            self._signals.send(DELIVERIES_TOPIC)
        if failed is not None:
            raise failed
        return str(tally)

    async def _begin_contact(self) -> Contact:
        """If the store has just come back, leases have ended that live dispatchers are about to renew or to record."""
        contact = self._make_contact()
        for seconds in (contact.grace_seconds, 0.0):
            async with self._store.transaction() as tx:
                await statements.settle_abandoned(tx, 0, contact)
            await asyncio.sleep(seconds)
        return contact

    async def _run_parts(self, tally: Tally, contact: Contact) -> StoreError | None:
        """Each in an attempt of its own: where one is slow because much waits, the others are done all the same. The first
        error, if there is one: the run has failed, and the next does the rest."""
        parts = [partial(self._settle_abandoned, tally, contact), partial(self._give_rounds, tally)]
        for channel in names_with_deliveries():
            for rank in statements.RANKS:
                parts += [partial(self._expire, tally, channel, rank), partial(self._find_stale, tally, channel, rank)]
        failed = None
        for part in parts:
            try:
                await part()
            except StoreError as error:
                _log.error("a part of the recovery failed", part=part.func.__name__.strip("_"), error=str(error))
                failed = failed or error
        return failed

    async def _settle_abandoned(self, tally: Tally, contact: Contact) -> None:
        # After an outage in the middle of this run the next run settles the rest.
        is_more = contact.with_abandoned
        while is_more:
            async with self._store.transaction() as tx:
                settled = await statements.settle_abandoned(tx, self._batch, contact)
            for (channel, status), count in settled.items():
                if status == "UNKNOWN":
                    tally.unknown += count
                    _count(channel, "UNKNOWN", "ABANDONED", count)
                else:
                    tally.again += count
            is_more = settled.total() == self._batch

    async def _find_stale(self, tally: Tally, channel: str, rank: int) -> None:
        async with self._store.read() as tx:
            tally.is_any_stale |= await statements.is_any_stale(tx, channel, rank)

    async def _expire(self, tally: Tally, channel: str, rank: int) -> None:
        begin: datetime | None = _FIRST
        while begin is not None:
            async with self._store.transaction() as tx:
                count, last = await statements.expire_stale(tx, channel, rank, begin, self._batch)
            tally.expired += count
            _count(channel, "FAIL", "EXPIRED", count)
            begin = last if count == self._batch else None

    async def _give_rounds(self, tally: Tally) -> None:
        # In the order of ids: one that fails again meanwhile waits for the next run.
        behind: int | None = -1
        while behind is not None:
            async with self._store.transaction() as tx:
                rounds = await statements.give_rounds(tx, behind, self._batch)
            tally.given += rounds.given
            tally.too_late += rounds.too_late
            behind = rounds.last_id


def _count(channel: str, status: str, code: str, count: int) -> None:
    if count:
        telemetry.DELIVERIES.labels(channel, status, code).inc(count)
        _log.error("deliveries ended", status=status, channel=channel, code=code, count=count)
