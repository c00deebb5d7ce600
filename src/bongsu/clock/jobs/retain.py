"""The retention job: deletes what is older than it is kept, in small steps, and pauses as long after each as it took.

If its process dies, another goes on from the saved cursor, by the same times: they are counted from the run's slot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from bongsu.clock.run import Run
from bongsu.model.job import Job
from bongsu.settings import Settings
from bongsu.store import Transaction
from bongsu.store import retention as statements
from bongsu.store.chat.removal import delete_empty_rooms, delete_old_messages
from bongsu.store.counters.retention import delete_batches, delete_items
from bongsu.store.retention import Deleted

# Rows that one transaction looks at and deletes: tens of milliseconds, for which others wait on SQLite.
BATCH = 500
# The first run of an installation that has kept everything for years takes hours; the next one goes on.
AT_MOST = timedelta(hours=6)

# The statements of one kind, which delete a batch behind the cursor.
Part = Callable[[Transaction, Any], Awaitable[Deleted]]


def retain_job(settings: Settings, batch: int = BATCH) -> Job:
    return Job(
        "retain",
        "Deletes what is older than it is kept: notifications, deliveries, events, suppressions, runs, counts, rooms.",
        partial(_retain, settings, batch),
        settings.retention_cron,
        # A machine that is off at night does it when it is on.
        misfire_grace=timedelta(hours=20),
        at_most_for=AT_MOST,
    )


async def _retain(settings: Settings, batch: int, run: Run) -> str:
    """The cursor is the part under way and its own cursor."""
    parts = _parts(settings, run, batch)
    names = list(parts)
    first, after = run.cursor or (names[0], None)
    for name in names[names.index(first) :]:
        is_more = True
        while is_more:
            began = time.monotonic()
            async with run.step() as step:
                deleted = await parts[name](step, after)
                step.save(cursor=[name, deleted.after], counts=deleted.counts, done=deleted.counts.total())
            after, is_more = deleted.after, deleted.after is not None
            # Half of the time is left to others, on SQLite above all, which has one writer.
            await asyncio.sleep(time.monotonic() - began if is_more else 0)
    return describe(run.counts)


def _parts(settings: Settings, run: Run, batch: int) -> Mapping[str, Part]:
    """In this order: an event is deleted after what belongs to it."""
    kept = settings.retention

    def before(days: int) -> Any:
        return run.scheduled_for - timedelta(days=days)

    return {
        "notifications": lambda tx, after: statements.delete_notifications(tx, after, before(kept.notifications), batch),
        "suppressions": lambda tx, after: statements.delete_suppressions(tx, after, before(kept.suppressions), batch),
        "deliveries": lambda tx, after: statements.delete_deliveries(tx, after, before(kept.deliveries), batch),
        "events": lambda tx, after: statements.delete_events(tx, after, before(kept.events), batch),
        "runs": lambda tx, after: statements.delete_runs(tx, after, before(kept.runs), before(kept.audit), batch),
        "cancellations": lambda tx, _after: statements.delete_cancellations(tx, before(kept.audit), batch),
        "counted items": lambda tx, _after: delete_items(tx, before(kept.events), batch),
        "count batches": lambda tx, _after: delete_batches(tx, before(kept.runs), batch),
        "chat": lambda tx, after: delete_old_messages(tx, after, before(kept.chat), batch) if kept.chat else _nothing(),
        # No member can read them. As long as notifications, so that a member removed by mistake can be added again.
        "rooms": lambda tx, after: delete_empty_rooms(tx, after, before(kept.notifications), batch),
    }


async def _nothing() -> Deleted:
    """For what is kept for ever."""
    return Deleted(None)


def describe(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "nothing to do"
