"""PostgreSQL's connections: kept for the next, closed when lost or idle, bounded for each share; its errors translated."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from bongsu.errors import (
    BadSettings,
    StoreBusy,
    StoreLoginRefused,
    StoreNotMigrated,
    StoreRefused,
    StoreTooSlow,
    StoreUnreachable,
)
from bongsu.model import new_id
from bongsu.settings import Settings
from bongsu.store import Share, Store, Transaction, migrate
from bongsu.store.core import postgres
from bongsu.store.core.failures import translated
from bongsu.store.core.query import same
from tests.conftest import KEYS
from tests.store.core.limits import limit
from tests.store.core.test_transactions import ADD, MEMBERS, add, is_nothing_open, members
from tests.support.servers import PostgresServer, start_postgres
from tests.support.waiting import until_asleep

PROCESS = same("SELECT pg_backend_pid() AS process")
SLEEP = same("SELECT pg_sleep($1)")


def opened(url: str) -> Store:
    return Store.open(Settings(database_url=url, **KEYS))


@pytest.fixture
async def store(migrated_postgres_url: str) -> AsyncIterator[Store]:
    store = opened(migrated_postgres_url)
    await migrate(store)
    yield store
    await store.close()


async def process_of(tx: Transaction) -> int:
    return int((await tx.fetch(PROCESS()))[0]["process"])


async def ask(store: Store) -> int:
    async with store.read() as tx:
        return await process_of(tx)


def open_connections(url: str) -> int:
    with psycopg.connect(url) as operator:
        found = operator.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'bongsu%' AND datname = current_database()"
        ).fetchone()
    assert found is not None
    return int(found[0])


async def until_open(url: str, count: int) -> None:
    async with asyncio.timeout(20):
        while await asyncio.to_thread(open_connections, url) != count:
            await asyncio.sleep(0.02)


def end_process(url: str, process: int) -> None:
    with psycopg.connect(url, autocommit=True) as operator:
        operator.execute("SELECT pg_terminate_backend(%s, 10000)", [process])


# --- the pool ---------------------------------------------------------------------------------------------------------


async def test_the_connection_used_last_is_used_next(store: Store) -> None:
    async with store.read() as one, store.read() as other:
        processes = [await process_of(one), await process_of(other)]
    # The second was given back first.
    assert [await ask(store) for _ in range(3)] == [processes[0]] * 3


async def test_idle_connections_are_released(migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "IDLE_SECONDS", 0.2)
    store = opened(migrated_postgres_url)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(store.read())
        assert open_connections(migrated_postgres_url) == 4
    await until_open(migrated_postgres_url, 0)
    await ask(store)
    await store.close()
    await until_open(migrated_postgres_url, 0)


async def test_a_share_that_is_used_up_leaves_the_others_theirs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, Share.MEMBERS, connections=1, wait_seconds=0.05)
    callers = store.share(Share.MEMBERS)
    async with callers.read():
        with pytest.raises(StoreBusy, match="all 1 connections for this were in use for 0.05 s"):
            async with callers.read():
                pass
        for share in (Share.INGEST, Share.WORK):
            assert await ask(store.share(share))


async def test_a_member_call_does_not_wait_long_for_a_lock(
    store: Store, migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, Share.MEMBERS, lock_seconds=0.1)
    with psycopg.connect(migrated_postgres_url) as operator:
        operator.execute("LOCK TABLE bongsu_members IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreBusy, match="lock timeout"):
            await members(store.share(Share.MEMBERS))
    assert await members(store.share(Share.MEMBERS)) == []


async def test_a_caller_that_waits_gets_the_next_connection_given_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, Share.MEMBERS, connections=2)
    store = store.share(Share.MEMBERS)
    async with contextlib.AsyncExitStack() as stack:
        processes = [await process_of(await stack.enter_async_context(store.read())) for _ in range(2)]
        waiting = asyncio.create_task(ask(store))
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting in processes


# --- connections that are lost ----------------------------------------------------------------------------------------


async def test_a_connection_that_died_while_idle_is_replaced(store: Store, migrated_postgres_url: str) -> None:
    process = await ask(store)
    end_process(migrated_postgres_url, process)
    # asyncpg learns of it from its socket; until then a statement may still fail once, as the store's fault.
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(StoreUnreachable):
                if await ask(store) != process:
                    break


async def test_a_connection_lost_in_a_transaction_is_the_stores_fault_and_stores_nothing(
    store: Store, migrated_postgres_url: str
) -> None:
    with pytest.raises(StoreUnreachable):
        async with store.transaction() as tx:
            await tx.execute(ADD("a"))
            process = await process_of(tx)
            end_process(migrated_postgres_url, process)
            await tx.execute(ADD("b"))
    assert await members(store) == []
    assert await ask(store) != process


async def test_a_connection_lost_before_the_commit_is_the_stores_fault(store: Store, migrated_postgres_url: str) -> None:
    with pytest.raises(StoreUnreachable):
        async with store.transaction() as tx:
            await tx.execute(ADD("a"))
            await asyncio.to_thread(end_process, migrated_postgres_url, await process_of(tx))
    assert await members(store) == []


@pytest.mark.parametrize("times", [1, 2])
async def test_a_cancelled_connection_is_not_used_again(store: Store, migrated_postgres_url: str, times: int) -> None:
    """The server may still be at work on what nobody waits for."""
    process = await ask(store)

    async def hang() -> None:
        async with store.transaction() as tx:
            await tx.fetch(SLEEP(20.0))

    task = asyncio.create_task(hang())
    await until_asleep(migrated_postgres_url)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ask(store) != process


async def test_callers_that_give_up_at_any_moment_leave_the_pool_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, Share.MEMBERS, connections=4)
    store = store.share(Share.MEMBERS)
    dice = random.Random(7)

    async def give_up_some_time() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(dice.choice([0, 0.001, 0.005, 0.02])):
                async with store.transaction() as tx:
                    await tx.fetch(SLEEP(0.003))

    await asyncio.gather(*(give_up_some_time() for _ in range(60)))
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            tx = await stack.enter_async_context(store.read())
            [row] = await tx.fetch(same("SELECT txid_current_if_assigned() AS number")())
            assert row["number"] is None
    assert await is_nothing_open(store)


async def test_a_swallowed_error_does_not_look_like_success(store: Store) -> None:
    with pytest.raises(AssertionError, match="swallowed"):
        async with store.transaction() as tx:
            await tx.execute(ADD("a"))
            with pytest.raises(asyncpg.PostgresError):
                await tx.fetch(same("SELECT 1 / 0")())
    assert await members(store) == []
    assert await is_nothing_open(store)


@pytest.fixture(scope="module")
def private_postgres() -> Iterator[PostgresServer]:
    server = start_postgres()
    yield server
    server.stop()


async def test_a_restarted_server_is_found_again(private_postgres: PostgresServer) -> None:
    store = opened(private_postgres.create_database())
    await migrate(store)
    await add(store, "before")
    await asyncio.to_thread(private_postgres.crash)
    with pytest.raises(StoreUnreachable, match=r"PostgreSQL at 127.0.0.1:\d+.*Start the database"):
        await add(store, "while away")
    assert not await store.answers(1)
    await asyncio.to_thread(private_postgres.start)
    assert await store.answers(10)
    await add(store, "since")
    assert await members(store) == ["before", "since"]
    await store.close()


async def test_a_terminated_store_fails_what_waits_and_what_comes(store: Store, migrated_postgres_url: str) -> None:
    async def hang() -> None:
        async with store.transaction() as tx:
            await tx.fetch(SLEEP(20.0))

    task = asyncio.create_task(hang())
    await until_asleep(migrated_postgres_url)
    store.terminate()
    with pytest.raises(StoreUnreachable):
        await task
    with pytest.raises(StoreUnreachable, match="closed"):
        await ask(store)


async def test_a_server_that_refuses_has_answered(store: Store, migrated_postgres_url: str) -> None:
    """With every slot taken, or a password changed, connections that are open still work: the server is not silent."""
    assert await store.answers(10)
    assert await opened(migrated_postgres_url.rsplit("/", 1)[0] + "/no_such_database").answers(10)
    assert not await opened("postgresql://u@127.0.0.1:1/x").answers(1)


def connections_to(server: socket.socket) -> int:
    """How many were made so far. Nobody has accepted them."""
    server.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


async def test_callers_of_a_silent_server_do_not_queue_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "CONNECT_SECONDS", 0.3)
    limit(monkeypatch, Share.MEMBERS, connections=2, wait_seconds=0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_store = opened(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/x").share(Share.MEMBERS)
        results = await asyncio.gather(*(ask(silent_store) for _ in range(20)), return_exceptions=True)
        assert all(isinstance(one, StoreUnreachable | StoreBusy) for one in results), results
        # They wait for the first attempts together; one after the other, each would make its own.
        assert connections_to(silent) < 20
        await silent_store.close()


async def test_a_missing_root_certificate_is_a_setting_to_correct(
    migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = opened(f"{migrated_postgres_url}?sslmode=verify-full")
    with pytest.raises(BadSettings):
        await ask(store)
    await store.close()


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (asyncpg.InternalClientError("got result for unknown protocol state 3"), StoreUnreachable),
        (asyncpg.InterfaceError("connection is closed"), StoreUnreachable),
        (asyncpg.InterfaceError("pool is closing"), StoreUnreachable),
        (asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"), StoreUnreachable),
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), StoreUnreachable),
        (asyncpg.CannotConnectNowError("the database system is starting up"), StoreUnreachable),
        (asyncpg.DiskFullError("could not extend file"), StoreUnreachable),
        (asyncpg.InternalServerError("could not write init file"), StoreUnreachable),
        (asyncpg.IdleInTransactionSessionTimeoutError("terminating connection"), StoreUnreachable),
        (asyncpg.DeadlockDetectedError("deadlock detected"), StoreBusy),
        (asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction"), StoreRefused),
        (asyncpg.InvalidPasswordError("password authentication failed"), StoreLoginRefused),
        (ConnectionResetError("reset by peer"), StoreUnreachable),
        (TimeoutError(), StoreUnreachable),
    ],
)
def test_every_way_in_which_a_server_can_vanish_is_the_stores_fault(error: Exception, ours: type[Exception]) -> None:
    with pytest.raises(ours), translated("PostgreSQL"):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InterfaceError("the server expects 1 argument"),
        asyncpg.UndefinedColumnError("x"),
        asyncpg.UniqueViolationError("x"),
    ],
)
def test_what_is_wrong_with_a_statement_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)), translated("PostgreSQL"):
        raise error


async def test_a_statement_that_hangs_is_ended(migrated_postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "STATEMENT_SECONDS", 1)
    store = opened(migrated_postgres_url)
    with pytest.raises(StoreTooSlow, match="statement timeout"):
        async with store.transaction() as tx:
            await tx.fetch(SLEEP(60.0))
    await store.close()


async def test_a_user_without_rights_is_refused_with_the_cure(postgres: PostgresServer, migrated_postgres_url: str) -> None:
    role = f"bongsu_test_{new_id().hex[-12:]}"
    with psycopg.connect(migrated_postgres_url, autocommit=True) as operator:
        operator.execute(f"CREATE ROLE {role} LOGIN")
        operator.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    try:
        store = opened(re.sub(r"//[^@]*@", f"//{role}@", migrated_postgres_url))
        with pytest.raises(StoreRefused, match="permission denied"):
            await migrate(store)
        await store.close()
    finally:
        with psycopg.connect(migrated_postgres_url, autocommit=True) as operator:
            operator.execute(f"DROP ROLE {role}")


async def test_without_its_tables_the_store_names_the_cure(postgres_url: str) -> None:
    store = opened(postgres_url)
    with pytest.raises(StoreNotMigrated, match="Run `bongsu migrate`"):
        async with store.read() as tx:
            await tx.fetch(MEMBERS())
    await store.close()


@pytest.mark.parametrize("options", ["connect_timeout=3", "sslmode=bogus"])
def test_unknown_options_of_the_url_are_refused(options: str) -> None:
    with pytest.raises(BadSettings, match="BONGSU_DATABASE_URL"):
        opened(f"postgresql://u@127.0.0.1/d?{options}")


@pytest.mark.parametrize(
    "url",
    ["postgresql://nobody:wrong@127.0.0.1:1/x", "postgresql://no-such-host.invalid/x"],
)
async def test_a_server_that_is_not_there_is_named_without_the_password(url: str) -> None:
    store = opened(url)
    with pytest.raises(StoreUnreachable) as caught:
        await migrate(store)
    assert "wrong" not in str(caught.value)
    assert "BONGSU_DATABASE_URL" in str(caught.value)
    await store.close()


async def test_a_database_that_does_not_exist_is_named(postgres: PostgresServer) -> None:
    store = opened(postgres.url.rsplit("/", 1)[0] + "/no_such_database")
    with pytest.raises(StoreLoginRefused, match="no_such_database"):
        await migrate(store)
    await store.close()
