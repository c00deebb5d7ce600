"""What the conformance suite of sources needs of each: somebody who writes into it, and a way to take it away.

Messages are written by clients that are not ours: psycopg, PyMySQL, sqlite3.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from bongsu.ingress.consumer import Source
from bongsu.ingress.relay import RejectedFilter, open_outbox, open_relay
from tests.ingress.databases import Place, connect_plainly
from tests.support.forwarder import Forwarder
from tests.support.mariadb import MariadbServer
from tests.support.servers import PostgresServer


class SourceRig(Protocol):
    """One source, empty at the beginning."""

    def put(self, *messages: Mapping[str, Any]) -> None:
        """Commit or publish them, in this order. Each is an event as JSON; `payload` may be a text that is not JSON."""

    def source(self) -> Source:
        """Each is as that of another process: of the same messages, with a connection of its own."""

    async def waiting(self) -> int:
        """How many messages are neither acknowledged nor rejected."""

    async def rejected(self) -> dict[str, str]:
        """The reasons of those that were set aside, by event id."""

    async def cut(self) -> None:
        """From now on it cannot be reached, and connections that are open end."""

    async def mend(self) -> None: ...


class OutboxRig:
    """An outbox. The relay reaches it through `url`, and it is written to at `place`."""

    def __init__(self, place: Place, url: str, forwarder: Forwarder | None) -> None:
        self.place = place
        self.url = url
        self._forwarder = forwarder
        self._own = open_outbox(url_of(place))

    def put(self, *messages: Mapping[str, Any]) -> None:
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
        with contextlib.closing(connect_plainly(self.place)) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT count(*) FROM bongsu_outbox WHERE failed_at IS NULL")
            (count,) = cursor.fetchone()
        return int(count)

    async def rejected(self) -> dict[str, str]:
        rows = await self._own.find_rejected(RejectedFilter(), None, 10_000)
        await self._own.close()
        return {row.event_id: row.error for row in rows}

    async def cut(self) -> None:
        if self._forwarder is not None:
            await self._forwarder.cut()
        else:
            Path(self.place.where).rename(f"{self.place.where}.away")

    async def mend(self) -> None:
        if self._forwarder is not None:
            await self._forwarder.mend()
        else:
            Path(f"{self.place.where}.away").rename(self.place.where)


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


@contextlib.asynccontextmanager
async def rig_of(name: str, request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[SourceRig]:
    with empty_database(request, name, folder) as place:
        async with outbox_rig(place) as rig:
            yield rig


# Every source: the suite runs each of them.
RIGS: Sequence[str] = ("sqlite", "postgresql", "mariadb")
