"""claim: claiming due events and recording their results, against the same two statements without us.

And flat: finished events in the table cost a claim nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from bench.bare import Bare, bare
from bench.ground import Ground
from bench.measure import Contest, Measure
from bench.sample import Sample
from bongsu.decide.worker import BATCH
from bongsu.model import EventStatus
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from bongsu.store.outbox import EventResult

TITLE = "claim and record"
SPEED_BUDGET = 0.5
FLAT_BUDGET = 1.20
BATCHES = 10
FINISHED = 1_000_000


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    for make in (ground.postgres, ground.sqlite):
        async with bare(await make()) as baseline, _queue(await make()) as ours:
            yield _against_bare(baseline, ours)
        async with _queue(await make()) as empty, _queue(await make()) as full:
            await full.behind.add_finished(FINISHED)
            yield _flat(empty, full)


@dataclass(frozen=True)
class _Queue:
    """Our store, and a bare connection to fill and clear its table."""

    behind: Bare
    store: Store

    async def drain(self) -> None:
        """One batch as the worker claims and records it, without the rules."""
        async with self.store.single() as tx:
            claimed = await outbox.claim(tx, BATCH, 60, "bench")
        results = [EventResult(one.event.event_id, one.epoch, EventStatus.DONE) for one in claimed]
        async with self.store.transaction() as tx:
            recorded = await outbox.record(tx, results)
        _check(len(recorded))


@contextlib.asynccontextmanager
async def _queue(settings: Settings) -> AsyncIterator[_Queue]:
    store = Store.open(settings)
    try:
        async with bare(settings) as behind:
            yield _Queue(behind, store)
    finally:
        await store.close()


def _against_bare(baseline: Bare, ours: _Queue) -> Contest:
    async def drain() -> None:
        _check(await baseline.drain(BATCH))

    async def prepare() -> None:
        await _fill(baseline)
        await _fill(ours.behind)

    return Contest(
        f"{baseline.name}, batches of {BATCH}",
        "the driver and two statements",
        "event",
        Measure.SPEED,
        drain,
        ours.drain,
        prepare,
        turns=BATCHES,
        units_a_turn=BATCH,
        budget=SPEED_BUDGET,
    )


def _flat(empty: _Queue, full: _Queue) -> Contest:
    async def prepare() -> None:
        await _fill(empty.behind)
        await _fill(full.behind)

    return Contest(
        f"{empty.behind.name}, {FINISHED:,} finished events in the table",
        "none in the table",
        "event",
        Measure.TIME,
        empty.drain,
        full.drain,
        prepare,
        turns=BATCHES,
        units_a_turn=BATCH,
        budget=FLAT_BUDGET,
    )


async def _fill(table: Bare) -> None:
    await table.clear()
    await table.load(table.rows(Sample.of(BATCH * BATCHES)), BATCH * BATCHES)


def _check(drained: int) -> None:
    assert drained == BATCH, f"{drained} events were drained, not {BATCH}: the sides did different work"
