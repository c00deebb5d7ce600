"""docs/howto/outbox-sql.md: the very SQL it shows, on the databases it is for."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest

from bongsu import Event
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from bongsu.store.core.private_files import sqlite_path
from tests.ingress.databases import Place

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "outbox-sql.md"

SHOWN = Event(
    event_id=UUID("0195d3a8-6c1e-7b52-9f0e-3d5a7c9b1e24"),
    event_type="product.price_changed",
    occurred_at=datetime(2026, 3, 1, 0, 30, 15, 123456, tzinfo=UTC),
    actor_id="seller-7",
    target_id="member-1",
    ref_id="product-42",
    payload={"previousPrice": 12000, "currentPrice": 9900},
)


class Shown(NamedTuple):
    """What the page shows for one database."""

    least: str
    full: str
    parameters: str
    look: str


def shown_for(database: str) -> Shown:
    blocks = re.findall(r"^```sql (.+?)\n(.+?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return Shown(*(sql for names, sql in blocks if database in names.split()))


@contextmanager
def plain_connection(database: str, where: str) -> Iterator[Any]:
    """The bare driver, and one transaction that is committed at the end."""
    with closing(sqlite3.connect(where) if database == "sqlite" else psycopg.connect(where)) as connection:
        yield connection
        connection.commit()


@contextmanager
def service(settings: Settings) -> Iterator[tuple[Any, Shown]]:
    """Another program on the same database: its connection, and what the page tells it to write."""
    database = "sqlite" if settings.is_embedded else "postgresql"
    where = str(sqlite_path(settings)) if settings.is_embedded else settings.database_url
    with plain_connection(database, where) as connection:
        yield connection, shown_for(database)


async def claimed(store: Store) -> list[Event]:
    async with store.transaction() as tx:
        return [one.event for one in await outbox.claim(tx, 10, 60, "w")]


async def test_the_least_one_can_write_is_filled_in_and_claimed(store: Store, settings: Settings) -> None:
    with service(settings) as (connection, shown):
        assert connection.execute(shown.least).rowcount == 1
    (event,) = await claimed(store)
    assert (event.event_type, event.ref_id, event.payload) == (SHOWN.event_type, SHOWN.ref_id, SHOWN.payload)
    assert (event.actor_id, event.target_id) == (None, None)
    assert event.event_id.version == 4
    assert abs(event.occurred_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_the_type_alone_is_enough(store: Store, settings: Settings) -> None:
    with service(settings) as (connection, _):
        connection.execute("INSERT INTO bongsu_events (event_type) VALUES ('day.ended')")
    (event,) = await claimed(store)
    assert (event.event_type, event.payload) == ("day.ended", {})


async def test_the_full_one_is_stored_once_and_says_so_by_its_number_of_rows(store: Store, settings: Settings) -> None:
    with service(settings) as (connection, shown):
        assert connection.execute(shown.full).rowcount == 1
        assert connection.execute(shown.full).rowcount == 0
        assert connection.execute(shown.look).fetchall() == [("PENDING", 0, None)]
    assert await claimed(store) == [SHOWN]


async def test_what_is_rolled_back_was_never_published(store: Store, settings: Settings) -> None:
    with service(settings) as (connection, shown):
        connection.execute(shown.full)
        connection.rollback()
    assert await claimed(store) == []


async def test_parameters_sent_as_text_become_what_they_should(store: Store, settings: Settings) -> None:
    occurred_at: Any = 1772325015123456 if settings.is_embedded else "2026-03-01T09:30:15.123456+09:00"
    ids = (SHOWN.actor_id, SHOWN.target_id, SHOWN.ref_id)
    values = (str(SHOWN.event_id), SHOWN.event_type, occurred_at, *ids, SHOWN.payload_text)
    with service(settings) as (connection, shown):
        run = execute if settings.is_embedded else execute_as_jdbc
        assert run(connection, shown.parameters, values) == 1
        assert run(connection, shown.parameters, values) == 0
    assert await claimed(store) == [SHOWN]


def execute(connection: sqlite3.Connection, sql: str, values: tuple[Any, ...]) -> int:
    return connection.execute(sql, values).rowcount


def execute_as_jdbc(connection: psycopg.Connection, sql: str, values: tuple[Any, ...]) -> int:
    """Every parameter declared a varchar, which psycopg itself would leave to the server to find out."""
    numbers = iter(range(1, len(values) + 1))
    numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", sql)
    connection.execute("DEALLOCATE ALL")
    connection.execute(f"PREPARE put ({', '.join(['varchar'] * len(values))}) AS {numbered}".encode())
    return (
        psycopg.ClientCursor(connection)
        .execute(f"EXECUTE put ({', '.join(['%s'] * len(values))})".encode(), values)
        .rowcount
    )


EVERYWHERE = [
    ("event_type", "''"),
    ("event_type", "NULL"),
    ("payload", "'[1]'"),
    ("payload", "'\"text\"'"),
    ("payload", "'null'"),
    ("payload", "NULL"),
    ("payload", "'{'"),
    ("status", "'SENT'"),
    ("event_id", "'order-1'"),
]
ON_SQLITE = [
    ("event_id", "'0195D3A8-6C1E-7B52-9F0E-3D5A7C9B1E24'"),
    ("event_id", "'0195d3a86c1e7b529f0e3d5a7c9b1e24'"),
    ("occurred_at", "'2026-03-01T09:30:15Z'"),
    ("occurred_at", "1772325015.5"),
]


def complaint(database: str, column: str) -> str:
    """How a database says that it is this column it minds. What is no JSON and no UUID at all fails earlier."""
    if database == "sqlite":
        return f"^(CHECK|NOT NULL) constraint failed: .*{column}|^malformed JSON$"
    return f'^null value in column "{column}"|"bongsu_events_{column}_check"|^invalid input syntax for type (json|uuid)'


@pytest.mark.parametrize(
    ("database", "column", "value"),
    [*(("sqlite", *bad) for bad in EVERYWHERE + ON_SQLITE), *(("postgresql", *bad) for bad in EVERYWHERE)],
)
def test_a_bad_row_is_refused_by_the_database(
    request: pytest.FixtureRequest, database: str, column: str, value: str
) -> None:
    place: Place = request.getfixturevalue(f"{database}_place")
    row = {"event_type": "'order.paid'", "ref_id": "'a bad row'", column: value}
    with plain_connection(database, place.where) as connection:
        with pytest.raises((sqlite3.DatabaseError, psycopg.DatabaseError), match=complaint(database, column)):
            connection.execute(f"INSERT INTO bongsu_events ({', '.join(row)}) VALUES ({', '.join(row.values())})")
        connection.rollback()
        (stored,) = connection.execute("SELECT count(*) FROM bongsu_events WHERE ref_id = 'a bad row'").fetchone()
        assert stored == 0
