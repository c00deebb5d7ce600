"""Runs in this process: begin one or take one over, let its job work under a heartbeat, record how it ended.

A job works on through a short outage of the store: it is called again and goes on from the last saved step. After an outage
longer than the lease the run is lost to this process, and any clock goes on with it. An error of the job itself is how the
run ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from bongsu.clock.run import Heartbeat, Run
from bongsu.errors import (
    BongsuError,
    JobRunning,
    RunLost,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreTooSlow,
    StoreUnreachable,
)
from bongsu.model.job import Job
from bongsu.runtime import telemetry
from bongsu.runtime.backoff import doubling
from bongsu.runtime.loop import FIRST_BACKOFF, LAST_BACKOFF, running
from bongsu.runtime.process import process_name
from bongsu.store import Store
from bongsu.store import runs as statements
from bongsu.store.runs import NewRun, RunRow

# A run that was claimed so often without saving a step is taken to crash its processes.
MOST_CLAIMS = 5
# Attempts without a saved step while the store answers that rows are locked. An outage is waited for as long as the lease.
BUSY_ATTEMPTS = 5
# A stop waits no longer than this to end the lease: it ends by itself.
RELEASE_SECONDS = 2.0

CLOCK = "clock"

_log = telemetry.log("bongsu.runs")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Ended:
    """A run that this process has finished, and the job's own exception, if it ended with one."""

    run: RunRow
    raised: Exception | None = None


