"""The databases of these tests, and one who looks at them from outside."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import psycopg
from sqlalchemy import URL, make_url

from bongsu import Event
from bongsu.ingress.relay import open_outbox
from bongsu.settings import Settings
from bongsu.store import Store, migrate, outbox
from bongsu.store.core.query import same
from tests.conftest import KEYS
from tests.support.mariadb import connect as connect_mysql


@dataclass(frozen=True)
class Place:
    """A database, and where it is: for SQLite the path of its file, for PostgreSQL its URL."""

    database: str
    where: str

    def url(self, driver: str) -> URL:
        if self.database == "sqlite":
            return URL.create(driver, database=self.where)
        return make_url(self.where).set(drivername=driver)

    def settings(self) -> Settings:
        url = self.where if self.database == "postgresql" else f"sqlite:///{self.where}"
        return Settings(data_dir=Path(), database_url=url, **KEYS)


class Seen(NamedTuple):
    order: bool
    event: bool


BOTH = Seen(order=True, event=True)
NEITHER = Seen(order=False, event=False)


class OutboxOnlooker:
    """The same for a database that has bongsu_outbox and not the store. It looks through clients that are not ours."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._outbox = open_outbox(place.where if "://" in place.where else f"sqlite:///{place.where}")

    async def __aenter__(self) -> Self:
        await self._outbox.create()
        await self._outbox.close()
        self._fetch("CREATE TABLE orders (ref varchar(64) PRIMARY KEY)")
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    async def looks_for(self, event: Event) -> Seen:
        orders = self._fetch("SELECT ref FROM orders WHERE ref = '{}'", event.ref_id)
        return Seen(len(orders) == 1, len(self._find(event)) == 1)

    async def reads(self, event: Event) -> Event:
        ((event_id, event_type, occurred_at, actor_id, target_id, ref_id, payload),) = self._find(event)
        moment = datetime.fromisoformat(occurred_at) if isinstance(occurred_at, str) else occurred_at
        return Event(
            event_id=event_id,
            event_type=event_type,
            occurred_at=moment if moment.tzinfo else moment.replace(tzinfo=UTC),
            actor_id=actor_id,
            target_id=target_id,
            ref_id=ref_id,
            payload=json.loads(payload),
        )

    def rename(self, table: str, name: str) -> None:
        self._fetch(f"ALTER TABLE {table} RENAME TO {name}")

    def _find(self, event: Event) -> list[Any]:
        columns = "event_id, event_type, occurred_at, actor_id, target_id, ref_id, payload"
        return self._fetch(f"SELECT {columns} FROM bongsu_outbox WHERE event_id = '{{}}'", event.event_id)

    def _fetch(self, text: str, value: object = None) -> list[Any]:
        """On a new connection, so that it sees what was committed. The values are ids, which need no quotes."""
        return run_plainly(self.place, text.format(value))


def connect_plainly(place: Place) -> Any:
    match place.database:
        case "sqlite":
            return sqlite3.connect(place.where)
        case "postgresql":
            return psycopg.connect(place.where)
    return connect_mysql(place.where)


def run_plainly(place: Place, *texts: str) -> list[Any]:
    """Run these statements; the rows of the last."""
    with contextlib.closing(connect_plainly(place)) as connection:
        cursor = connection.cursor()
        for text in texts:
            cursor.execute(text)
        rows = list(cursor.fetchall()) if cursor.description else []
        connection.commit()
        return rows


class Onlooker:
    """Looks through a connection of its own, so it sees what was committed and nothing else."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._store = Store.open(place.settings())

    async def __aenter__(self) -> Self:
        """Makes Bongsu's tables, and beside them the caller's own."""
        await migrate(self._store)
        async with self._store.transaction() as tx:
            await tx.execute(same("CREATE TABLE orders (ref text PRIMARY KEY)")())
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._store.close()

    async def looks_for(self, event: Event) -> Seen:
        """The event, and the order it is about."""
        async with self._store.read() as tx:
            orders = await tx.fetch(same("SELECT ref FROM orders WHERE ref = $1")(event.ref_id))
            found = await outbox.find(tx, event.event_id)
            return Seen(len(orders) == 1, found is not None)

    async def reads(self, event: Event) -> Event:
        """The event as it was stored."""
        async with self._store.read() as tx:
            row = await outbox.find(tx, event.event_id)
        assert row is not None
        return row.event
