"""A dispatcher process that dies by SIGKILL at a point chosen by its seed. For tests/test_killed_dispatchers.py."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.channels.outcome import Land, Outcome, Outgoing
from bongsu.channels.push import Push
from bongsu.dispatch import Dispatcher
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import Claimed, Success, Verdict

POINTS = ("in the middle of a claim", "after a claim", "after a send", "in the middle of a record")
CONCURRENCY = 8


class Death:
    """Comes when a point has been passed so often."""

    def __init__(self, point: str, passes: int) -> None:
        self._point = point
        self._passes = passes

    def passes(self, point: str) -> None:
        if point == self._point:
            self._passes -= 1
            if self._passes < 0:
                os.kill(os.getpid(), signal.SIGKILL)


class MortalPush(Push):
    def __init__(self, settings: Settings, death: Death) -> None:
        super().__init__(settings)
        self._death = death

    async def send(self, outgoing: Outgoing) -> Outcome:
        outcome = await super().send(outgoing)
        self._death.passes(POINTS[2])
        return outcome

    def send_at_once(self, outgoing: Outgoing, land: Land) -> bool:
        def land_or_die(outcome: Outcome | None) -> None:
            self._death.passes(POINTS[2])
            land(outcome)

        return super().send_at_once(outgoing, land_or_die)


class Mortal(Dispatcher):
    def __init__(self, store: Store, settings: Settings, death: Death) -> None:
        super().__init__(store, MortalPush(settings, death), settings, CONCURRENCY)
        self._death = death

    async def _claim(self) -> list[Claimed]:
        claimed = await super()._claim()
        if claimed:
            self._death.passes(POINTS[1])
        return claimed


def work(settings: Settings, seed: int, is_mortal: bool) -> None:
    """Carry until nothing is left to carry, or until death."""
    asyncio.run(_work(settings, random.Random(seed), is_mortal))


async def _work(settings: Settings, dice: random.Random, is_mortal: bool) -> None:
    store = Store.open(settings)
    # Sends are passed one by one, the others by the batch.
    point = dice.choice(POINTS)
    death = Death(point, dice.randint(1, 40 if point == POINTS[2] else 8) if is_mortal else 10**9)
    _die_in_statements(store, death)
    dispatcher = Mortal(store, settings, death)
    await dispatcher.start()
    while await _is_left(store):
        dispatcher.wake()
        await dispatcher.idle.wait()
    await dispatcher.stop()
    await dispatcher._sender.close()
    await store.close()


def _die_in_statements(store: Store, death: Death) -> None:
    """Before what they did is committed."""
    claim, record = statements.claim, statements.record

    async def claim_and_perhaps_die(*arguments: Any) -> list[Claimed]:
        claimed = await claim(*arguments)
        if claimed:
            death.passes(POINTS[0])
        return claimed

    async def record_and_perhaps_die(tx: AsyncConnection, verdicts: Sequence[Verdict | Success]) -> set[int]:
        ours = await record(tx, verdicts)
        death.passes(POINTS[3])
        return ours

    vars(statements).update(claim=claim_and_perhaps_die, record=record_and_perhaps_die)
    vars(store).update(write_once=store.write)


async def _is_left(store: Store) -> bool:
    async with store.read() as connection:
        query = "SELECT 1 FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING') LIMIT 1"
        return (await connection.exec_driver_sql(query)).first() is not None
