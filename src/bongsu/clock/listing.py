"""Which jobs there are, when each runs next and how its last run ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bongsu.clock.job import Job
from bongsu.clock.slots import next_slot
from bongsu.errors import NoSuchJob
from bongsu.settings import Settings
from bongsu.store import Store, job_runs
from bongsu.store.core.clock import find_now
from bongsu.store.job_runs import Run


def find_job(jobs: Sequence[Job], name: str) -> Job:
    """Raises NoSuchJob, which lists the names of all jobs."""
    for job in jobs:
        if job.name == name:
            return job
    raise NoSuchJob(f"There is no job {name[:100]!r}, there is {', '.join(job.name for job in jobs)}")


@dataclass(frozen=True)
class JobStatus:
    """A job with its next slot, None if its cron never matches, and its last run, None if it has not run yet."""

    job: Job
    next_at: datetime | None
    last_run: Run | None


async def list_jobs(settings: Settings, store: Store, jobs: Sequence[Job]) -> list[JobStatus]:
    async with store.read() as tx:
        now = await find_now(tx)
        return [
            JobStatus(job, next_slot(job.cron, settings.zone, now), await job_runs.find_last(tx, job.name)) for job in jobs
        ]
