"""A service that publishes to RabbitMQ, with a client that is not ours; and what it finds in the queues."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import aio_pika
import aiormq
from aiormq.abc import AbstractChannel, DeliveredMessage
from pamqp.commands import Basic

from bongsu.ingress.rabbitmq.topology import EXCHANGE, QUEUES, declare
from tests.support.waiting import until


def event(event_type: str, **fields: Any) -> dict[str, Any]:
    return {"eventId": str(uuid4()), "eventType": event_type, **fields}


def chat_event(room_id: UUID | str, sender_id: str, text: str) -> dict[str, Any]:
    payload = {"message": text, "clientMessageId": text[:100]}
    return event("chat.message_sent", actorId=sender_id, refId=str(room_id), payload=payload)


class Caller:
    def __init__(self, channel: AbstractChannel) -> None:
        self.channel = channel

    async def declare(self) -> None:
        for queue in QUEUES:
            await declare(self.channel, queue)

    async def publish(self, *bodies: dict[str, Any] | bytes, key: str | None = None, **properties: Any) -> None:
        """One after the other, each confirmed; routed by its eventType unless a key is given."""
        for body in bodies:
            routing_key = (
                key if key is not None else json.loads(body)["eventType"] if isinstance(body, bytes) else body["eventType"]
            )
            await self.put(body, EXCHANGE, routing_key, **properties)

    async def put(self, body: dict[str, Any] | bytes, exchange: str, routing_key: str, **properties: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        given = Basic.Properties(delivery_mode=2, **properties)
        answer = await self.channel.basic_publish(data, exchange=exchange, routing_key=routing_key, properties=given)
        assert isinstance(answer, Basic.Ack), answer

    async def depth(self, queue: str) -> int:
        """Messages that are not with a consumer."""
        found = await self.channel.queue_declare(queue, passive=True)
        return found.message_count or 0

    async def read(self, queue: str) -> list[DeliveredMessage]:
        """What is in the queue, which stays as it was; for a work queue this counts as a delivery.
        Not of one with a single active consumer, which gives messages to that alone."""
        channel = await self.channel.connection.channel()
        found = []
        while not isinstance((message := await channel.basic_get(queue)).delivery, Basic.GetEmpty):
            found.append(message)
        await channel.close()
        return found

    async def until(self, queue: str, count: int) -> None:
        """Until so many are in the dead-letter queue."""

        async def has_so_many() -> bool:
            return await self.depth(queue) == count

        await until(has_so_many)


@contextlib.asynccontextmanager
async def calling(url: str) -> AsyncIterator[Caller]:
    connection = await aiormq.connect(url)
    try:
        yield Caller(await connection.channel(publisher_confirms=True))
    finally:
        await connection.close()


async def publish_with_aio_pika(url: str, body: dict[str, Any]) -> None:
    """As docs/howto/rabbitmq.md shows it."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
        message = aio_pika.Message(json.dumps(body).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await exchange.publish(message, routing_key=body["eventType"])
