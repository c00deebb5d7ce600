"""A queue of RabbitMQ as a Source."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from aiormq.abc import AbstractChannel, DeliveredMessage

from bongsu.errors import SourceAway
from bongsu.ingress.consumer import Received
from bongsu.ingress.ndjson import BATCH_BYTES
from bongsu.ingress.rabbitmq.connection import Broker, close_channel
from bongsu.ingress.rabbitmq.envelope import with_event_id
from bongsu.ingress.rabbitmq.topology import WorkQueue, declare
from bongsu.runtime import telemetry

# Messages delivered and not acknowledged: those of the batch under way, and those of the next. They are what this process
# has of the queue in memory, and what another one cannot have meanwhile.
PREFETCH = 1_000
# How long an empty queue is waited for before the Consumer has its turn.
WAIT_SECONDS = 1.0
# To declare a queue and consume it.
OPEN_SECONDS = 10.0
# How often the depth of the queue is asked for, for the metrics.
DEPTH_SECONDS = 10.0


class _Handle(NamedTuple):
    """A delivery tag counts on its channel only."""

    channel: AbstractChannel
    tag: int


class QueueSource:
    """Consumes a work queue on a channel of its own. Poison goes to the dead-letter queue by the broker's own
    dead-lettering."""

    def __init__(self, broker: Broker, queue: WorkQueue, prefetch: int = PREFETCH) -> None:
        self._broker = broker
        self._queue = queue
        self._prefetch = prefetch
        self._channel: AbstractChannel | None = None
        self._delivered: deque[DeliveredMessage] = deque()
        # Handed back because the store was away. They stay unacknowledged, so the broker counts no further delivery.
        self._released: Sequence[Received] = ()
        self._arrived = asyncio.Event()
        self._is_consuming = False
        self._depth_at = 0.0

    @property
    def name(self) -> str:
        return self._queue.name

    async def receive(self, limit: int) -> Sequence[Received]:
        # First, although their channel may have ended, by the broker's consumer_timeout for example: to consume again is
        # another delivery, and while the store is away as many of them would reach the delivery limit.
        if self._released:
            released, self._released = self._released, ()
            return released
        if self._channel is None or self._channel.is_closed or not self._is_consuming:
            await self._open()
        await self._measure_depth()
        if not self._delivered:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._arrived.wait()
        return self._take(limit)

    async def reject(self, message: Received, reason: str) -> None:
        """The broker dead-letters it. It keeps no reason: the list of dead letters finds it again from the body."""
        handle = self._handle(message)
        with self._broker.errors_named():
            await handle.channel.basic_nack(handle.tag, requeue=False)

    async def acknowledge(self, messages: Sequence[Received]) -> None:
        """All of the batch in one frame: what was rejected is answered already."""
        if messages:
            handle = self._handle(messages[-1])
            with self._broker.errors_named():
                await handle.channel.basic_ack(handle.tag, multiple=True)

    async def release(self, messages: Sequence[Received]) -> None:
        self._released = messages

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        self._delivered.clear()
        self._released = ()
        await close_channel(channel)

    async def check(self) -> str:
        channel = await self._broker.channel()
        try:
            with self._broker.errors_named():
                await declare(channel, self._queue)
                depth, dead = await self._depths(channel)
        finally:
            await close_channel(channel)
        return f"{self.name} answers: {depth} waiting, {dead} in {self._queue.dead_letters}"

    async def _open(self) -> None:
        """Declare the queue and consume it. What an earlier channel had is delivered again on this one."""
        await self.close()
        self._channel = channel = await self._broker.channel()
        self._is_consuming = False
        with self._broker.errors_named():
            # A queue that has no leader yet, after a crash of the broker, may keep a request waiting.
            async with asyncio.timeout(OPEN_SECONDS):
                await declare(channel, self._queue)
                await channel.basic_qos(prefetch_count=self._prefetch)
                channel.on_consumer_cancel_callbacks.add(self._on_cancel)
                channel.closing.add_done_callback(lambda _: self._arrived.set())
                await channel.basic_consume(self.name, self._on_message)
            self._is_consuming = True

    def _on_cancel(self, _frame: object) -> None:
        """The broker has ended the consumption, because the queue was deleted: it is declared again."""
        self._is_consuming = False
        self._arrived.set()

    async def _on_message(self, message: DeliveredMessage) -> None:
        if message.channel is self._channel:
            self._delivered.append(message)
            self._arrived.set()

    def _take(self, limit: int) -> list[Received]:
        batch: list[Received] = []
        size = 0
        while self._delivered and len(batch) < limit and size < BATCH_BYTES:
            message = self._delivered.popleft()
            size += len(message.body)
            batch.append(self._received(message))
        return batch

    def _received(self, message: DeliveredMessage) -> Received:
        properties = message.header.properties
        written_at = properties.timestamp
        assert self._channel is not None and message.delivery_tag is not None
        return Received(
            with_event_id(message.body, properties.message_id),
            handle=_Handle(self._channel, message.delivery_tag),
            is_redelivered=bool(message.redelivered),
            written_at=written_at.astimezone(UTC) if isinstance(written_at, datetime) else None,
        )

    def _handle(self, message: Received) -> _Handle:
        handle: _Handle = message.handle
        if handle.channel is not self._channel or handle.channel.is_closed:
            raise SourceAway(f"RabbitMQ has closed the channel of {self.name}; what it had delivered is delivered again")
        return handle

    async def _measure_depth(self) -> None:
        if time.monotonic() < self._depth_at or self._channel is None:
            return
        self._depth_at = time.monotonic() + DEPTH_SECONDS
        with self._broker.errors_named():
            depth, dead = await self._depths(self._channel)
        telemetry.SOURCE_DEPTH.labels(self.name).set(depth)
        telemetry.SOURCE_DEPTH.labels(self._queue.dead_letters).set(dead)

    async def _depths(self, channel: AbstractChannel) -> tuple[int, int]:
        """Messages that were not delivered to any consumer, in the queue and among its dead letters."""
        queue = await channel.queue_declare(self.name, passive=True)
        dead = await channel.queue_declare(self._queue.dead_letters, passive=True)
        return queue.message_count or 0, dead.message_count or 0
