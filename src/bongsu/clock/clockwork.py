"""The clock: runs each slot of each job once, however many processes have one.

There is no leader. A slot is a row in the store, and whoever inserts it runs it; the others find it there and pass on. Slots
that came while no clock ran are not made up, but for the newest of each job, and that only while it is good for something.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from bongsu import telemetry
from bongsu.clock.jobs import Job
from bongsu.clock.slots import newest_slot, next_slot
from bongsu.errors import BongsuError
from bongsu.loop import Loop
from bongsu.model import utc_now
from bongsu.store import Store
from bongsu.store import jobs as statements
from bongsu.store.jobs import Run

# A job under way when the process is told to stop gets this long; orchestrators kill at 30 s. What it has not done, the next
# slot does.
DRAIN_SECONDS = 10
_NEVER = datetime.max.replace(tzinfo=UTC)

_log = telemetry.log("bongsu.clock")


class Clock(Loop):
    """Start one in every process that has the role."""

    def __init__(
        self,
        store: Store,
        jobs: Sequence[Job],
        zone: ZoneInfo,
        poll_seconds: float = 1.0,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        super().__init__("clock", poll_seconds)
        self.jobs = tuple(jobs)
        self._store = store
        self._zone = zone
        self._now = now
        self._began = now()
        # The slot of each job that this process waits for, having seen to those before it.
        self._awaited: dict[str, datetime] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def tick(self) -> int:
        """Each job in a task of its own, so that one that takes long or crashes does not keep the others."""
        for job in self.jobs:
            if job.name not in self._running and (slot := await self._due(job)) is not None:
                self._running[job.name] = asyncio.create_task(self._run_job(job, slot), name=f"bongsu-job-{job.name}")
        # Nothing is gained by looking again at once: slots are minutes apart.
        return 0

    async def settled(self, *names: str) -> None:
        """Until none of these jobs is running here; of none named, none at all."""
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

    async def _due(self, job: Job) -> datetime | None:
        """The slot to run now, if there is one that nobody seems to have run."""
        now = self._now()
        if now < self._awaited.get(job.name, now):
            return None
        slot = newest_slot(job.cron, self._zone, now)
        async with self._store.read() as connection:
            last = await statements.find_last(connection, job.name)
        self._awaited[job.name] = next_slot(job.cron, self._zone, now) or _NEVER
        # Where the job has never run nothing was missed: it begins with us. A run by hand stands for the slots before it.
        since = self._began if last is None else last.slot
        return slot if slot is not None and slot > since and now - slot <= job.good_for else None

    async def _run_job(self, job: Job, slot: datetime) -> None:
        try:
            await run_slot(self._store, job, slot)
        except BongsuError as error:
            # Whether the slot was taken is not known; if not, it is looked at again.
            _log.error("a job could not be begun or ended", job=job.name, error=str(error))
            self._awaited.pop(job.name, None)
        except Exception:
            _log.error("a job could not be begun or ended", job=job.name, exc_info=True)
        finally:
            del self._running[job.name]


async def run_slot(store: Store, job: Job, slot: datetime) -> Run | None:
    """Run a job for that slot unless somebody else does or did. What it raises is its result, not ours."""
    async with store.write() as tx:
        if not await statements.take(tx, job.name, slot, f"{socket.gethostname()}:{os.getpid()}"):
            return None
    result = error = None
    try:
        result = await job.run()
    except asyncio.CancelledError:
        await _finish(store, job, slot, None, "stopped with its process")
        raise
    except Exception as raised:
        error = str(raised) if isinstance(raised, BongsuError) else f"{type(raised).__name__}: {raised}"
        _log.error("a job failed", job=job.name, error=error, exc_info=not isinstance(raised, BongsuError))
    else:
        _log.info("a job has run", job=job.name, result=result)
    return await _finish(store, job, slot, result, error)


async def _finish(store: Store, job: Job, slot: datetime, result: str | None, error: str | None) -> Run:
    async with store.write() as tx:
        return await statements.finish(tx, job.name, slot, result, error)


async def run_by_hand(store: Store, job: Job) -> Run:
    """Run it now, under the same lock: the slot is this very moment, and no two runs are of the same microsecond."""
    while (run := await run_slot(store, job, utc_now())) is None:
        continue
    return run
