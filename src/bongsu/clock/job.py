"""A scheduled job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Job:
    """Work on a schedule, run by one process at a time."""

    name: str
    cron: str
    # One sentence for the list of jobs.
    does: str
    # Returns a short text about what was done.
    run: Callable[[], Awaitable[str]]
    # A missed slot is still run within this time (misfire grace).
    misfire_grace: timedelta = timedelta(hours=1)
