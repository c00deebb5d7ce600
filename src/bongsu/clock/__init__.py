"""Scheduled jobs. Each slot of each job is run once, by the process that claims it first."""

from __future__ import annotations

from bongsu.clock.job import Job
from bongsu.clock.listing import find_job, jobs, list_jobs
from bongsu.clock.scheduler import Clock
from bongsu.runtime.signals import Signals
from bongsu.settings import Settings
from bongsu.store import Store

__all__ = ["Clock", "Job", "clock", "find_job", "jobs", "list_jobs"]


def clock(settings: Settings, store: Store, signals: Signals) -> Clock:
    """The clock of this process, with all jobs."""
    return Clock(store, jobs(settings, store, signals), settings.zone, settings.poll_seconds)
