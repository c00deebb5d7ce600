"""Processes that end by SIGKILL: a relay before and after it has stored a batch, and a caller around its own commit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

from bongsu import Event, publish
from bongsu.errors import SourceError
from bongsu.ingress.consumer import Consumer
from bongsu.ingress.decode import Rejected, decode_event
from bongsu.ingress.intake import Intake
from bongsu.ingress.relay import open_outbox, open_relay
from bongsu.model import new_id
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.outbox import NewEvent
from tests.ingress.databases import Place, connect_plainly

# Rows of one batch: a death in the middle of a backlog leaves some stored, some not.
LIMIT = 20
TRANSACTIONS = 40


def relay_and_die(url: str, done: Path, settings: Settings, seed: int, is_mortal: bool) -> None:
    """Until the outbox is empty and no more is to come, or to the end of its life."""
    dice = random.Random(seed)

    def may_die() -> None:
        if is_mortal and dice.random() < 0.1:
            os.kill(os.getpid(), signal.SIGKILL)

    async def work() -> None:
        store = Store.open(settings)
        async with running(Intake(store, LocalSignals(), "outbox")) as intake:

            async def accept(items: Sequence[Event | NewEvent]) -> Sequence[bool | Rejected]:
                may_die()
                answers = await intake.accept_in_turn(items)
                may_die()
                return answers

            async with running(Consumer[Event | NewEvent](open_relay("orders", url), decode_event, accept, limit=LIMIT)):
                while not done.exists() or await has_waiting(url):
                    await asyncio.sleep(0.02)
        await store.close()

    asyncio.run(work())


async def has_waiting(url: str) -> bool:
    outbox = open_outbox(url)
    try:
        return await outbox.has_waiting()
    except SourceError:
        return True  # not known
    finally:
        await outbox.close()


def call_and_die(place: Place, seed: int) -> None:
    """Transactions of an order and its event, committed or rolled back; a few end with the process."""
    dice = random.Random(seed)
    with contextlib.closing(connect_plainly(place)) as connection:
        if place.database == "mysql":
            connection.autocommit(False)
        for _ in range(TRANSACTIONS):
            event = Event(event_type="order.paid", ref_id=str(new_id()))
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute(f"INSERT INTO orders VALUES ('{event.event_id}')")
            publish(connection, event)
            fate = dice.random()
            if fate < 0.01:
                os.kill(os.getpid(), signal.SIGKILL)
            connection.rollback() if fate < 0.3 else connection.commit()
            if fate > 0.99:
                os.kill(os.getpid(), signal.SIGKILL)
