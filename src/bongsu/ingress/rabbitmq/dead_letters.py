"""Reading dead-letter queues: a message that is read and not answered returns to its place when the channel closes, so
looking removes nothing; a replayed one is acknowledged when its work queue has confirmed it.

What one reader has, another cannot see. So a reader first declares a queue that only its connection may use, which is
RabbitMQ's lock: it ends with the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from aiormq.abc import AbstractChannel, DeliveredMessage
from aiormq.exceptions import AMQPError, ChannelLockedResource, ChannelNotFoundEntity
from pamqp.commands import Basic

from bongsu.errors import DeadLettersBusy
from bongsu.ingress.rabbitmq.connection import Broker, close_channel
from bongsu.ingress.rabbitmq.envelope import with_event_id
from bongsu.ingress.rabbitmq.topology import WorkQueue, declare

# How long a reader waits for another one. A list takes less than a second, a replay of thousands a few.
LOCK_SECONDS = 10.0
LOCK_POLL_SECONDS = 0.1
# Returning takes the broker some milliseconds. After so long something else reads the queue, or it was deleted.
RETURN_SECONDS = 5.0
RETURN_POLL_SECONDS = 0.01
# Which replay has returned the message last: it does not replay it again if it fails again.
MARK = "x-bongsu-replay"
# Headers that the broker writes. A replayed message is without them.
_OF_THE_BROKER = ("x-death", "x-first-death", "x-last-death", "x-delivery-count", "x-acquired-count")


class DeadMessage(NamedTuple):
    queue: WorkQueue
    # The name of the dead-letter queue, and a digest of what distinguishes the message from others.
    id: str
    # As the consumer has seen it.
    body: bytes
    # The broker's: rejected, delivery_limit, expired, maxlen.
    reason: str | None
    rejected_at: datetime | None
    written_at: datetime | None
    mark: str | None
    delivered: DeliveredMessage


class DeadLetterReader:
    """Reads one dead-letter queue from its head."""

    def __init__(self, broker: Broker, channel: AbstractChannel, queue: WorkQueue) -> None:
        self._broker = broker
        self._channel = channel
        self._queue = queue
        # Messages that were read and will return.
        self._held: dict[int, None] = {}

    async def next(self) -> DeadMessage | None:
        with self._broker.errors_named():
            delivered = await self._channel.basic_get(self._queue.dead_letters)
        if isinstance(delivered.delivery, Basic.GetEmpty) or delivered.delivery_tag is None:
            return None
        self._held[delivered.delivery_tag] = None
        return _read(self._queue, delivered)

    async def prepare_replay(self) -> None:
        """Make sure that the work queue is there, as the consumers declare it."""
        with self._broker.errors_named():
            await declare(self._channel, self._queue)

    async def replay(self, messages: Sequence[DeadMessage], mark: str) -> int:
        """Return them to the queue that rejected them, and to no other; how many it has confirmed. They leave the dead
        letters then. After a crash in between they are in both, and the event id decides that they are stored once."""
        confirmed = await asyncio.gather(*(self._publish(message, mark) for message in messages))
        with self._broker.errors_named():
            for message, is_confirmed in zip(messages, confirmed, strict=True):
                if is_confirmed and message.delivered.delivery_tag is not None:
                    await self._channel.basic_ack(message.delivered.delivery_tag)
                    del self._held[message.delivered.delivery_tag]
        return sum(confirmed)

    async def close(self) -> None:
        """Return what was read, in its order: when a channel closes, the broker returns it in any. That takes a moment:
        wait, so that the next reader has it."""
        with self._broker.errors_named():
            for tag in self._held:
                await self._channel.basic_nack(tag, requeue=True)
        await close_channel(self._channel)
        channel = await self._broker.channel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETURN_SECONDS):
                while await _depth(self._broker, channel, self._queue) < len(self._held):  # noqa: ASYNC110 (no signal)
                    await asyncio.sleep(RETURN_POLL_SECONDS)

    async def _publish(self, message: DeadMessage, mark: str) -> bool:
        properties = message.delivered.header.properties
        headers = {name: value for name, value in _headers(message.delivered).items() if not name.startswith(_OF_THE_BROKER)}
        properties.headers = {**headers, MARK: mark}
        properties.delivery_mode = 2
        try:
            answer = await self._channel.basic_publish(
                message.delivered.body, routing_key=self._queue.name, properties=properties, mandatory=True
            )
        except AMQPError as error:
            if self._channel.is_closed:
                with self._broker.errors_named():
                    raise error
            return False
        except (ValueError, TypeError):
            return False  # properties that could be read only in part and cannot be written
        return isinstance(answer, Basic.Ack)


@contextlib.asynccontextmanager
async def read_dead_letters(url: str, queue: WorkQueue) -> AsyncIterator[DeadLetterReader | None]:
    """None if nothing has declared the queue yet. Raises SourceError; DeadLettersBusy while another one reads them."""
    broker = Broker(url, is_quiet=True)
    try:
        await _lock(broker, queue)
        if await _exists(broker, queue):
            reader = DeadLetterReader(broker, await broker.channel(confirms=True), queue)
            yield reader
            await reader.close()
        else:
            yield None
    finally:
        await broker.close()


async def _lock(broker: Broker, queue: WorkQueue) -> None:
    """Until the connection ends."""
    try:
        async with asyncio.timeout(LOCK_SECONDS):
            while True:
                channel = await broker.channel()
                try:
                    with broker.errors_named(ChannelLockedResource):
                        await channel.queue_declare(f"bongsu.reads.{queue.dead_letters}", exclusive=True, auto_delete=True)
                    return
                except ChannelLockedResource:
                    await asyncio.sleep(LOCK_POLL_SECONDS)
    except TimeoutError:
        raise DeadLettersBusy(f"{queue.dead_letters} is being read") from None


async def _exists(broker: Broker, queue: WorkQueue) -> bool:
    channel = await broker.channel()
    try:
        await _depth(broker, channel, queue)
    except ChannelNotFoundEntity:
        return False
    await close_channel(channel)
    return True


async def _depth(broker: Broker, channel: AbstractChannel, queue: WorkQueue) -> int:
    """Messages that no reader has. Raises ChannelNotFoundEntity."""
    with broker.errors_named(ChannelNotFoundEntity):
        found = await channel.queue_declare(queue.dead_letters, passive=True)
    return found.message_count or 0


def _read(queue: WorkQueue, delivered: DeliveredMessage) -> DeadMessage:
    properties, headers = delivered.header.properties, _headers(delivered)
    death = _death(headers)
    rejected_at = death.get("time")
    name = hashlib.sha256(f"{properties.message_id} {rejected_at} ".encode() + delivered.body).hexdigest()[:16]
    return DeadMessage(
        queue,
        f"{queue.dead_letters}:{name}",
        with_event_id(delivered.body, properties.message_id),
        _text(death.get("reason")),
        _moment(rejected_at),
        _moment(properties.timestamp),
        _text(headers.get(MARK)),
        delivered,
    )


def _headers(delivered: DeliveredMessage) -> dict[str, Any]:
    return dict(delivered.header.properties.headers or {})


def _death(headers: dict[str, Any]) -> dict[str, Any]:
    """The last one, as the broker describes it. Any program may publish to a queue, also with headers of another form."""
    deaths = headers.get("x-death")
    return deaths[0] if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _moment(value: object) -> datetime | None:
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
