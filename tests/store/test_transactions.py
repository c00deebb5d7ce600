"""Transactions end as their blocks do, whatever interrupts them, and no connection is left in the middle of one."""

from __future__ import annotations

import asyncio
import random
import resource
import sqlite3
import threading
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.errors import StoreDamaged, StoreUnreachable
from bongsu.model import Event, new_id
from bongsu.settings import Settings
from bongsu.store import Store, engine, migrate
from bongsu.store import events as statements
from bongsu.store.postgres import POSTGRES
from bongsu.store.sqlite import SQLITE
from tests.deciding import rows

ATTEMPTS = 60
# From before BEGIN is sent until after COMMIT is.
LONGEST_SECONDS = 0.02


async def stored(store: Store) -> set[str]:
    return {str(row[0]) for row in await rows(store, "SELECT event_id FROM bongsu_events")}


async def nothing_is_open(store: Store) -> bool:
    """On connections of ours to this store."""
    if store.dialect.name == "sqlite":
        async with store.single() as connection:
            return not SQLITE.driver(connection).in_transaction
    found = await rows(
        store,
        """SELECT count(*) FROM pg_stat_activity
           WHERE application_name = 'bongsu' AND datname = current_database() AND state LIKE 'idle in transaction%'""",
    )
    return bool(found[0][0] == 0)


async def test_what_it_begins_with_is_part_of_it(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        async with store.write("CREATE TABLE first (number integer)", "INSERT INTO first VALUES (1)") as tx:
            assert (await tx.execute(text("SELECT number FROM first"))).scalar_one() == 1
            raise ZeroDivisionError
    with pytest.raises(Exception, match="first"):
        await rows(store, "SELECT * FROM first")


async def test_wherever_it_is_cancelled_it_is_whole_and_over(store: Store) -> None:
    dice = random.Random(7)
    finished: set[str] = set()
    begun: list[str] = []

    async def write_two() -> None:
        two = [Event(event_type="x"), Event(event_type="y")]
        begun.extend(str(one.event_id) for one in two)
        async with store.write() as tx:
            for one in two:
                await statements.add(tx, [one])
        finished.update(str(one.event_id) for one in two)

    for _ in range(ATTEMPTS):
        task = asyncio.create_task(write_two())
        await asyncio.sleep(dice.uniform(0, LONGEST_SECONDS))
        task.cancel()
        await asyncio.wait({task})
    await write_two()
    found = await stored(store)
    assert finished <= found
    assert all((one in found) == (other in found) for one, other in zip(begun[::2], begun[1::2], strict=True))
    assert await nothing_is_open(store)


async def test_a_statement_that_is_cancelled_under_way_leaves_nothing_open(store: Store) -> None:
    slow = (
        "SELECT pg_sleep(60)"
        if store.dialect.name == "postgresql"
        else "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT max(i) FROM n"
    )
    said = asyncio.Event()

    async def hang() -> None:
        async with store.write() as tx:
            await statements.add(tx, [Event(event_type="x")])
            said.set()
            await store.dialect.rows(tx, slow, ())
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await said.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await nothing_is_open(store)
    async with store.write() as tx:
        await statements.add(tx, [Event(event_type="y")])
    assert len(await stored(store)) == 1


@pytest.mark.parametrize("settings", ["postgresql"], indirect=True)
async def test_a_failure_that_was_passed_over_is_not_taken_for_success(store: Store) -> None:
    with pytest.raises(AssertionError, match="had failed"):
        async with store.write() as tx:
            await statements.add(tx, [Event(event_type="x")])
            with pytest.raises(asyncpg.PostgresError):
                await store.dialect.rows(tx, "SELECT 1 / 0", ())
    assert await stored(store) == set()
    assert await nothing_is_open(store)


async def test_who_finds_the_file_locked_with_one_statement_queues_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_MILLISECONDS", 100)
    store = Store.open(Settings(data_dir=tmp_path))
    await migrate(store)
    rival = sqlite3.connect(tmp_path / "bongsu.db", isolation_level=None, check_same_thread=False)
    rival.execute("BEGIN IMMEDIATE")
    # Longer than SQLite waits by itself, shorter than we do.
    end = threading.Timer(0.25, rival.execute, ["COMMIT"])
    end.start()
    event = Event(event_type="x", event_id=new_id())
    assert await statements.add_many(store, [event]) == [True]
    end.join()
    rival.close()
    assert await stored(store) == {str(event.event_id)}
    await store.close()


async def test_after_a_commit_that_failed_the_next_is_one(tmp_path: Path) -> None:
    store = Store.open(Settings(data_dir=tmp_path))
    await migrate(store)
    lost, kept = Event(event_type="x"), Event(event_type="y")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No room for one page more in the file that commits are written to.
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "bongsu.db-wal").stat().st_size + 2000, limits[1]))
    try:
        with pytest.raises(StoreDamaged):
            await statements.add_many(store, [lost])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert await nothing_is_open(store)
    assert await statements.add_many(store, [kept]) == [True]
    other = sqlite3.connect(tmp_path / "bongsu.db")
    assert other.execute("SELECT event_id FROM bongsu_events").fetchall() == [(str(kept.event_id),)]
    other.close()
    await store.close()


@pytest.mark.parametrize("settings", ["postgresql"], indirect=True)
@pytest.mark.parametrize("how", ["write", "single", "read"])
async def test_a_connection_that_is_lost_between_two_statements_is_a_store_away(store: Store, how: str) -> None:
    with pytest.raises(StoreUnreachable):
        async with getattr(store, how)() as connection:
            await hang_up(store, connection)
            await store.dialect.rows(connection, "SELECT 1", ())


@pytest.mark.parametrize("settings", ["postgresql"], indirect=True)
async def test_a_connection_that_is_lost_before_the_commit_is_a_store_away(store: Store) -> None:
    with pytest.raises(StoreUnreachable):
        async with store.write() as tx:
            await statements.add(tx, [Event(event_type="x")])
            await hang_up(store, tx)
    assert await stored(store) == set()


async def hang_up(store: Store, connection: AsyncConnection) -> None:
    """The server ends the connection, and that is known here."""
    driver = POSTGRES.driver(connection)
    await rows(store, f"SELECT pg_terminate_backend({driver.get_server_pid()})")
    async with asyncio.timeout(20):
        while not driver.is_closed():
            await asyncio.sleep(0.01)
