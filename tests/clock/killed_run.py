"""A process that works on a run until it is killed or stopped. For tests/clock/test_killed_runs.py."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from bongsu import Event, publish
from bongsu.clock.run import Run
from bongsu.clock.runs import Runs
from bongsu.errors import RunLost
from bongsu.model.job import Job
from bongsu.settings import Settings
from bongsu.store import Store

ITEMS = 20
# Where the process comes to its end, or to a halt.
MIDDLE = 10
LOST = 3  # the exit code of a process that learnt that it has lost its run
# Leases that are to end are ended in the store: nothing here depends on how fast things happen.
LEASE_SECONDS = 600.0


class Walker:
    """A job that publishes one event for each item, an item a step. `at` is called at named points of the middle one."""

    def __init__(self, at: Any = lambda _point: None) -> None:
        self._at = at

    @property
    def job(self) -> Job:
        return Job("walk", "Walks.", self.work, "0 0 1 1 *")

    async def work(self, run: Run) -> str:
        while (item := run.cursor or 0) < ITEMS:
            if item == MIDDLE:
                self._at("before a step")
            async with run.step() as step:
                # Its id is new each time: an item that is repeated is seen twice.
                await publish(step, Event(event_type=f"item.{item}"))
                step.save(cursor=item + 1, counts={"items": 1}, done=1, total=ITEMS)
                if item == MIDDLE:
                    self._at("in a step")
            if item == MIDDLE:
                self._at("after a step")
        return f"{run.counts['items']} items"


def _walk(settings: Settings, at: Any) -> None:
    async def work() -> int:
        store = Store.open(settings)
        try:
            await Runs(store, LEASE_SECONDS).run_by_hand(Walker(at).job, "cli:min-ji")
        except RunLost:
            return LOST
        finally:
            await store.close()
        return 0

    os._exit(asyncio.run(work()))


def walk_and_die(settings: Settings, point: str) -> None:
    """Killed by itself at that point, as by kill -9."""

    def die(here: str) -> None:
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    _walk(settings, die)


def walk_and_stop(settings: Settings) -> None:
    """Stopped by itself between two steps, until it is continued."""

    def stop(here: str) -> None:
        if here == "before a step":
            os.kill(os.getpid(), signal.SIGSTOP)

    _walk(settings, stop)
