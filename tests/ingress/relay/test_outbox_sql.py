"""The SQL that docs/howto/outbox-sql.md shows for an outbox elsewhere: it makes the table of `bongsu migrate --outbox`, and
what a foreign client inserts as shown arrives."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from bongsu import Event
from bongsu.ingress.consumer import Consumer
from bongsu.ingress.decode import decode_event
from bongsu.ingress.intake import Intake
from bongsu.ingress.relay import mysql, open_relay, postgres, sqlite
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.store import Store, outbox
from bongsu.store.outbox import NewEvent
from tests.conftest import SettingsMaker
from tests.ingress.databases import Place, run_plainly
from tests.ingress.source_rigs import empty_database, url_of
from tests.ingress.test_plain_sql import PAGE, SHOWN, shown_for
from tests.support.mariadb import MariadbServer
from tests.support.waiting import until

# What `bongsu migrate --outbox` runs.
CREATED = {
    "mysql": (mysql.CREATE,),
    "postgresql": (postgres.CREATE, *postgres.CREATE_INDEXES),
    "sqlite": (sqlite.CREATE, sqlite.CREATE_INDEX),
}


@pytest.fixture
async def home(migrated_settings: SettingsMaker) -> AsyncIterator[Store]:
    store = Store.open(migrated_settings("sqlite"))
    yield store
    await store.close()


def statements(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(";") if part.strip()]


def table_for(database: str) -> list[str]:
    """The statements of the page that make the table."""
    (shown,) = re.findall(rf"^```sql outbox-{database}\n(.+?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return statements(shown)


def inserts_for(database: str) -> list[str]:
    """What the page shows, or says how to make from what it shows: with the least columns, and with all; the latter twice,
    as a retry does."""
    if database == "mysql":
        (with_id,) = re.findall(r"^```sql\n(.+?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        return [with_id, with_id]
    shown = shown_for(database)
    return [text.replace("bongsu_events", "bongsu_outbox") for text in (shown.least, shown.full, shown.full)]


async def arrived(place: Place, home: Store) -> list[Event]:
    """What the relay brings to the store."""

    def is_empty() -> bool:
        return run_plainly(place, "SELECT count(*) FROM bongsu_outbox") == [(0,)]

    async with running(Intake(home, LocalSignals(), "outbox")) as intake:
        relay = open_relay("orders", url_of(place))
        async with running(Consumer[Event | NewEvent](relay, decode_event, intake.accept_in_turn)):
            await until(is_empty)
    async with home.transaction() as tx:
        return [one.event for one in await outbox.claim(tx, 100, 60, "w")]


def test_the_page_shows_the_table_that_the_command_creates(elsewhere: Place) -> None:
    assert table_for(elsewhere.database) == [" ".join(text.split()) for text in CREATED[elsewhere.database]]


async def test_what_is_inserted_as_the_page_shows_arrives_once(elsewhere: Place, home: Store) -> None:
    run_plainly(elsewhere, *table_for(elsewhere.database), *table_for(elsewhere.database))
    run_plainly(elsewhere, *inserts_for(elsewhere.database))
    run_plainly(elsewhere, "INSERT INTO bongsu_outbox (event_type) VALUES ('day.ended')")
    events = await arrived(elsewhere, home)
    assert [event.payload for event in events if event.event_type == "day.ended"] == [{}]
    (full,) = [event for event in events if event.event_id == SHOWN.event_id]
    assert (full.event_type, full.ref_id, full.payload) == (SHOWN.event_type, SHOWN.ref_id, SHOWN.payload)
    if elsewhere.database != "mysql":
        assert full == SHOWN
    assert len(events) == (2 if elsewhere.database == "mysql" else 3)


async def test_what_the_mariadb_command_line_commits_arrives_and_what_it_rolls_back_does_not(
    request: pytest.FixtureRequest, tmp_path: Path, mariadb: MariadbServer, home: Store
) -> None:
    with empty_database(request, "mariadb", tmp_path) as place:
        run: Callable[[str], Any] = lambda text: mariadb.command_line(place.where, text)  # noqa: E731
        run(";".join(table_for("mysql")))
        insert = "INSERT INTO bongsu_outbox (event_type, occurred_at, actor_id, ref_id, payload) VALUES"
        run(f"""SET autocommit = 0;
            {insert} ('order.paid', '2026-03-01 00:30:15.123456', '미나 🔥', 'committed', '{{"사과": "🍎"}}'); COMMIT;
            {insert} ('order.paid', NULL, NULL, 'rolled back', '{{}}'); ROLLBACK;
            {insert} ('order.paid', NULL, NULL, 'never committed', '{{}}');""")
        (event,) = await arrived(place, home)
    assert (event.ref_id, event.actor_id, event.payload) == ("committed", "미나 🔥", {"사과": "🍎"})
    assert event.occurred_at == SHOWN.occurred_at
