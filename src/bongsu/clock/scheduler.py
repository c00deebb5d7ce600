"""The clock: runs each slot of each job once, however many processes have a clock, and goes on with abandoned runs.

There is no leader. A run is a row in the store: the process that inserts it works on it, the others skip it, and when its
lease ends any clock that knows the job takes it over. Which slot is due is decided by the store's time, so a process with a
wrong clock runs nothing early or late. Of the slots missed while no clock ran, only the newest of each job is made up for,
and only within the job's `misfire_grace`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from zoneinfo import ZoneInfo

from bongsu.clock.runs import Runs
from bongsu.clock.slots import count_slots, newest_slot, next_slot
from bongsu.errors import BongsuError
from bongsu.model.job import Job
from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop
from bongsu.settings import Settings
from bongsu.store import Store, runs
from bongsu.store.core.clock import find_now
from bongsu.store.runs import RunRow

# How long a running job gets when the process stops; orchestrators kill at 30 s. Another clock goes on with it.
DRAIN_SECONDS = 10
# A clock begins a slot within its poll interval. Later than this, the slot was missed.
ON_TIME = timedelta(minutes=1)
# Skipped slots are counted up to here: a job of every minute skips half a million a year.
SKIPPED_LIMIT = 1_000
# Abandoned runs with a subject that one clock works on at a time: what operators requested may be many.
TAKEN_LIMIT = 4
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)

_log = telemetry.log("bongsu.clock")


async def store_time(store: Store) -> datetime:
    async with store.read() as tx:
        return await find_now(tx)


def build_clock(settings: Settings, store: Store, jobs: Sequence[Job]) -> Clock:
    """The clock of this process."""
    return Clock(store, jobs, settings.zone, settings.poll_seconds, settings.lease_seconds)


@dataclass(frozen=True)
class DueSlot:
    """A slot to run now: whether it was missed, and how many before it were missed and are not made up for."""

    slot: datetime
    is_made_up: bool
    skipped: int


class Clock(Loop):
    """Start one in every process that has the role. `now` is the store's time unless a test gives another."""

    def __init__(
        self,
        store: Store,
        jobs: Sequence[Job],
        zone: ZoneInfo,
        poll_seconds: float = 1.0,
        lease_seconds: float = 60.0,
        now: Callable[[], Awaitable[datetime]] | None = None,
    ) -> None:
        super().__init__("clock", poll_seconds)
        self.jobs = {job.name: job for job in jobs}
        self._store = store
        self._runs = Runs(store, lease_seconds)
        self._zone = zone
        self._now = now or partial(store_time, store)
        # The time of the first tick: slots of a job that never ran count as missed only after it.
        self._began: datetime | None = None
        # The time of the last tick.
        self._ticked: datetime | None = None
        # The next slot of each job; those before it are claimed or finished, so the store is not read until then.
        self._next_slots: dict[str, datetime] = {}
        # By job and subject.
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def tick(self) -> int:
        """Start what is due, each in its own task, so that a slow or crashing job does not delay the others."""
        now = await self._now()
        if self._ticked is not None and now < self._ticked - ON_TIME:
            # The store's clock was ahead and has been set right: what was computed from it is wrong.
            self._began = None
            self._next_slots.clear()
        self._began, self._ticked = self._began or now, now
        await self._take_over_abandoned()
        for job in self.jobs.values():
            if job.cron is None or not job.is_enabled or (job.name, "") in self._running:
                continue
            due = await self._find_due_slot(job, job.cron, now, self._began)
            if due is not None:
                self._start(job, "", partial(self._run_slot, job, due))
        # Slots are minutes apart: there is nothing to do before the next poll.
        return 0

    async def wait_finished(self, *names: str) -> None:
        """Wait until none of these jobs is running here; without names, until no job is."""
        while tasks := [task for (name, _), task in self._running.items() if not names or name in names]:
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        await super().stop()
        tasks = list(self._running.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=DRAIN_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- what is due --------------------------------------------------------------------------------------------------

    async def _find_due_slot(self, job: Job, cron: str, now: datetime, began: datetime) -> DueSlot | None:
        """The slot to run now, if there is one that no process has run yet."""
        if now < self._next_slots.get(job.name, now):
            return None
        async with self._store.read() as tx:
            last = await runs.find_last(tx, job.name)
            if last is not None and last.finished_at is None:
                return None  # another process is at it: look again when it has finished
            if last is not None and last.scheduled_for > now + ON_TIME:
                # It ran while the store's clock was ahead. The slots until then are still to come.
                last = await runs.find_last(tx, job.name, now)
        self._next_slots[job.name] = next_slot(cron, self._zone, now) or _END_OF_TIME
        slot = newest_slot(cron, self._zone, now)
        # A run by hand counts for the slots before it.
        since = began if last is None else last.scheduled_for
        if slot is None or slot <= since or now - slot > max(job.misfire_grace, ON_TIME):
            return None
        if last is not None and job.at_least_for and slot - last.started_at < job.at_least_for:
            return None
        skipped = count_slots(cron, self._zone, since, slot, SKIPPED_LIMIT)
        return DueSlot(slot, now - slot > ON_TIME, skipped)

    async def _take_over_abandoned(self) -> None:
        for found in await self._runs.find_abandoned():
            job, key = self.jobs.get(found.job), (found.job, found.subject)
            if job is None or key in self._running or (found.subject and self._count_requested() >= TAKEN_LIMIT):
                continue
            if (taken := await self._runs.take_over(found)) is not None:
                self._start(job, found.subject, partial(self._go_on, job, taken))

    def _count_requested(self) -> int:
        return sum(bool(subject) for _, subject in self._running)

    # --- in a task ----------------------------------------------------------------------------------------------------

    def _start(self, job: Job, subject: str, work: Callable[[], Awaitable[None]]) -> None:
        self._running[job.name, subject] = asyncio.create_task(
            self._guard(job, subject, work), name=f"bongsu-job-{job.name}"
        )

    async def _guard(self, job: Job, subject: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except BongsuError as error:
            # Whether the slot was claimed is not known, so look again.
            _log.error("run not finished here", job=job.name, error=str(error))
            self._next_slots.pop(job.name, None)
        except Exception:
            _log.error("run not finished here", job=job.name, exc_info=True)
        finally:
            del self._running[job.name, subject]

    async def _run_slot(self, job: Job, due: DueSlot) -> None:
        if await self._runs.run_slot(job, due.slot, is_made_up=due.is_made_up, skipped=due.skipped) is None:
            # Another process was faster. Look again: if it runs another slot, this one may still be due afterwards.
            self._next_slots.pop(job.name, None)

    async def _go_on(self, job: Job, taken: RunRow) -> None:
        await self._runs.execute(job, taken)
