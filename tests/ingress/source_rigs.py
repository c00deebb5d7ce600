"""What the conformance suite of sources needs of each: somebody who writes into it, and a way to take it away.

Messages are written by clients that are not ours: psycopg, PyMySQL, sqlite3, aiormq.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from bongsu.desk.dead_filter import DeadFilter, System
from bongsu.desk.rabbitmq_dead_letters import RabbitDeadLetters
from bongsu.ingress.consumer import Received, Source
from bongsu.ingress.rabbitmq.connection import Broker
from bongsu.ingress.rabbitmq.queue import QueueSource
from bongsu.ingress.rabbitmq.topology import NOTIFICATIONS
from bongsu.ingress.relay import RejectedFilter, open_outbox, open_relay
from bongsu.settings import Settings
from tests.ingress.databases import Place, connect_plainly, run_plainly
from tests.support.forwarder import Forwarder
from tests.support.mariadb import MariadbServer
from tests.support.rabbit_caller import Caller, calling
from tests.support.servers import PostgresServer
from tests.support.waiting import until


class SourceRig(Protocol):
    """One source, empty at the beginning."""

    # Whether it keeps the reason of a rejection beside the message.
    keeps_reasons: bool

    async def put(self, *messages: Mapping[str, Any]) -> None:
        """Commit or publish them, in this order. Each is an event as JSON; `payload` may be a text that is not JSON."""

    def source(self) -> Source:
        """Each is as that of another process: of the same messages, with a connection of its own."""

    async def waiting(self) -> int:
        """How many messages are neither acknowledged nor rejected."""

    async def rejected(self) -> dict[str, str]:
        """The reasons of those that were set aside, by event id, as the list of dead letters has them."""

    async def cut(self) -> None:
        """From now on it cannot be reached, and connections that are open end."""

    async def mend(self) -> None: ...


async def until_empty(rig: SourceRig) -> None:
    async def is_empty() -> bool:
        return await rig.waiting() == 0

    await until(is_empty)


class OutboxRig:
    """An outbox. The relay reaches it through `url`, and it is written to at `place`."""

    keeps_reasons = True

    def __init__(self, place: Place, url: str, forwarder: Forwarder | None) -> None:
        self.place = place
        self.url = url
        self.forwarder = forwarder
        self._own = open_outbox(url_of(place))

    async def put(self, *messages: Mapping[str, Any]) -> None:
        mark = "?" if self.place.database == "sqlite" else "%s"
        with contextlib.closing(connect_plainly(self.place)) as connection:
            cursor = connection.cursor()
            for message in messages:
                columns = [_COLUMNS[name] for name in message]
                values = [json.dumps(value) if isinstance(value, dict) else value for value in message.values()]
                marks = ", ".join([mark] * len(columns))
                cursor.execute(f"INSERT INTO bongsu_outbox ({', '.join(columns)}) VALUES ({marks})", values)
            connection.commit()

    def source(self) -> Source:
        return open_relay("orders", self.url)

    async def waiting(self) -> int:
        ((count,),) = run_plainly(self.place, "SELECT count(*) FROM bongsu_outbox WHERE failed_at IS NULL")
        return int(count)

    async def rejected(self) -> dict[str, str]:
        rows = await self._own.find_rejected(RejectedFilter(), None, 10_000)
        await self._own.close()
        return {row.event_id: row.error for row in rows}

    async def cut(self) -> None:
        if self.forwarder is not None:
            await self.forwarder.cut()
        else:
            Path(self.place.where).rename(f"{self.place.where}.away")

    async def mend(self) -> None:
        if self.forwarder is not None:
            await self.forwarder.mend()
        else:
            Path(f"{self.place.where}.away").rename(self.place.where)


_ALL_DEAD = DeadFilter.model_validate({"source": System.RABBITMQ, "queue": NOTIFICATIONS.name})
_COLUMNS = {
    "eventId": "event_id", "eventType": "event_type", "occurredAt": "occurred_at", "actorId": "actor_id",
    "targetId": "target_id", "refId": "ref_id", "payload": "payload",
}  # fmt: skip


def url_of(place: Place) -> str:
    return f"sqlite:///{place.where}" if place.database == "sqlite" else place.where


@contextlib.asynccontextmanager
async def outbox_rig(place: Place) -> AsyncIterator[OutboxRig]:
    own = open_outbox(url_of(place))
    await own.create()
    await own.close()
    if place.database == "sqlite":
        yield OutboxRig(place, url_of(place), None)
        return
    async with Forwarder(place.where) as forwarder:
        yield OutboxRig(place, forwarder.url, forwarder)


@contextlib.contextmanager
def empty_database(request: pytest.FixtureRequest, database: str, folder: Path) -> Iterator[Place]:
    if database == "sqlite":
        yield Place("sqlite", str(folder / "shop.db"))
        return
    server: PostgresServer | MariadbServer = request.getfixturevalue({"postgresql": "postgres"}.get(database, "mariadb"))
    url = server.create_database()
    yield Place("postgresql" if database == "postgresql" else "mysql", url)
    server.drop_database(url)


class QueueRig:
    """The queue of notifications in RabbitMQ. A message has its id also as the property message_id, by which one is known
    whose body cannot be read."""

    # See docs/decisions/0028-rabbitmq.md.
    keeps_reasons = False

    def __init__(self, caller: Caller, url: str, forwarder: Forwarder) -> None:
        self._caller = caller
        self._url = url
        self.forwarder = forwarder
        # Of the URL, with the question mark.
        self.options = ""
        self._brokers: list[Broker] = []
        self._published: set[str] = set()
        self._settled: set[str] = set()

    async def put(self, *messages: Mapping[str, Any]) -> None:
        for message in messages:
            await self._caller.publish(_body_of(message), key="order.paid", message_id=message["eventId"])
            self._published.add(message["eventId"])

    def source(self) -> Source:
        self._brokers.append(Broker(self.forwarder.url + self.options))
        return _WatchedQueue(self._brokers[-1], self._settled)

    async def waiting(self) -> int:
        """The broker shows nobody which messages a consumer has not answered."""
        return len(self._published - self._settled)

    async def rejected(self) -> dict[str, str]:
        """The reasons as they are found again. Both ask from the oldest message to the newest."""
        letters = await RabbitDeadLetters(Settings(rabbitmq_url=self._url)).list(_ALL_DEAD, None, 10_000)
        messages = await self._caller.read(NOTIFICATIONS.dead_letters)
        found = zip(messages, letters.rows, strict=True)
        return {str(message.header.properties.message_id): str(letter.error) for message, letter in found}

    async def cut(self) -> None:
        await self.forwarder.cut()

    async def mend(self) -> None:
        await self.forwarder.mend()

    async def close(self) -> None:
        """The broker has what was not settled, and nothing else."""
        for broker in self._brokers:
            await broker.close()

        async def are_as_counted() -> bool:
            return await self._caller.depth(NOTIFICATIONS.name) == await self.waiting()

        await until(are_as_counted)


class _WatchedQueue(QueueSource):
    """Notes what the broker has taken as settled: it answers what it is asked after that on the same channel."""

    def __init__(self, broker: Broker, settled: set[str]) -> None:
        # So few that two consumers share the work.
        super().__init__(broker, NOTIFICATIONS, prefetch=10)
        self._settled = settled
        self._rejected: list[Received] = []

    async def reject(self, message: Received, reason: str) -> None:
        await super().reject(message, reason)
        self._rejected.append(message)

    async def acknowledge(self, messages: Sequence[Received]) -> None:
        await super().acknowledge(messages)
        rejected, self._rejected = self._rejected, []
        settled = [*messages, *rejected]
        await settled[0].handle.channel.queue_declare(self.name, passive=True)
        self._settled.update(map(_id_of, settled))


def _body_of(message: Mapping[str, Any]) -> bytes:
    """A payload that is a text stands in it as it is, JSON or not."""
    fields = []
    for name, value in message.items():
        is_raw = name == "payload" and isinstance(value, str)
        fields.append(f'"{name}": {value if is_raw else json.dumps(value)}')
    return f"{{{', '.join(fields)}}}".encode()


def _id_of(message: Received) -> str:
    """Also of one that cannot be read."""
    assert isinstance(message.body, bytes)
    found = re.search(rb'"eventId": "([^"]+)"', message.body)
    assert found is not None
    return found[1].decode()


@contextlib.asynccontextmanager
async def queue_rig(url: str) -> AsyncIterator[QueueRig]:
    async with calling(url) as caller, Forwarder(url) as forwarder:
        await caller.declare()
        rig = QueueRig(caller, url, forwarder)
        yield rig
        await rig.close()


@contextlib.asynccontextmanager
async def rig_of(name: str, request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[SourceRig]:
    if name == "rabbitmq":
        async with queue_rig(request.getfixturevalue("rabbitmq_url")) as queue:
            yield queue
        return
    with empty_database(request, name, folder) as place:
        async with outbox_rig(place) as outbox:
            yield outbox


OUTBOXES: Sequence[str] = ("sqlite", "postgresql", "mariadb")
# Every source: the suite runs each of them.
RIGS: Sequence[str] = (*OUTBOXES, "rabbitmq")
