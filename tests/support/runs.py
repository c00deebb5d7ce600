"""Runs of jobs: begun as an operator would, or held without a heartbeat."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from bongsu.clock.jobs.recover import BATCH, Recovery
from bongsu.clock.run import Run
from bongsu.clock.runs import Runs
from bongsu.model.job import Job, Work
from bongsu.runtime.signals import LocalSignals, Signals
from bongsu.store import Store
from bongsu.store import runs as statements
from bongsu.store.core.query import same
from bongsu.store.runs import NewRun, RunRow
from tests.support.rows import set_columns

# Far longer than any test: leases that are to end are ended in the store.
LEASE_SECONDS = 600.0

_TYPES = same("SELECT event_type FROM bongsu_events ORDER BY event_type")


async def run_by_hand(store: Store, job: Job) -> RunRow:
    """The finished run. Raises what the job raised."""
    ended = await Runs(store, LEASE_SECONDS).run_by_hand(job, "cli:tester")
    if ended.raised is not None:
        raise ended.raised
    return ended.run


async def recover(store: Store, batch: int = BATCH, signals: Signals | None = None) -> str:
    """One run of the recovery job; what it says that it did."""
    run = await run_by_hand(store, Recovery(store, signals or LocalSignals(), batch).job("* * * * *"))
    assert run.result is not None
    return run.result


async def begin_run(store: Store, lease_seconds: float = LEASE_SECONDS, **columns: Any) -> Run:
    """A run that this process holds, without a heartbeat."""
    async with store.transaction() as tx:
        row = await statements.begin(tx, NewRun("job", "test"), "first:1", lease_seconds)
        assert row is not None
        if columns:
            await set_columns(tx, "runs", **columns)
    return Run(store, await saved_run(store), lease_seconds)


async def saved_run(store: Store) -> RunRow:
    """The run as it is in the store."""
    async with store.read() as tx:
        row = await statements.find_last(tx, "job")
    assert row is not None
    return row


async def end_lease(store: Store) -> None:
    await set_columns(store, "runs", due=timedelta(seconds=-1))


async def event_types(store: Store) -> list[str]:
    async with store.read() as tx:
        return [row["event_type"] for row in await tx.fetch(_TYPES())]


def make_job(work: Work, **more: Any) -> Job:
    return Job("job", "Works.", work, "* * * * *", **more)
