"""The clock: runs each slot of each job once, however many processes have a clock.

There is no leader. A slot is a row in the store: the process that inserts it runs the job, the others skip it. Which slot is
due is decided by the store's time, so a process with a wrong clock runs nothing early or late. Of the slots missed while no
clock ran, only the newest of each job is run, and only within the job's `misfire_grace`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from zoneinfo import ZoneInfo

from bongsu.clock.job import Job
from bongsu.clock.slots import newest_slot, next_slot
from bongsu.errors import BongsuError
from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop
from bongsu.runtime.process import process_name
from bongsu.store import Store, job_runs
from bongsu.store.core.clock import find_now
from bongsu.store.job_runs import Run

# How long a running job gets when the process stops; orchestrators kill at 30 s. The next slot does the rest.
DRAIN_SECONDS = 10
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)

_log = telemetry.log("bongsu.clock")


async def store_time(store: Store) -> datetime:
    async with store.read() as tx:
        return await find_now(tx)


class Clock(Loop):
    """Start one in every process that has the role. `now` is the store's time unless a test gives another."""

    def __init__(
        self,
        store: Store,
        jobs: Sequence[Job],
        zone: ZoneInfo,
        poll_seconds: float = 1.0,
        now: Callable[[], Awaitable[datetime]] | None = None,
    ) -> None:
        super().__init__("clock", poll_seconds)
        self.jobs = tuple(jobs)
        self._store = store
        self._zone = zone
        self._now = now or partial(store_time, store)
        # The time of the first tick: slots of a job that never ran count as missed only after it.
        self._began: datetime | None = None
        # The next slot of each job; those before it are claimed or finished, so the store is not read until then.
        self._next_slots: dict[str, datetime] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def tick(self) -> int:
        """Start the jobs that are due, each in its own task, so that a slow or crashing one does not delay the others."""
        now = await self._now()
        self._began = self._began or now
        for job in self.jobs:
            if job.name not in self._running and (slot := await self._find_due_slot(job, now, self._began)) is not None:
                self._running[job.name] = asyncio.create_task(self._run_job(job, slot), name=f"bongsu-job-{job.name}")
        # Slots are minutes apart: there is nothing to do before the next poll.
        return 0

    async def wait_finished(self, *names: str) -> None:
        """Wait until none of these jobs is running here; without names, until no job is."""
        while tasks := [task for name, task in self._running.items() if not names or name in names]:
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        await super().stop()
        tasks = list(self._running.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=DRAIN_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _find_due_slot(self, job: Job, now: datetime, began: datetime) -> datetime | None:
        """The slot to run now, if there is one that no process has run yet."""
        if now < self._next_slots.get(job.name, now):
            return None
        slot = newest_slot(job.cron, self._zone, now)
        async with self._store.read() as tx:
            last = await job_runs.find_last(tx, job.name)
        self._next_slots[job.name] = next_slot(job.cron, self._zone, now) or _END_OF_TIME
        # A run by hand counts for the slots before it.
        since = began if last is None else last.slot
        return slot if slot is not None and slot > since and now - slot <= job.misfire_grace else None

    async def _run_job(self, job: Job, slot: datetime) -> None:
        try:
            await run_slot(self._store, job, slot)
        except BongsuError as error:
            # Whether the slot was claimed is not known, so look again.
            _log.error("job run not recorded", job=job.name, error=str(error))
            self._next_slots.pop(job.name, None)
        except Exception:
            _log.error("job run not recorded", job=job.name, exc_info=True)
        finally:
            del self._running[job.name]


async def run_slot(store: Store, job: Job, slot: datetime) -> Run | None:
    """Run a job for that slot, or return None if another process does or did. An exception of the job is its result."""
    async with store.single() as tx:
        if not await job_runs.claim(tx, job.name, slot, process_name()):
            return None
    result = error = None
    try:
        result = await job.run()
    except asyncio.CancelledError:
        await _finish(store, job, slot, None, "stopped with its process")
        raise
    except Exception as raised:
        error = str(raised) if isinstance(raised, BongsuError) else f"{type(raised).__name__}: {raised}"
        _log.error("job failed", job=job.name, error=error, exc_info=not isinstance(raised, BongsuError))
    else:
        _log.info("job finished", job=job.name, result=result)
    return await _finish(store, job, slot, result, error)


async def _finish(store: Store, job: Job, slot: datetime, result: str | None, error: str | None) -> Run:
    async with store.single() as tx:
        return await job_runs.finish(tx, job.name, slot, result, error)


async def run_by_hand(store: Store, job: Job) -> Run:
    """Run it now, under the same lock: the slot is the store's time at this moment, and no two runs share one."""
    while (run := await run_slot(store, job, await store_time(store))) is None:
        continue
    return run
