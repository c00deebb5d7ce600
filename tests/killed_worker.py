"""A worker process that dies by SIGKILL at a point chosen by its seed. For tests/test_killed_workers.py."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu import worker as module
from bongsu.fanout import Decision, FanOut, Work
from bongsu.model import EventStatus
from bongsu.settings import Settings
from bongsu.store import Store, decisions
from bongsu.store import events as statements
from bongsu.store.decisions import Step
from bongsu.store.dialect import Statement
from bongsu.store.events import Claimed
from bongsu.templates import Templates
from bongsu.worker import EventWorker
from tests.crowd import QUIET_DAY, rules

POINTS = ("after the claim", "after the hold, before the decision", "all written, not committed", "committed")
# Far fewer than an event is about, so that most take several steps and die between them.
CHUNK = 15


class Death:
    """Comes in the n-th step, at the given point."""

    def __init__(self, steps: int, point: str) -> None:
        self._steps = steps
        self._point = point

    def passes(self, point: str) -> None:
        self._steps -= point == POINTS[0]
        if self._steps <= 0 and point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalFanOut(FanOut):
    def __init__(self, settings: Settings, death: Death) -> None:
        super().__init__(Templates.load(), settings, CHUNK, lambda: QUIET_DAY)
        self._death = death

    async def decide(self, tx: AsyncConnection, works: Sequence[Work], message_ids: Sequence[int]) -> Decision:
        self._death.passes(POINTS[1])
        return await super().decide(tx, works, message_ids)


class Mortal(EventWorker):
    def __init__(self, store: Store, settings: Settings, death: Death) -> None:
        super().__init__(store, rules, settings, MortalFanOut(settings, death), lambda _decision: death.passes(POINTS[3]))
        self._death = death

    async def _finish(self, claimed: Sequence[Claimed]) -> int:
        if claimed:
            self._death.passes(POINTS[0])
        return await super()._finish(claimed)


def work(settings: Settings, seed: int, is_mortal: bool) -> None:
    """Work until nothing is pending, or until death."""
    asyncio.run(_work(settings, random.Random(seed), is_mortal))


async def _work(settings: Settings, dice: random.Random, is_mortal: bool) -> None:
    module.BATCH = 20
    # Every death here is ours, and no event's: however often one was there, it is not to be given up for that.
    statements.DEATHS_ALONE = 10**6
    store = Store.open(settings)
    death = Death(dice.randint(1, 12) if is_mortal else 10**9, dice.choice(POINTS))
    carry_out = decisions.carry_out

    async def carry_out_and_die(tx: AsyncConnection, step: Step | None, others: Sequence[Statement]) -> int:
        deliveries = await carry_out(tx, step, others)
        death.passes(POINTS[2])
        return deliveries

    decisions.carry_out = carry_out_and_die
    worker = Mortal(store, settings, death)
    await worker.start()
    while await _pending(store):
        worker.wake()
        await worker.idle.wait()
    await worker.stop()
    await store.close()


async def _pending(store: Store) -> int:
    async with store.read() as connection:
        return (await statements.count_unfinished(connection))[EventStatus.PENDING]
