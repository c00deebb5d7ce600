"""The sweep job: settles claims of dead dispatchers at any hour, removes rows of dead processes and unused quotas.

Connections in Redis end by themselves, and the dedup window is a column of messages, which go with their retention.
"""

from __future__ import annotations

from functools import partial

from bongsu.clock.jobs.recover import Recovery
from bongsu.clock.run import Run
from bongsu.model.job import Job
from bongsu.store.deliveries import quotas
from bongsu.store.desk import processes

CRON = "25 * * * *"
# A process writes its row every few seconds, and a bucket that was not drawn from for so long is full again.
UNUSED_SECONDS = 86_400.0


def sweep_job(recovery: Recovery) -> Job:
    return Job(
        "sweep",
        "Settles claims of crashed dispatchers, also at night; removes what dead processes left behind.",
        partial(_sweep, recovery),
        CRON,
    )


async def _sweep(recovery: Recovery, run: Run) -> str:
    await recovery.settle(run)
    async with run.step() as step:
        removed = {
            "processes": await processes.remove_unseen(step, UNUSED_SECONDS),
            "quotas": await quotas.remove_unused(step, UNUSED_SECONDS),
        }
        step.save(counts=removed)
    names = {"unknown": "unknown", "again": "sent again after a crash"} | {name: f"{name} removed" for name in removed}
    return ", ".join(f"{run.counts[name]} {words}" for name, words in names.items() if run.counts[name]) or "nothing to do"
