"""What a job is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True)
class Job:
    """Something done on a schedule, by one process at a time."""

    name: str
    cron: str
    # One sentence for those who read the list.
    does: str
    # Answers in a few words what was done.
    run: Callable[[], Awaitable[str]]
    # How late a slot that nobody was there for is still worth running. Yesterday morning's news is not for tonight.
    good_for: timedelta = timedelta(hours=1)
