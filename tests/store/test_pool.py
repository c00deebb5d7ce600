"""Connections are kept for the next, given up when they are lost, and never more than there may be."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.errors import StoreUnreachable
from bongsu.settings import Settings
from bongsu.store import Store, engine, pulse
from bongsu.store.postgres import POSTGRES
from bongsu.store.sqlite import SQLITE
from tests.conftest import KEYS

MOST, KEPT = 4, 2


@pytest.fixture
async def small(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """Few connections, on PostgreSQL, where one can be told from another."""
    monkeypatch.setattr(engine, "POOL_SIZE", KEPT)
    monkeypatch.setattr(engine, "POOL_OVERFLOW", MOST - KEPT)
    store = Store.open(Settings(database_url=postgres_url, **KEYS))
    yield store
    await store.close()


async def process_of(connection: AsyncConnection) -> int:
    return int((await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one())


async def ask(store: Store) -> int:
    async with store.read() as connection:
        return await process_of(connection)


def open_connections(url: str) -> int:
    with psycopg.connect(url) as operator:
        found = operator.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bongsu' AND datname = current_database()"
        ).fetchone()
    assert found is not None
    return int(found[0])


async def test_the_one_that_was_used_last_is_used_next(small: Store) -> None:
    async with small.read() as one, small.read() as other:
        processes = [await process_of(one), await process_of(other)]
    # The second was given back first.
    assert [await ask(small) for _ in range(3)] == [processes[0]] * 3


async def test_some_stay_open_and_all_end_with_the_store(small: Store, postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MOST):
            await stack.enter_async_context(small.read())
        assert open_connections(postgres_url) == MOST
    async with asyncio.timeout(20):
        while open_connections(postgres_url) > KEPT:
            await asyncio.sleep(0.01)
    assert open_connections(postgres_url) == KEPT
    async with small.read():
        await small.close()
    async with asyncio.timeout(20):
        while open_connections(postgres_url):
            await asyncio.sleep(0.01)


async def test_who_waits_gets_the_next_that_is_given_back(small: Store) -> None:
    async with contextlib.AsyncExitStack() as stack:
        processes = [await process_of(await stack.enter_async_context(small.read())) for _ in range(MOST)]
        waiting = asyncio.create_task(ask(small))
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await waiting in processes


@pytest.mark.parametrize("is_asked", [False, True])
async def test_one_that_died_while_it_rested_is_replaced(
    small: Store, postgres_url: str, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    """Found out because it has hung up, or because it was asked after a long rest."""
    process = await ask(small)
    if is_asked:
        monkeypatch.setattr(pulse, "LONG_REST_SECONDS", 0.0)
        monkeypatch.setattr(pulse, "_was_spoken_to", lambda _driver: False)
        assert await ask(small) == process
    with psycopg.connect(postgres_url, autocommit=True) as operator:
        operator.execute("SELECT pg_terminate_backend(%s, 10000)", [process])
    assert await ask(small) != process


async def test_one_that_was_lost_in_use_is_not_used_again(small: Store, postgres_url: str) -> None:
    with pytest.raises(StoreUnreachable):
        async with small.read() as connection:
            process = await process_of(connection)
            with psycopg.connect(postgres_url, autocommit=True) as operator:
                operator.execute("SELECT pg_terminate_backend(%s, 10000)", [process])
            await process_of(connection)
    assert await ask(small) != process


async def test_one_that_the_driver_gave_up_in_use_is_the_stores_fault_and_nobodys_next(small: Store) -> None:
    with pytest.raises(StoreUnreachable):
        async with small.read() as connection:
            process = await process_of(connection)
            POSTGRES.driver(connection).terminate()
            await POSTGRES.driver(connection).fetch("SELECT 1")
    assert await ask(small) != process


async def test_when_one_does_not_answer_the_others_are_not_asked(small: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has gone silent would be waited for as often as there are connections."""
    async with small.read() as one, small.read() as other:
        processes = {await process_of(one), await process_of(other)}
    asked = 0

    async def is_silent(_connection: AsyncConnection, _rested_seconds: float) -> bool:
        nonlocal asked
        asked += 1
        return False

    monkeypatch.setattr(small._reader, "_lives", is_silent)
    assert await ask(small) not in processes
    assert asked == 1


@pytest.mark.parametrize("often", [1, 2])
async def test_one_that_was_cancelled_on_is_not_used_again(small: Store, often: int) -> None:
    """The server may still be at work on what nobody waits for."""
    process = await ask(small)

    async def hang() -> None:
        async with small.write() as tx:
            await POSTGRES.driver(tx).fetch("SELECT pg_sleep(20)")

    task = asyncio.create_task(hang())
    await asyncio.sleep(0.05)
    for _ in range(often):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ask(small) != process


async def test_whoever_gives_up_leaves_room_for_the_others(small: Store) -> None:
    """Asked by many and cancelled at any moment, as requests are whose clients hang up."""
    dice = random.Random(7)

    async def give_up_some_time() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(dice.choice([0, 0.001, 0.005, 0.02])):
                async with small.write() as tx:
                    await tx.execute(text("SELECT pg_sleep(0.003)"))

    await asyncio.gather(*(give_up_some_time() for _ in range(60)))
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MOST):
            connection = await stack.enter_async_context(small.read())
            # Nothing that was cancelled is under way or begun on it.
            assert (await connection.execute(text("SELECT txid_current_if_assigned()"))).scalar_one() is None


async def test_one_with_a_transaction_open_is_not_used_again(store: Store) -> None:
    async with store.read() as connection:
        await connection.exec_driver_sql("BEGIN")
        await connection.execute(text("SELECT count(*) FROM bongsu_members"))
    async with store.read() as another:
        assert another is not connection
        assert store.dialect.is_sound(another)


async def test_a_transaction_cancelled_within_a_statement_is_over(store: Store) -> None:
    """Nothing of it keeps the next from writing, whoever still knows of it."""
    inside, may_end = threading.Event(), threading.Event()

    def hold() -> int:
        inside.set()
        return int(may_end.wait(20))

    async def hang() -> None:
        async with store.write() as tx:
            await tx.execute(text("INSERT INTO bongsu_members (member_id) VALUES ('m-1')"))
            if store.dialect is POSTGRES:
                asyncio.get_running_loop().call_soon(inside.set)
                await tx.execute(text("SELECT pg_sleep(20)"))
            else:
                await SQLITE.driver(tx).create_function("hold", 0, hold)
                await tx.execute(text("SELECT hold()"))

    task = asyncio.create_task(hang())
    assert await asyncio.to_thread(inside.wait, 20)
    task.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError) as kept:
        await task
    async with store.write() as tx:
        await tx.execute(text("INSERT INTO bongsu_members (member_id) VALUES ('m-2')"))
    async with store.read() as connection:
        found = await connection.execute(text("SELECT member_id FROM bongsu_members"))
        assert found.scalars().all() == ["m-2"]
    del kept


async def test_what_is_read_next_is_what_was_committed_meanwhile(store: Store) -> None:
    """A connection whose reading was not ended would go on seeing what there was then."""
    for count in range(3):
        async with store.read() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM bongsu_members"))).scalar_one() == count
        async with store.write() as tx:
            await tx.execute(text("INSERT INTO bongsu_members (member_id) VALUES (:one)"), {"one": f"m-{count}"})
