"""A process that pushes about chat, and dies by SIGKILL between two steps chosen by its seed. For test_killed_push.py."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from bongsu.chat.push import ChatPush
from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.deliver.channels.push.sender import Push
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.render.templates import Templates
from bongsu.rules import catalogue
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store, Transaction
from bongsu.store.chat.pushes import RoomToLookAt
from bongsu.store.core.query import same
from tests.deliver.killed_dispatcher import Death
from tests.support.chat_push import Present
from tests.support.killed_processes import work_until_nothing_is_left

POINTS = ("after a claim", "before the commit of an event", "after an event", "after a look", "after a decision")


class MortalStore(Store):
    """Passes a point before an event about a room is committed."""

    death: Death | None = None

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._passing(super().transaction())

    @contextlib.asynccontextmanager
    async def _passing(self, opening: AbstractAsyncContextManager[Transaction]) -> AsyncIterator[Transaction]:
        async with opening as tx:
            yield tx
            if self.death is not None:
                self.death.passes(POINTS[1])


class Mortal(ChatPush):
    def __init__(self, store: Store, settings: Settings, death: Death) -> None:
        super().__init__(store, LocalSignals(), Present(), settings)
        self._death = death

    async def _look(self, room: RoomToLookAt) -> None:
        self._death.passes(POINTS[0])
        await super()._look(room)
        self._death.passes(POINTS[3])

    async def _publish(self, room: RoomToLookAt, member_ids: Sequence[str]) -> None:
        await super()._publish(room, member_ids)
        self._death.passes(POINTS[2])


def work(settings: Settings, seed: int, is_mortal: bool) -> None:
    """Look, decide and send until nothing waits, or until death."""
    asyncio.run(_work(settings, random.Random(seed), is_mortal))


async def _work(settings: Settings, dice: random.Random, is_mortal: bool) -> None:
    store, mortal_store = Store.open(settings), MortalStore.open(settings)
    assert isinstance(mortal_store, MortalStore)
    death = mortal_store.death = Death(dice.choice(POINTS), dice.randint(0, 4) if is_mortal else 10**9)
    looks = Mortal(mortal_store, settings, death)
    decider = Decider(store, Templates.load(), settings)
    worker = EventWorker(store, catalogue(settings), settings, decider, lambda _decision: death.passes(POINTS[4]))
    dispatcher = Dispatcher(store, Push(settings), settings)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        stack.push_async_callback(mortal_store.close)
        for loop in (dispatcher, worker, looks):
            await loop.start()
            stack.push_async_callback(loop.stop)
        await work_until_nothing_is_left([looks, worker, dispatcher], partial(_is_left, store))
    await dispatcher._sender.close()


async def _is_left(store: Store) -> bool:
    query = same("""
        SELECT 1 FROM bongsu_chat_rooms WHERE push_due IS NOT NULL
        UNION ALL SELECT 1 FROM bongsu_events WHERE status = 'PENDING'
        UNION ALL SELECT 1 FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING') LIMIT 1""")
    async with store.read() as tx:
        return bool(await tx.fetch(query()))
