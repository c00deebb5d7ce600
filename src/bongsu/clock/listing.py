"""The jobs, when each runs next and how its last run ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from bongsu.clock.job import Job
from bongsu.clock.jobs.recover import Recovery
from bongsu.clock.slots import next_slot
from bongsu.deliver.dispatcher import contact_of
from bongsu.errors import NoSuchJob
from bongsu.runtime.signals import Signals
from bongsu.settings import Settings
from bongsu.store import Store, job_runs
from bongsu.store.core.clock import find_now
from bongsu.store.job_runs import Run


def jobs(settings: Settings, store: Store, signals: Signals) -> tuple[Job, ...]:
    return (Recovery(store, signals, make_contact=partial(contact_of, settings)).job(settings.recovery_cron),)


def find_job(among: Sequence[Job], name: str) -> Job:
    """Raises NoSuchJob, which names those there are."""
    for job in among:
        if job.name == name:
            return job
    raise NoSuchJob(f"There is no job {name[:100]!r}, there is {', '.join(job.name for job in among)}")


@dataclass(frozen=True)
class Listed:
    """A job with its next slot, unless its cron never comes, and its last run, if there was one."""

    job: Job
    next_at: datetime | None
    last: Run | None


async def list_jobs(settings: Settings, store: Store, among: Sequence[Job]) -> list[Listed]:
    async with store.read() as tx:
        now = await find_now(tx)
        return [
            Listed(job, next_slot(job.cron, settings.zone, now), await job_runs.find_last(tx, job.name)) for job in among
        ]
