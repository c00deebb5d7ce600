"""A job: work that is run by one process at a time, on a schedule or on request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

# Takes the Run (clock/run.py, which the model does not know). Returns in a few words what was done.
Work = Callable[[Any], Awaitable[str | None]]


@dataclass(frozen=True)
class Job:
    """What is done, and when."""

    name: str
    # One sentence for the list of jobs.
    does: str
    # Called again with the same run where a process died or the store was away: it goes on from `run.cursor`.
    work: Work
    # Five fields, in the zone of BONGSU_TIMEZONE. None: it is run on request only, with an input, and not listed.
    cron: str | None = None
    # Whether the clock begins its slots. One that is not enabled is listed and can be run by hand.
    is_enabled: bool = True
    # A missed slot is made up for within this time, later it is skipped (misfire grace).
    misfire_grace: timedelta = timedelta(hours=1)
    # A run that takes longer, takeovers included, is ended with an error.
    at_most_for: timedelta = timedelta(hours=1)
    # Slots within this time after the start of a run are skipped.
    at_least_for: timedelta = timedelta(0)
