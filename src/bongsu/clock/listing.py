"""Which jobs there are, when each comes next and how it went last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bongsu.clock.jobs import Job
from bongsu.clock.recover import Recovery
from bongsu.clock.slots import next_slot
from bongsu.errors import NoSuchJob
from bongsu.model import utc_now
from bongsu.settings import Settings
from bongsu.signals import Signals
from bongsu.store import Store
from bongsu.store import jobs as statements
from bongsu.store.jobs import Run


def jobs(settings: Settings, store: Store, signals: Signals) -> tuple[Job, ...]:
    return (Recovery(store, signals).job(settings.recovery_cron),)


def find_job(among: Sequence[Job], name: str) -> Job:
    """Raises NoSuchJob, which names those there are."""
    for job in among:
        if job.name == name:
            return job
    raise NoSuchJob(f"There is no job {name[:100]!r}, there is {', '.join(job.name for job in among)}")


@dataclass(frozen=True)
class Listed:
    """A job with its next slot, if one will ever come, and its last run, if there was one."""

    job: Job
    next_at: datetime | None
    last: Run | None


async def list_jobs(settings: Settings, store: Store, among: Sequence[Job]) -> list[Listed]:
    now = utc_now()
    async with store.read() as connection:
        return [
            Listed(job, next_slot(job.cron, settings.zone, now), await statements.find_last(connection, job.name))
            for job in among
        ]
