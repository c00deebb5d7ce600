"""A process that decides, sends and cancels until it dies at a point of its seed. For tests/desk/test_killed_cancels.py."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from uuid import UUID

from bongsu.decide.progress import EventInProgress
from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.desk import cancel
from bongsu.desk.cancel import CancelWorker
from bongsu.model import Event, Everyone, Guarantee, Notice, NoticeType
from bongsu.render.templates import Templates
from bongsu.rules import Rules
from bongsu.runtime.loop import Loop, running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store, Transaction, outbox
from bongsu.store.core.query import same
from bongsu.store.desk import cancel_steps, cancellations
from bongsu.store.desk.cancellations import Cancellation
from bongsu.store.outbox import LockedClaims
from tests.deliver import killed_dispatcher
from tests.deliver.killed_dispatcher import POINTS, Death, Mortal, MortalStore
from tests.support.cancellations import SALE
from tests.support.killed_processes import work_until_nothing_is_left

AGAIN = NoticeType("AGAIN", SALE.channels, guarantee=Guarantee.AT_LEAST_ONCE, duplicate_hours=0)
KINDS = {one.name: one for one in (SALE, AGAIN)}
# So few that a campaign takes many steps to decide, and a cancellation many to change its rows.
CHUNK = 100
DECIDING, DECIDED = "in the middle of deciding", "after a step of deciding"
CANCELLING, CANCELLED = "in the middle of cancelling", "after a step of cancelling"
# These are passed once for every hundred members; those of the dispatcher come far more often.
RARE = (DECIDING, DECIDED, CANCELLING, CANCELLED)

# Each is nothing when all is over.
_LEFT = same("""
    SELECT count(*) AS count FROM bongsu_events WHERE status = 'PENDING'
    UNION ALL SELECT count(*) FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING')
    UNION ALL SELECT count(*) FROM bongsu_cancellations WHERE finished_at IS NULL
    UNION ALL SELECT CASE WHEN count(*) = 0 THEN 1 ELSE 0 END FROM bongsu_cancellations""")
_COUNT_ENDED = same("SELECT count(*) AS count FROM bongsu_deliveries WHERE status NOT IN ('READY', 'SENDING')")
_FIND_DELIVERIES = same("SELECT member_id, status, attempts FROM bongsu_deliveries")

rules = Rules()


@rules.rule("campaign")
def notices_of(event: Event) -> Iterable[Notice]:
    yield Notice(KINDS[event.payload["kind"]], Everyone(), str(event.event_id), title="t", body="b")


# --- a process that works -------------------------------------------------------------------------------------------------


class MortalDecider(Decider):
    def __init__(self, store: Store, settings: Settings, death: Death) -> None:
        super().__init__(store, Templates.load(), settings, CHUNK)
        self._death = death

    async def lock_claims(self, tx: Transaction, events: Sequence[EventInProgress]) -> LockedClaims:
        held = await super().lock_claims(tx, events)
        self._death.passes(DECIDING)
        return held


class MortalCancelWorker(CancelWorker):
    def __init__(self, store: Store, settings: Settings, death: Death) -> None:
        super().__init__(store, LocalSignals(), settings)
        self._death = death

    async def tick(self) -> int:
        done = await super().tick()
        if done:
            self._death.passes(CANCELLED)
        return done


def work(settings: Settings, seed: int, is_mortal: bool) -> None:
    """Decide, send and cancel until nothing is left to do, or until death."""
    asyncio.run(_work(settings, random.Random(seed), is_mortal))


async def _work(settings: Settings, dice: random.Random, is_mortal: bool) -> None:
    cancel.MEMBERS = CHUNK
    # Every crash here is ours and no event's: none is to be given up for that.
    outbox.rows.CRASHES_ALONE = 10**6
    killed_dispatcher.STATEMENTS[cancel_steps._CANCEL_DELIVERIES] = CANCELLING
    store = MortalStore.open(settings)
    assert isinstance(store, MortalStore)
    point = dice.choice((*POINTS, *RARE))
    passes = dice.randint(0, 2) if point in RARE else dice.randint(1, 60)
    store.death = death = Death(point, passes if is_mortal else 10**9)
    dispatcher = Mortal(store, settings, death)
    decider = MortalDecider(store, settings, death)
    loops: list[Loop] = [
        dispatcher,
        EventWorker(store, rules, settings, decider, lambda _decision: death.passes(DECIDED)),
        MortalCancelWorker(store, settings, death),
    ]
    async with contextlib.AsyncExitStack() as stack:
        for one in loops:
            await stack.enter_async_context(running(one))
        await work_until_nothing_is_left(loops, partial(_is_left, store))
    await dispatcher._sender.close()
    await store.close()


async def _is_left(store: Store) -> bool:
    async with store.read() as tx:
        return any(row["count"] for row in await tx.fetch(_LEFT()))


# --- the process that cancels ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A cancellation, and the deliveries at that moment: member, status, attempts."""

    done: Cancellation
    deliveries: list[tuple[str, str, int]]


def cancel_later(settings: Settings, event_id: UUID, ended: int, withdraw: bool, there: Connection) -> None:
    """Cancel the event when so many of its deliveries have ended; say what was answered. The rows are left to others."""
    asyncio.run(_cancel_later(settings, event_id, ended, withdraw, there))


async def _cancel_later(settings: Settings, event_id: UUID, ended: int, withdraw: bool, there: Connection) -> None:
    store = Store.open(settings)
    async with store.read() as tx:
        while (await tx.fetch(_COUNT_ENDED()))[0]["count"] < ended:
            pass
    async with store.transaction() as tx:
        done = await cancellations.begin(tx, event_id, "cli:mina", withdraw=withdraw)
        # Before the commit: nothing of it can be claimed meanwhile.
        rows = await tx.fetch(_FIND_DELIVERIES())
    assert isinstance(done, Cancellation)
    there.send(Answer(done, [(row["member_id"], row["status"], row["attempts"]) for row in rows]))
    await store.close()
