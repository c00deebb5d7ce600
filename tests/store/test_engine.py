"""Connections: what breaks is replaced, what is away is named, what several processes share stays whole."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from bongsu.errors import BadSettings, StoreBusy, StoreDamaged, StoreNotMigrated, StoreRefused, StoreUnreachable
from bongsu.model import Event, new_id
from bongsu.settings import Settings
from bongsu.store import Store, engine, migrate
from bongsu.store import events as statements
from tests.conftest import KEYS
from tests.processes import forks
from tests.servers import PostgresServer, start_postgres


async def number_of_events(store: Store) -> int:
    async with store.read() as connection:
        return int((await connection.execute(text("SELECT count(*) FROM bongsu_events"))).scalar_one())


async def add(store: Store, *events: Event) -> None:
    async with store.write() as tx:
        await statements.add(tx, events)


async def test_a_block_that_raises_is_rolled_back(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        async with store.write() as tx:
            await statements.add(tx, [Event(event_type="x")])
            raise ZeroDivisionError
    assert await number_of_events(store) == 0


async def test_a_cancelled_block_is_rolled_back_and_the_next_writer_gets_its_turn(store: Store) -> None:
    inside = asyncio.Event()

    async def hang() -> None:
        async with store.write() as tx:
            await statements.add(tx, [Event(event_type="x")])
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await add(store, Event(event_type="y"))
    assert await number_of_events(store) == 1


async def test_many_writers_at_once_all_get_through(store: Store) -> None:
    await asyncio.gather(*(add(store, Event(event_type="x")) for _ in range(50)))
    assert await number_of_events(store) == 50


async def test_a_reader_sees_only_what_was_committed(store: Store) -> None:
    async with store.write() as tx:
        await statements.add(tx, [Event(event_type="x")])
        assert await number_of_events(store) == 0
    assert await number_of_events(store) == 1


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


def on_postgres(url: str) -> Store:
    return Store.open(Settings(database_url=url, **KEYS))


async def test_terminated_connections_are_replaced(postgres_url: str) -> None:
    store = on_postgres(postgres_url)
    await migrate(store)
    await asyncio.gather(*(number_of_events(store) for _ in range(5)))
    with psycopg.connect(postgres_url, autocommit=True) as operator:
        killed = operator.execute(
            "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE application_name = 'bongsu' "
            "AND datname = current_database()"
        ).fetchone()
    assert killed is not None
    assert killed[0] > 0
    await asyncio.gather(*(add(store, Event(event_type="x")) for _ in range(5)))
    assert await number_of_events(store) == 5
    await store.close()


async def test_a_connection_terminated_in_a_transaction_says_so_and_stores_nothing(postgres_url: str) -> None:
    store = on_postgres(postgres_url)
    await migrate(store)
    with pytest.raises(StoreUnreachable):
        async with store.write() as tx:
            await statements.add(tx, [Event(event_type="x")])
            pid = (await tx.execute(text("SELECT pg_backend_pid()"))).scalar_one()
            with psycopg.connect(postgres_url, autocommit=True) as operator:
                operator.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
            await statements.add(tx, [Event(event_type="y")])
    assert await number_of_events(store) == 0
    await store.close()


@pytest.fixture(scope="module")
def private_postgres() -> Iterator[PostgresServer]:
    server = start_postgres()
    yield server
    server.stop()


async def test_a_restarted_server_is_found_again(private_postgres: PostgresServer) -> None:
    store = on_postgres(private_postgres.create_database())
    await migrate(store)
    await add(store, Event(event_type="before"))
    await asyncio.to_thread(private_postgres.crash)
    with pytest.raises(StoreUnreachable, match=r"PostgreSQL at 127.0.0.1:\d+.*Start the database"):
        await add(store, Event(event_type="while away"))
    await asyncio.to_thread(private_postgres.start)
    await add(store, Event(event_type="after"))
    assert await number_of_events(store) == 2
    await store.close()


async def test_a_statement_that_hangs_is_ended(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STATEMENT_TIMEOUT_SECONDS", 1)
    store = on_postgres(postgres_url)
    with pytest.raises(Exception, match="statement timeout"):
        async with store.write() as tx:
            await tx.execute(text("SELECT pg_sleep(60)"))
    await store.close()


async def test_the_pool_has_an_end_and_says_so(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "POOL_SIZE", 1)
    monkeypatch.setattr(engine, "POOL_OVERFLOW", 0)
    monkeypatch.setattr(engine, "POOL_TIMEOUT_SECONDS", 0.05)
    store = on_postgres(postgres_url)
    async with store.write():
        with pytest.raises(StoreUnreachable, match="all 1 connections were in use for 0.05 s"):
            async with store.write():
                pass
    await store.close()


async def test_a_user_without_rights_is_told_so(postgres: PostgresServer, postgres_url: str) -> None:
    role = f"bongsu_test_{new_id().hex[-12:]}"
    with psycopg.connect(postgres_url, autocommit=True) as operator:
        operator.execute(f"CREATE ROLE {role} LOGIN")
        operator.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    try:
        store = on_postgres(re.sub(r"//[^@]*@", f"//{role}@", postgres_url))
        with pytest.raises(StoreRefused, match="permission denied"):
            await migrate(store)
        await store.close()
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as operator:
            operator.execute(f"DROP ROLE {role}")


async def test_a_table_locked_by_others_is_busy_for_single_statements_and_loads(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STATEMENT_TIMEOUT_SECONDS", 0.2)
    store = on_postgres(postgres_url)
    await migrate(store)
    with psycopg.connect(postgres_url) as operator:
        operator.execute("LOCK TABLE bongsu_events IN ACCESS EXCLUSIVE MODE")
        for count in (1, statements.LOAD_FROM):
            with pytest.raises(StoreBusy, match="statement timeout"):
                await statements.add_many(store, [Event(event_type="x") for _ in range(count)])
    assert await statements.add_many(store, [Event(event_type="x")]) == [True]
    await store.close()


async def test_without_its_tables_the_store_says_so(postgres_url: str) -> None:
    store = on_postgres(postgres_url)
    with pytest.raises(StoreNotMigrated, match="Run `bongsu migrate`"):
        await number_of_events(store)
    await store.close()


@pytest.mark.parametrize("options", ["connect_timeout=3", "sslmode=bogus"])
def test_options_that_there_are_not_are_refused(options: str) -> None:
    with pytest.raises(BadSettings, match="BONGSU_DATABASE_URL"):
        on_postgres(f"postgresql://u@127.0.0.1/d?{options}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://nobody:wrong@127.0.0.1:1/x",
        "postgresql://no-such-host.invalid/x",
    ],
)
async def test_a_server_that_is_not_there_is_named_without_the_password(url: str) -> None:
    store = on_postgres(url)
    with pytest.raises(StoreUnreachable) as caught:
        await migrate(store)
    assert "wrong" not in str(caught.value)
    assert "BONGSU_DATABASE_URL" in str(caught.value)
    await store.close()


async def test_a_database_that_does_not_exist_is_named(postgres: PostgresServer) -> None:
    store = on_postgres(postgres.url.rsplit("/", 1)[0] + "/no_such_database")
    with pytest.raises(StoreUnreachable, match="no_such_database"):
        await migrate(store)
    await store.close()


# --- SQLite -----------------------------------------------------------------------------------------------------------


def _write_many(settings: Settings, count: int) -> None:
    async def work() -> None:
        store = Store.open(settings)
        for _ in range(count):
            await add(store, Event(event_type="x"))
        await store.close()

    asyncio.run(work())


async def test_several_processes_write_to_one_file(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    store = Store.open(settings)
    await migrate(store)
    processes = [forks.Process(target=_write_many, args=(settings, 50)) for _ in range(4)]
    for process in processes:
        process.start()
    await asyncio.gather(*(add(store, Event(event_type="x")) for _ in range(50)))
    for process in processes:
        await asyncio.to_thread(process.join)
    assert [process.exitcode for process in processes] == [0] * 4
    assert await number_of_events(store) == 250
    await store.close()


async def test_a_file_that_stays_locked_is_named_and_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_MILLISECONDS", 10)
    store = Store.open(Settings(data_dir=tmp_path))
    await migrate(store)
    rival = sqlite3.connect(tmp_path / "bongsu.db", isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="locked"):
        await add(store, Event(event_type="x"))
    rival.execute("COMMIT")
    rival.close()
    await add(store, Event(event_type="x", event_id=new_id()))
    assert await number_of_events(store) == 1
    await store.close()


async def test_the_file_is_in_wal_mode_and_commits_are_flushed(tmp_path: Path) -> None:
    store = Store.open(Settings(data_dir=tmp_path))
    async with store.write() as tx:
        assert (await tx.execute(text("PRAGMA journal_mode"))).scalar() == "wal"
        assert (await tx.execute(text("PRAGMA synchronous"))).scalar() == 2
    await store.close()


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "bongsu.db").write_text("a letter, perhaps" * 100)
    store = Store.open(Settings(data_dir=tmp_path))
    with pytest.raises(StoreDamaged, match="not a database"):
        await migrate(store)
    await store.close()


async def test_a_reader_cannot_write(tmp_path: Path) -> None:
    store = Store.open(Settings(data_dir=tmp_path))
    await migrate(store)
    with pytest.raises(Exception, match="readonly"):
        async with store.read() as connection:
            await statements.add(connection, [Event(event_type="x")])
    await store.close()


async def test_a_place_where_no_file_can_be_made_is_named() -> None:
    store = Store.open(Settings(data_dir=Path("/proc/nowhere"), database_url="sqlite:////proc/bongsu.db"))
    with pytest.raises(StoreUnreachable, match="SQLite at /proc/bongsu.db"):
        await migrate(store)
    await store.close()
