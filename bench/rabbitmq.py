"""rabbitmq: events from a queue into the store, against a bare aio-pika consumer that inserts each and acknowledges it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import aio_pika
import aiormq
import asyncpg
from aiormq.abc import AbstractChannel
from pamqp.commands import Basic
from tests.support.rabbitmq import start_rabbitmq

from bench.bare import TABLE
from bench.ground import Ground
from bench.measure import Contest, Measure
from bench.sample import COLUMNS, Row, Sample
from bongsu.ingress.consumer import Consumer
from bongsu.ingress.decode import Rejected
from bongsu.ingress.intake import Intake
from bongsu.ingress.rabbitmq.connection import Broker
from bongsu.ingress.rabbitmq.envelope import decode_message
from bongsu.ingress.rabbitmq.queue import QueueSource
from bongsu.ingress.rabbitmq.topology import NOTIFICATIONS, declare
from bongsu.model import Event
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.outbox import NewEvent

TITLE = "events from RabbitMQ"
BUDGET = 2.0

MESSAGES = 3_000
# As many as ours has under way.
PREFETCH = 1_000
_PLAIN = "bench_plain_queue"


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    server = start_rabbitmq()
    try:
        plain, settings = await ground.postgres(), await ground.postgres()
        async with (
            _publishing(server.url) as channel,
            _bare(server.url, plain.database_url) as bare,
            _ours(server.url, settings) as ours,
        ):

            async def prepare() -> None:
                for queue in (_PLAIN, NOTIFICATIONS.name):
                    await _fill(channel, queue, Sample.of(MESSAGES).documents)

            yield Contest(
                "queue → stored, PostgreSQL",
                "a bare aio-pika consumer: INSERT, then ack, each",
                "event",
                Measure.SPEED,
                bare.consume,
                ours.consume,
                prepare=prepare,
                units_a_turn=MESSAGES,
                budget=BUDGET,
            )
    finally:
        server.stop()


async def _fill(channel: AbstractChannel, queue: str, documents: Sequence[bytes]) -> None:
    for first in range(0, len(documents), 500):
        part = documents[first : first + 500]
        properties = Basic.Properties(delivery_mode=2)
        await asyncio.gather(*(channel.basic_publish(one, routing_key=queue, properties=properties) for one in part))


@contextlib.asynccontextmanager
async def _publishing(url: str) -> AsyncIterator[AbstractChannel]:
    connection = await aiormq.connect(url)
    channel = await connection.channel(publisher_confirms=True)
    await declare(channel, NOTIFICATIONS)
    await channel.queue_declare(_PLAIN, durable=True, arguments={"x-queue-type": "quorum"})
    yield channel
    await connection.close()


class _Bare:
    def __init__(self, channel: aio_pika.abc.AbstractChannel, connection: asyncpg.Connection) -> None:
        self._channel = channel
        self._connection = connection
        places = ", ".join(f"${place}" for place in range(1, len(COLUMNS) + 1))
        self._insert = f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({places}) ON CONFLICT DO NOTHING"

    async def consume(self) -> None:
        queue = await self._channel.get_queue(_PLAIN)
        count = 0
        async with queue.iterator() as messages:
            async for message in messages:
                await self._connection.execute(self._insert, *_row(message.body))
                await message.ack()
                count += 1
                if count == MESSAGES:
                    break


def _row(body: bytes) -> Row | Any:
    event = decode_message(body)
    assert isinstance(event, NewEvent)
    return (
        event.event_id, event.event_type, event.occurred_at, event.actor_id, event.target_id, event.ref_id,
        event.payload_text,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def _bare(url: str, database_url: str) -> AsyncIterator[_Bare]:
    connection = await asyncpg.connect(database_url)
    async with await aio_pika.connect(url) as broker:
        channel = await broker.channel()
        await channel.set_qos(prefetch_count=PREFETCH)
        yield _Bare(channel, connection)
    await connection.close()


class _Ours:
    def __init__(self, url: str, intake: Intake) -> None:
        self._url = url
        self._intake = intake

    async def consume(self) -> None:
        """Connecting and declaring included; the baseline is connected."""
        broker, stored, done = Broker(self._url), 0, asyncio.Event()

        async def accept(events: Sequence[Event | NewEvent]) -> Sequence[bool | Rejected]:
            nonlocal stored
            answers = await self._intake.accept_in_turn(events)
            stored += len(answers)
            if stored >= MESSAGES:
                done.set()
            return answers

        async with running(Consumer(QueueSource(broker, NOTIFICATIONS), decode_message, accept)):
            await done.wait()
        await broker.close()


@contextlib.asynccontextmanager
async def _ours(url: str, settings: Settings) -> AsyncIterator[_Ours]:
    store = Store.open(settings)
    async with running(Intake(store, LocalSignals(), "rabbitmq")) as intake:
        yield _Ours(url, intake)
    await store.close()
