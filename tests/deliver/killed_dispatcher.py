"""A dispatcher process that dies by SIGKILL at a point chosen by its seed. For tests/test_killed_dispatchers.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from bongsu.deliver.channels.callback import OnOutcome
from bongsu.deliver.channels.push.sender import Push
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.model.outcome import Outcome, Outgoing
from bongsu.settings import Settings
from bongsu.store import Query, Row, Store, Transaction
from bongsu.store.core.query import Dialect, same
from bongsu.store.deliveries import CLAIM, RECORD_OTHERS, RECORD_SUCCESSES, ClaimedDelivery
from tests.support.killed_processes import work_until_nothing_is_left

POINTS = ("in the middle of a claim", "after a claim", "after a send", "in the middle of a record")
# What is not committed when the first and the last of them are passed.
STATEMENTS = {CLAIM: POINTS[0], RECORD_SUCCESSES: POINTS[3], RECORD_OTHERS: POINTS[3]}
CONCURRENCY = 8


class Death:
    """Kills this process when a point has been passed so often."""

    def __init__(self, point: str, passes: int) -> None:
        self._point = point
        self._passes = passes

    def passes(self, point: str) -> None:
        if point == self._point:
            self._passes -= 1
            if self._passes < 0:
                os.kill(os.getpid(), signal.SIGKILL)


class MortalStore(Store):
    """Passes a point before a claim or a record is committed."""

    death: Death | None = None

    def single(self) -> AbstractAsyncContextManager[Transaction]:
        # On PostgreSQL its statement would be committed before it comes back.
        return self.transaction()

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._passing(super().transaction())

    @contextlib.asynccontextmanager
    async def _passing(self, opening: AbstractAsyncContextManager[Transaction]) -> AsyncIterator[Transaction]:
        async with opening as tx:
            seen = _Seen(tx)
            yield seen
            for point in seen.points:
                if self.death is not None:
                    self.death.passes(point)


class _Seen:
    """A transaction that remembers the points of those of its statements that returned rows."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.points: list[str] = []

    @property
    def dialect(self) -> Dialect:
        return self._tx.dialect

    async def fetch(self, *queries: Query) -> Sequence[Row]:
        rows = await self._tx.fetch(*queries)
        if rows and queries[-1].statement in STATEMENTS:
            self.points.append(STATEMENTS[queries[-1].statement])
        return rows

    async def execute(self, *queries: Query) -> list[int]:
        return await self._tx.execute(*queries)


class MortalPush(Push):
    def __init__(self, settings: Settings, death: Death) -> None:
        super().__init__(settings)
        self._death = death

    def start(self, outgoing: Outgoing, on_outcome: OnOutcome) -> asyncio.Task[None] | None:
        def record_or_die(outcome: Outcome) -> None:
            self._death.passes(POINTS[2])
            on_outcome(outcome)

        return super().start(outgoing, record_or_die)


class Mortal(Dispatcher):
    def __init__(self, store: Store, settings: Settings, death: Death) -> None:
        super().__init__(store, MortalPush(settings, death), settings, CONCURRENCY)
        self._death = death

    async def _claim(self) -> list[ClaimedDelivery]:
        claimed = await super()._claim()
        if claimed:
            self._death.passes(POINTS[1])
        return claimed


def work(settings: Settings, seed: int, is_mortal: bool) -> None:
    """Send until nothing waits, or until death."""
    asyncio.run(_work(settings, random.Random(seed), is_mortal))


async def _work(settings: Settings, dice: random.Random, is_mortal: bool) -> None:
    store = MortalStore.open(settings)
    assert isinstance(store, MortalStore)
    # Sends pass one by one, the others by the batch.
    point = dice.choice(POINTS)
    death = Death(point, dice.randint(1, 40 if point == POINTS[2] else 8) if is_mortal else 10**9)
    store.death = death
    dispatcher = Mortal(store, settings, death)
    await dispatcher.start()
    await work_until_nothing_is_left([dispatcher], partial(_is_left, store))
    await dispatcher.stop()
    await dispatcher._sender.close()
    await store.close()


async def _is_left(store: Store) -> bool:
    query = same("SELECT 1 FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING') LIMIT 1")
    async with store.read() as tx:
        return bool(await tx.fetch(query()))
