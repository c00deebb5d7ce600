"""A worker process that kills itself at a point chosen by its seed. For tests/decide/test_killed_workers.py."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from functools import partial

from bongsu.decide import worker as module
from bongsu.decide.progress import EventInProgress
from bongsu.decide.worker import EventWorker
from bongsu.rules import Rules, catalogue
from bongsu.settings import Settings
from bongsu.store import Store, Transaction, decisions, outbox
from bongsu.store.decisions import DecisionRows, StepChanges, decide
from bongsu.store.outbox import ClaimedEvent, LockedClaims
from tests.support.decisions import ClockedDecider
from tests.support.killed_processes import work_until_nothing_is_left
from tests.support.outbox import count_pending
from tests.support.random_events import QUIET_DAY
from tests.support.random_events import rules as random_rules

POINTS = ("after the claim", "locked, before the decision", "all written, not committed", "committed")
# Far fewer than an event's audience, so that most take several steps and crash between them.
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


class MortalDecider(ClockedDecider):
    def __init__(self, store: Store, settings: Settings, death: Death) -> None:
        super().__init__(store, settings, lambda: QUIET_DAY, CHUNK)
        self._death = death

    async def lock_claims(self, tx: Transaction, events: Sequence[EventInProgress]) -> LockedClaims:
        held = await super().lock_claims(tx, events)
        self._death.passes(POINTS[1])
        return held


class Mortal(EventWorker):
    def __init__(self, store: Store, settings: Settings, rules: Rules, death: Death) -> None:
        decider = MortalDecider(store, settings, death)
        super().__init__(store, rules, settings, decider, lambda _decision: death.passes(POINTS[3]))
        self._death = death

    async def _begin(self, claimed: Sequence[ClaimedEvent]) -> int:
        if claimed:
            self._death.passes(POINTS[0])
        return await super()._begin(claimed)


def work(settings: Settings, seed: int, is_mortal: bool) -> None:
    """Work on random events until nothing is pending, or until death."""
    asyncio.run(_work(settings, random_rules, random.Random(seed), is_mortal))


def work_on_likes(settings: Settings, seed: int, is_mortal: bool) -> None:
    """The same with the built-in rules."""
    asyncio.run(_work(settings, catalogue(settings), random.Random(seed), is_mortal))


async def _work(settings: Settings, rules: Rules, dice: random.Random, is_mortal: bool) -> None:
    module.BATCH = 20
    # On PostgreSQL few members take another path than many: some processes take the one, some the other.
    decide.FEW_RECIPIENTS = dice.choice([0, 1_000])
    # Every crash here is ours and no event's: none is to be given up for that.
    outbox.rows.CRASHES_ALONE = 10**6
    store = Store.open(settings)
    death = Death(dice.randint(1, 12) if is_mortal else 10**9, dice.choice(POINTS))
    apply_decision = decisions.apply_decision

    async def apply_and_die(tx: Transaction, decided: DecisionRows | None, changes: StepChanges) -> int:
        deliveries = await apply_decision(tx, decided, changes)
        death.passes(POINTS[2])
        return deliveries

    decisions.apply_decision = apply_and_die
    worker = Mortal(store, settings, rules, death)
    await worker.start()
    await work_until_nothing_is_left([worker], partial(count_pending, store))
    await worker.stop()
    await store.close()
