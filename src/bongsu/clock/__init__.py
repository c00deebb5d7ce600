"""Scheduled jobs. Each slot of each job is run once, by the process that claims it first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bongsu.clock.job import Job
from bongsu.clock.jobs.recover import Recovery
from bongsu.clock.listing import find_job, list_jobs
from bongsu.clock.scheduler import Clock
from bongsu.deliver.dispatcher import contact_of
from bongsu.runtime.signals import Signals
from bongsu.settings import Settings
from bongsu.store import Store

__all__ = ["Clock", "Job", "build_jobs", "clock", "find_job", "list_jobs"]


def build_jobs(settings: Settings, store: Store, signals: Signals) -> tuple[Job, ...]:
    """All jobs, for the clock that schedules them and for requests that list or run them. Call it once per process."""
    return (Recovery(store, signals, make_contact=partial(contact_of, settings)).job(settings.recovery_cron),)


def clock(settings: Settings, store: Store, jobs: Sequence[Job]) -> Clock:
    """The clock of this process."""
    return Clock(store, jobs, settings.zone, settings.poll_seconds)
