"""Runs of jobs, begun as an operator would."""

from __future__ import annotations

from bongsu.clock.jobs.recover import BATCH, Recovery
from bongsu.clock.runs import Runs
from bongsu.model.job import Job
from bongsu.runtime.signals import LocalSignals, Signals
from bongsu.store import Store
from bongsu.store.runs import RunRow

# Far longer than any test: leases that are to end are ended in the store.
LEASE_SECONDS = 600.0


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
