"""Jobs: which there are, when each runs next, how its runs went; run one now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from bongsu.clock import slots
from bongsu.clock.jobs import built_in_jobs
from bongsu.clock.run import Run
from bongsu.clock.runs import Runs
from bongsu.counters.recount import recount_job
from bongsu.desk.dead_letters import replay_job
from bongsu.desk.dead_sources import dead_letter_sources
from bongsu.desk.erase import erase_job
from bongsu.errors import BadApp, NoSuchJob
from bongsu.model.job import Job
from bongsu.runtime.signals import Signals
from bongsu.settings import Settings
from bongsu.store import Share, Store
from bongsu.store import runs as statements
from bongsu.store.core.clock import find_now
from bongsu.store.runs import RunRow

# How many runs of a job are shown.
SHOWN_RUNS = 10


def build_jobs(settings: Settings, store: Store, signals: Signals, own: Sequence[Job] = ()) -> tuple[Job, ...]:
    """All jobs of this process: built in, on request, and the user's own. Raises BadApp if a name is taken."""
    replay = replay_job(dead_letter_sources(settings, store, signals))
    jobs = (*built_in_jobs(settings, store, signals), replay, erase_job(signals), recount_job(settings))
    taken = {job.name for job in jobs}
    for job in own:
        if job.name in taken:
            raise BadApp(f"Job {job.name} is built in: give yours another name")
    return (*jobs, *own)


@dataclass(frozen=True)
class JobStatus:
    """A job with its next slot, None if it is not scheduled, and its last runs, newest first."""

    job: Job
    next_at: datetime | None
    runs: Sequence[RunRow]

    @property
    def schedule(self) -> str | None:
        """The cron text in words."""
        return None if self.job.cron is None else slots.explain(self.job.cron)

    @property
    def last_run(self) -> RunRow | None:
        return self.runs[0] if self.runs else None


class JobDesk:
    """What an operator sees of the jobs and does with them."""

    def __init__(self, settings: Settings, store: Store, jobs: Sequence[Job]) -> None:
        self._settings = settings
        self._store = store
        self._jobs = jobs
        # A job does the same work as by the clock, and waits as long for it.
        self._runs = Runs(store.share(Share.WORK), settings.lease_seconds)

    async def list(self) -> list[JobStatus]:
        """Those with a schedule, each with its last run."""
        return [await self._status(job, 1) for job in self._scheduled]

    async def show(self, name: str) -> JobStatus:
        """One with its last runs; also one that is run on request only. Raises NoSuchJob."""
        return await self._status(self._find(self._jobs, name), SHOWN_RUNS)

    async def run(self, name: str, requested_by: str, on_step: Callable[[Run], None] | None = None) -> RunRow:
        """Run a job that has a schedule now. Raises NoSuchJob, JobRunning and RunLost."""
        ended = await self._runs.run_by_hand(self._find(self._scheduled, name), requested_by, on_step=on_step)
        return ended.run

    async def _status(self, job: Job, limit: int) -> JobStatus:
        async with self._store.read() as tx:
            now = await find_now(tx)
            runs = await statements.find_newest(tx, job.name, limit)
        is_due = job.cron is not None and job.is_enabled
        return JobStatus(job, slots.next_slot(job.cron, self._settings.zone, now) if job.cron and is_due else None, runs)

    @property
    def _scheduled(self) -> Sequence[Job]:
        return [job for job in self._jobs if job.cron is not None]

    @staticmethod
    def _find(jobs: Sequence[Job], name: str) -> Job:
        for job in jobs:
            if job.name == name:
                return job
        raise NoSuchJob(f"There is no job {name[:100]!r}, there is {', '.join(job.name for job in jobs)}")
