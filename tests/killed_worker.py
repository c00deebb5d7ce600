"""A worker process that dies by SIGKILL at a point chosen by its seed. For tests/test_killed_workers.py."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterable, Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu import worker as module
from bongsu.model import Event, EventStatus, Everyone, Notice, NoticeType
from bongsu.rules import Rules
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import events as statements
from bongsu.store.events import Claimed
from bongsu.worker import EventWorker

POINTS = ("after the claim", "after the record, before the decision", "after the decision, before the commit", "committed")

rules = Rules()


@rules.rule("test.effect")
def effect(_event: Event) -> Iterable[Notice]:
    yield Notice(NoticeType("EFFECT", ()), Everyone())


class Mortal(EventWorker):
    """Dies in its n-th batch at the given point."""

    def __init__(self, store: Store, settings: Settings, batches: int, point: str) -> None:
        super().__init__(store, rules, settings, self._decide_and_perhaps_die)
        self._batches = batches
        self._point = point

    def _perhaps_die(self, point: str) -> None:
        if self._batches <= 0 and point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)

    async def _finish(self, claimed: Sequence[Claimed]) -> None:
        if claimed:
            self._batches -= 1
            self._perhaps_die(POINTS[0])
        await super()._finish(claimed)
        if claimed:
            self._perhaps_die(POINTS[3])

    async def _decide_and_perhaps_die(self, tx: AsyncConnection, event: Event, _notices: Sequence[Notice]) -> None:
        self._perhaps_die(POINTS[1])
        values = {"event_id": str(event.event_id), "pid": os.getpid()}
        await tx.execute(text("INSERT INTO effects VALUES (:event_id, :pid)"), values)
        self._perhaps_die(POINTS[2])


def work(settings: Settings, seed: int, is_mortal: bool) -> None:
    """Work until nothing is pending, or until death."""
    asyncio.run(_work(settings, random.Random(seed), is_mortal))


async def _work(settings: Settings, dice: random.Random, is_mortal: bool) -> None:
    module.BATCH = 20
    store = Store.open(settings)
    batches = dice.randint(1, 8) if is_mortal else 10**9
    mortal = Mortal(store, settings, batches, dice.choice(POINTS))
    await mortal.start()
    while await _pending(store):
        mortal.wake()
        await mortal.idle.wait()
    await mortal.stop()
    await store.close()


async def _pending(store: Store) -> int:
    async with store.read() as connection:
        return (await statements.count_unfinished(connection))[EventStatus.PENDING]
