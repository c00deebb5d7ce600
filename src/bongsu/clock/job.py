"""What a job is."""

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
    # Returns in a few words what was done.
    run: Callable[[], Awaitable[str]]
    # How late a missed slot is still worth running.
    good_for: timedelta = timedelta(hours=1)
