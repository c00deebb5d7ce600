"""The stale-tokens job: counts devices that were not registered again for long and, if asked to, removes them.

A token whose app is not opened any more is accepted by FCM for months and reaches no device. FCM advises to drop it after 30
to 60 days.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from bongsu.clock.run import Run
from bongsu.model.job import Job
from bongsu.settings import Settings
from bongsu.store.members import devices

# Devices that one transaction looks at, and removes if asked to.
BATCH = 1_000
CRON = "30 4 * * *"


def stale_tokens_job(settings: Settings, batch: int = BATCH) -> Job:
    does = f"Counts devices that were not registered again for {settings.stale_device_days} days"
    return Job(
        "stale-tokens",
        f"{does} and removes them." if settings.drop_stale_devices else f"{does}.",
        partial(_find_stale, settings, batch),
        CRON,
        misfire_grace=timedelta(hours=20),
    )


async def _find_stale(settings: Settings, batch: int, run: Run) -> str:
    """The cursor is the last device that was looked at; `True` at the end."""
    cutoff = run.scheduled_for - timedelta(days=settings.stale_device_days)
    while run.cursor is not True:
        async with run.step() as step:
            page = await devices.find_stale(step, run.cursor or ("", ""), cutoff, batch)
            dropped = await devices.remove_stale(step, page.stale, cutoff) if settings.drop_stale_devices else 0
            counts = {"stale": len(page.stale), "removed": dropped}
            step.save(cursor=page.last or True, counts=counts, done=page.looked_at)
    removed = f", {run.counts['removed']} removed" if settings.drop_stale_devices else ""
    return f"{run.counts['stale']} of {run.done} devices are stale{removed}"
