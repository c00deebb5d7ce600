"""The recount: writes the pending sums to Redis again, after Redis has lost them.

What is pending is what the log has: the deltas that were counted since the last batch. However large the counters are, no
more than these rows is read.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from bongsu.clock.run import Run
from bongsu.counters.pending import PendingSums
from bongsu.errors import RedisUnreachable
from bongsu.model.job import Job
from bongsu.runtime import telemetry
from bongsu.runtime.redis import AWAY
from bongsu.settings import Settings
from bongsu.store.counters.deltas import find_pending
from bongsu.store.counters.flush import find_last_flush

# Counters in one step.
BATCH = 5_000
AT_MOST = timedelta(minutes=10)

_log = telemetry.log("bongsu.recount")


def recount_job(settings: Settings, pending: PendingSums | None = None, batch: int = BATCH) -> Job:
    """For the flush, which begins it, and for clocks, which go on with those of dead processes."""
    return Job(
        "recount",
        "Writes the pending sums of counters to Redis again.",
        partial(_recount, settings, pending, batch),
        at_most_for=AT_MOST,
    )


async def _recount(settings: Settings, pending: PendingSums | None, batch: int, run: Run) -> str:
    """The cursor is the last counter written."""
    if pending is None:
        if not settings.redis_url:
            return "Redis is not configured"
        pending = PendingSums(settings.redis_url, settings.counter_flush_seconds)
        try:
            return await _recount(settings, pending, batch, run)
        finally:
            await pending.stop()
    is_more = True
    while is_more:
        async with run.step() as step:
            since = await find_last_flush(step)
            sums = await find_pending(step, tuple(run.cursor or ("", "")), batch)
            try:
                await pending.write(sums)
            except AWAY as error:
                raise RedisUnreachable(str(error)) from error
            is_more = len(sums) == batch
            step.save(cursor=sums[-1][:2] if sums else run.cursor, counts={"counters": len(sums)}, done=len(sums))
    try:
        await pending.mark_complete()
    except AWAY as error:
        raise RedisUnreachable(str(error)) from error
    counted = run.counts["counters"]
    telemetry.COUNTER_RECOUNTS.inc()
    _log.info("pending sums counted again", counters=counted, since=None if since is None else since.isoformat())
    return f"{counted} counters, since {'the beginning' if since is None else f'{since:%Y-%m-%d %H:%M:%S %Z}'}"