class Runs:
    """Any number of processes may have one: a run is held by one of them."""

    def __init__(self, store: Store, lease_seconds: float) -> None:
        self._store = store
        self._lease_seconds = lease_seconds
        self._owner = process_name()

    async def run_slot(self, job: Job, slot: datetime, *, is_made_up: bool = False, skipped: int = 0) -> Ended | None:
        """Run a job for that slot, or return None if another process does or did. Raises RunLost."""
        row = await self._begin(NewRun(job.name, CLOCK, slot=slot, is_made_up=is_made_up, skipped=skipped))
        return None if row is None else await self.execute(job, row)

    async def run_by_hand(
        self,
        job: Job,
        requested_by: str,
        *,
        input: Any = None,
        subject: str = "",
        on_step: Callable[[Run], None] | None = None,
    ) -> Ended:
        """Run it now, or go on with an abandoned run of it. Raises JobRunning, which names the owner, and RunLost."""
        new = NewRun(job.name, requested_by, subject, input=input)
        row = None
        while row is None:
            row = await self._begin(new) or await self._take_over_open(job, subject)
        return await self.execute(job, row, on_step)

    async def find_abandoned(self) -> list[RunRow]:
        async with self._store.read() as tx:
            return await statements.find_abandoned(tx)

    async def take_over(self, found: RunRow) -> RunRow | None:
        """Hold an abandoned run; None if its owner or another process was faster."""
        async with self._store.single() as tx:
            row = await statements.take_over(tx, found, self._owner, self._lease_seconds)
        if row is not None:
            _log.warning("took over an abandoned run", job=row.job, run_id=row.run_id, owner_before=found.leased_by)
        return row

    async def execute(self, job: Job, row: RunRow, on_step: Callable[[Run], None] | None = None) -> Ended:
        """Let the job work on a run that this process holds, and record how it ended. Raises RunLost."""
        run = Run(self._store, row, self._lease_seconds, on_step)
        working = asyncio.create_task(self._work_and_finish(job, run, row.claim_count))
        try:
            async with running(Heartbeat(run, self._lease_seconds, working.cancel)):
                left = max(0.0, job.at_most_for.total_seconds() - row.age_seconds)
                await asyncio.wait({working}, timeout=left)
                if not working.done():
                    await _cancelled(working)
                    if not working.cancelled():
                        return working.result()  # it has just ended
                    return await self._finish(job, run, TimeoutError(f"ended after {job.at_most_for}, its at_most_for"))
        except asyncio.CancelledError:
            await _cancelled(working)
            await self._release(run)
            raise
        if not working.cancelled():
            return working.result()
        if run.is_lost:
            raise RunLost(f"This process no longer holds run {run.run_id} of {job.name}")
        return await self._finish(job, run, RuntimeError("the job cancelled itself"))

    # --- begin --------------------------------------------------------------------------------------------------------

    async def _begin(self, new: NewRun) -> RunRow | None:
        async with self._store.single() as tx:
            return await statements.begin(tx, new, self._owner, self._lease_seconds)

    async def _take_over_open(self, job: Job, subject: str) -> RunRow | None:
        """The run that kept another from being begun, if it is abandoned; None if it has just been finished."""
        found = await self._find_open(job, subject)
        if found is not None and found.is_abandoned:
            if (taken := await self.take_over(found)) is not None:
                return taken
            # Another process was faster, or its owner lives and is in a step that takes longer than the lease.
            found = await self._find_open(job, subject)
        if found is None:
            return None
        raise JobRunning(f"{job.name} is run by {found.leased_by} since {found.started_at:%Y-%m-%d %H:%M:%S %Z}")

    async def _find_open(self, job: Job, subject: str) -> RunRow | None:
        async with self._store.read() as tx:
            return await statements.find_open(tx, job.name, subject)

    # --- work and end -------------------------------------------------------------------------------------------------

    async def _work_and_finish(self, job: Job, run: Run, claim_count: int) -> Ended:
        if claim_count > MOST_CLAIMS:
            crashes = f"given up: {claim_count - 1} processes in a row crashed while running it"
            return await self._finish(job, run, RuntimeError(crashes))

        async def work() -> str | None:
            # If the answer to the last commit did not arrive, only the store knows how far the run is.
            await run.renew()
            return await job.work(run)

        try:
            result = await _through_outages(run, work)
            # A user's job may return a number.
            text = "" if result is None else str(result)
        except (RunLost, StoreClosed):
            raise
        except Exception as raised:
            return await self._finish(job, run, raised)
        return await self._finish(job, run, None, text)

    async def _finish(self, job: Job, run: Run, raised: Exception | None, result: str | None = None) -> Ended:
        error = None if raised is None else describe_error(raised)
        row = await _through_outages(run, lambda: run.finish(result, error))
        if error is None:
            _log.info("job finished", job=job.name, run_id=run.run_id, result=result)
        else:
            _log.error(
                "job failed",
                job=job.name,
                run_id=run.run_id,
                error=error,
                exc_info=None if isinstance(raised, BongsuError) else raised,
            )
        return Ended(row, raised)

    async def _release(self, run: Run) -> None:
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await run.release()


def describe_error(raised: Exception) -> str:
    """In one line. Our own errors name their cure; those of a group are what is wrong."""
    if isinstance(raised, ExceptionGroup):
        return "; ".join(describe_error(error) for error in raised.exceptions)
    try:
        text = str(raised)
    except Exception:
        text = ""  # a user's own error that cannot be shown has still ended its run
    named = text if isinstance(raised, BongsuError) else f"{type(raised).__name__}: {text}"
    return " ".join(named.split())


async def _through_outages(run: Run, call: Callable[[], Awaitable[_T]]) -> _T:
    """Repeat it while the store is away, until the heartbeat finds the run lost and cancels this."""
    failures, steps = 0, run.steps
    while True:
        try:
            return await call()
        except (StoreClosed, StoreTooSlow):
            raise
        except (StoreUnreachable, StoreBusy) as error:
            failures = 1 if run.steps > steps else failures + 1
            steps = run.steps
            if isinstance(error, StoreBusy) and failures >= BUSY_ATTEMPTS:
                raise
            _log.warning("run waits for the store", job=run.job, run_id=run.run_id, error=str(error))
        await asyncio.sleep(doubling(FIRST_BACKOFF, failures, LAST_BACKOFF))


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
