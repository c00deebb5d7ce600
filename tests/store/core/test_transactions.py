"""Transactions end as their blocks do, whatever interrupts them, and no connection is left in the middle of one."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from bongsu.errors import StoreBusy, StoreRolledBack
from bongsu.settings import Settings
from bongsu.store import Store, Transaction
from bongsu.store.core.query import Statement, Table, in_both, same
from tests.support.servers import PostgresServer

ADD = same("INSERT INTO bongsu_members (member_id) VALUES ($1)")
MEMBERS = same("SELECT member_id FROM bongsu_members ORDER BY member_id")
SLOW = Statement(
    postgres="SELECT pg_sleep(60)",
    sqlite="WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT max(i) FROM n",
)
OPEN_TRANSACTIONS = same("""
    SELECT count(*) AS count FROM pg_stat_activity
    WHERE application_name LIKE 'bongsu%' AND datname = current_database() AND state LIKE 'idle in transaction%'""")
COLUMNS = {"member_id": "text", "at": "timestamptz", "event_id": "uuid"}

# From before BEGIN is sent until after COMMIT is.
LONGEST_SECONDS = 0.02


async def members(store: Store) -> list[str]:
    async with store.read() as tx:
        return [row["member_id"] for row in await tx.fetch(MEMBERS())]


async def add(store: Store, *member_ids: str) -> None:
    async with store.transaction() as tx:
        await tx.execute(*(ADD(one) for one in member_ids))


async def is_nothing_open(store: Store) -> bool:
    """On connections of ours to this store."""
    if store.dialect.name == "sqlite":
        database: Any = store.database
        return not await database._writer.run(lambda connection: connection.in_transaction)
    async with store.read() as tx:
        return bool((await tx.fetch(OPEN_TRANSACTIONS()))[0]["count"] == 0)


async def test_execute_returns_how_many_rows_each_query_changed(store: Store) -> None:
    async with store.transaction() as tx:
        counts = await tx.execute(
            ADD("a"),
            ADD("b"),
            same("UPDATE bongsu_members SET unread = $1")(3),
            same("DELETE FROM bongsu_members WHERE false")(),
        )
    assert counts == [1, 1, 2, 0]


async def test_a_statement_that_begins_with_with_is_counted_too(store: Store) -> None:
    async with store.transaction() as tx:
        [count] = await tx.execute(
            same("WITH x AS (SELECT 'a' AS id) INSERT INTO bongsu_members (member_id) SELECT id FROM x")()
        )
    assert count == 1


async def test_parameters_and_tables_arrive_as_they_were_given(store: Store) -> None:
    from datetime import UTC, datetime, timedelta
    from uuid import UUID

    from bongsu.store.core.query import as_uuid

    noon = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    event_id = UUID(int=7)
    statement = in_both(
        lambda d: (
            f"""
        SELECT given.member_id, given.at, given.event_id, CAST($1 AS text) AS before, CAST($3 AS integer) AS behind
        FROM {d.table("given", COLUMNS, 2)} ORDER BY given.member_id"""
        )
    )
    rows = [("가", noon, event_id), ('"b', None, None)]
    async with store.read() as tx:
        found = await tx.fetch(statement("x", Table(COLUMNS, rows), 9))
        assert await tx.fetch(statement("x", Table(COLUMNS, []), 9)) == []
    assert [(row["member_id"], row["before"], row["behind"]) for row in found] == [('"b', "x", 9), ("가", "x", 9)]
    assert store.dialect.time(found[1]["at"]) == noon
    assert as_uuid(found[1]["event_id"]) == event_id
    assert found[0]["at"] is None
    async with store.read() as tx:
        [row] = await tx.fetch(in_both(lambda d: f"SELECT {d.now} AS now, {d.after('$1')} AS later")(90.0))
    assert timedelta(seconds=89) < store.dialect.time(row["later"]) - store.dialect.time(row["now"]) < timedelta(seconds=91)


async def test_a_block_that_raises_is_rolled_back(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        async with store.transaction() as tx:
            await tx.execute(ADD("a"))
            raise ZeroDivisionError
    assert await members(store) == []


async def test_an_empty_block_commits_nothing_and_disturbs_nothing(store: Store) -> None:
    async with store.transaction():
        pass
    await add(store, "a")
    assert await members(store) == ["a"]


async def test_many_writers_at_once_all_get_through(store: Store) -> None:
    await asyncio.gather(*(add(store, f"{number:02}") for number in range(50)))
    assert len(await members(store)) == 50


async def test_a_reader_sees_only_what_was_committed(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.execute(ADD("a"))
        assert await members(store) == []
    assert await members(store) == ["a"]


async def test_a_reader_sees_what_was_committed_since_its_last_statement(store: Store) -> None:
    async with store.read() as tx:
        for count in range(3):
            assert len(await tx.fetch(MEMBERS())) == count
            await add(store, f"m-{count}")


async def test_a_single_statement_is_committed_with_it(store: Store) -> None:
    async with store.single() as tx:
        await tx.fetch(same("INSERT INTO bongsu_members (member_id) VALUES ($1) RETURNING member_id")("a"))
        assert await members(store) == ["a"]


async def test_a_cancelled_block_is_rolled_back_and_the_next_writer_gets_its_turn(store: Store) -> None:
    inside = asyncio.Event()

    async def hang() -> None:
        async with store.transaction() as tx:
            await tx.execute(ADD("a"))
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await add(store, "b")
    assert await members(store) == ["b"]


async def test_a_statement_that_is_cancelled_under_way_leaves_nothing_open(store: Store) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        async with store.transaction() as tx:
            await tx.execute(ADD("a"))
            begun.set()
            await tx.fetch(SLOW())
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await begun.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await is_nothing_open(store)
    await add(store, "b")
    assert await members(store) == ["b"]


async def test_wherever_it_is_cancelled_it_is_whole_and_over(store: Store) -> None:
    dice = random.Random(7)
    finished: set[str] = set()

    async def write_two(number: int) -> None:
        async with store.transaction() as tx:
            await tx.execute(ADD(f"{number}a"))
            await tx.execute(ADD(f"{number}b"))
        finished.update((f"{number}a", f"{number}b"))

    for number in range(60):
        task = asyncio.create_task(write_two(number))
        await asyncio.sleep(dice.uniform(0, LONGEST_SECONDS))
        task.cancel()
        await asyncio.wait({task})
    await write_two(60)
    found = set(await members(store))
    assert finished <= found
    assert all((f"{number}a" in found) == (f"{number}b" in found) for number in range(61))
    assert await is_nothing_open(store)


async def test_a_failed_statement_fails_its_transaction(store: Store) -> None:
    with pytest.raises(Exception, match=r"(?i)unique"):
        await add(store, "a", "a")
    assert await members(store) == []
    assert await is_nothing_open(store)


async def test_every_share_reaches_the_same_store(store: Store) -> None:
    from bongsu.store import Share

    for share in Share:
        await add(store.share(share), share.value)
    assert await members(store) == sorted(Share)


async def test_an_error_of_the_callers_own_is_not_taken_for_the_stores(store: Store) -> None:
    for kind in (BrokenPipeError, TimeoutError):
        for opened in (store.transaction, store.single, store.read):
            with pytest.raises(kind):
                async with opened() as tx:
                    await tx.fetch(MEMBERS())
                    raise kind


# --- rolled back by the database ------------------------------------------------------------------------------------------

_COUNT = same("UPDATE bongsu_members SET unread = unread + 1 WHERE member_id = $1")


@pytest.mark.parametrize("settings", ["postgresql"], indirect=True)
async def test_the_victim_of_a_deadlock_runs_once_more(store: Store, settings: Settings, postgres: PostgresServer) -> None:
    postgres.expect_deadlocks(settings.database_url)
    await add(store, "a", "b")
    attempts: list[str] = []
    have_begun = {"a": asyncio.Event(), "b": asyncio.Event()}
    is_one_done = asyncio.Event()

    async def count_both(first: str, second: str) -> None:
        async def work(tx: Transaction) -> None:
            attempts.append(first)
            if len(attempts) == 3:
                await is_one_done.wait()
            await tx.execute(_COUNT(first))
            have_begun[first].set()
            await have_begun[second].wait()
            await tx.execute(_COUNT(second))

        await store.run(work)
        is_one_done.set()

    async with asyncio.timeout(60):
        await asyncio.gather(count_both("a", "b"), count_both("b", "a"))
    assert len(attempts) == 3
    async with store.read() as tx:
        assert [row["unread"] for row in await tx.fetch(same("SELECT unread FROM bongsu_members")())] == [2, 2]


async def test_work_that_is_rolled_back_again_fails_and_other_errors_are_not_repeated(store: Store) -> None:
    for error, times in ((StoreRolledBack, 2), (StoreBusy, 1), (KeyError, 1)):
        attempts = 0

        async def work(tx: Transaction, error: type[Exception] = error) -> None:
            nonlocal attempts
            attempts += 1
            await tx.execute(ADD("a"))
            raise error("deadlock detected")

        with pytest.raises(error):
            await store.run(work)
        assert attempts == times
    assert await members(store) == []
    assert await is_nothing_open(store)
