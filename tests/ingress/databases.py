"""The databases of these tests, and one who looks at them from outside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from sqlalchemy import URL, make_url

from bongsu import Event
from bongsu.settings import Settings
from bongsu.store import Store, migrate, outbox
from bongsu.store.core.query import same
from tests.conftest import KEYS


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
