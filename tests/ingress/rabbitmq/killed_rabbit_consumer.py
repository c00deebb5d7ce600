"""A process that consumes RabbitMQ as a worker does, and kills itself between a commit and its acknowledgement."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from typing import Any

from bongsu.chat.fanout import Fanout
from bongsu.chat.intake import ChatIntake, decode_chat_message
from bongsu.ingress.consumer import Accept, Consumer
from bongsu.ingress.intake import Intake
from bongsu.ingress.rabbitmq.connection import Broker
from bongsu.ingress.rabbitmq.envelope import decode_message
from bongsu.ingress.rabbitmq.queue import QueueSource
from bongsu.ingress.rabbitmq.topology import AGGREGATES, CHAT_PERSIST, NOTIFICATIONS
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import same
from tests.support.waiting import until

# Messages of one batch: a death in the middle of a queue leaves some stored, some not.
LIMIT = 20
_COUNT = same("SELECT (SELECT count(*) FROM bongsu_events) + (SELECT count(*) FROM bongsu_chat_messages) AS found")


def consume_and_die(expected: int, settings: Settings, seed: int, is_mortal: bool) -> None:
    """Until so many events and chat messages are stored, or to the end of its life."""
    dice = random.Random(seed)

    def mortal(accept: Accept[Any]) -> Accept[Any]:
        async def stored(items: Sequence[Any]) -> Sequence[Any]:
            answers = await accept(items)
            if is_mortal and dice.random() < 0.2:
                os.kill(os.getpid(), signal.SIGKILL)
            return answers

        return stored

    async def work() -> None:
        store, broker, signals = Store.open(settings), Broker(settings.rabbitmq_url), LocalSignals()
        chat = ChatIntake(store, Fanout(signals), settings.chat_max_bytes)
        async with running(Intake(store, signals, "rabbitmq")) as intake:
            accept = mortal(intake.accept_in_turn)
            async with (
                running(Consumer(QueueSource(broker, NOTIFICATIONS), decode_message, accept, limit=LIMIT)),
                running(Consumer(QueueSource(broker, AGGREGATES), decode_message, accept, limit=LIMIT)),
                running(Consumer(QueueSource(broker, CHAT_PERSIST), decode_chat_message, mortal(chat.accept), limit=LIMIT)),
            ):
                await until(lambda: has_stored(store, expected))
        await broker.close()
        await store.close()

    asyncio.run(work())


async def has_stored(store: Store, expected: int) -> bool:
    async with store.read() as tx:
        (row,) = await tx.fetch(_COUNT())
    return int(row["found"]) >= expected
