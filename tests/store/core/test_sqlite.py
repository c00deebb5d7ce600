"""SQLite's connections: one writer among several processes, readers that cannot write, a file that may be full or locked."""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bongsu.errors import StoreBusy, StoreDamaged, StoreUnreachable
from bongsu.model import Event
from bongsu.settings import Settings
from bongsu.store import Share, Store, Table, migrate, outbox
from bongsu.store.core import sqlite
from bongsu.store.core.dead_claims import release_dead_claims
from bongsu.store.core.query import in_both, same
from tests.store.core.limits import limit
from tests.store.core.test_transactions import ADD, add, is_nothing_open, members
from tests.support.processes import forks


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store.open(Settings(data_dir=tmp_path))
    await migrate(store)
    yield store
    await store.close()


def _write_many(settings: Settings, name: str, count: int) -> None:
    async def work() -> None:
        store = Store.open(settings)
        for number in range(count):
            await add(store, f"{name}-{number}")
        await store.close()

    asyncio.run(work())


async def test_several_processes_write_to_one_file(store: Store, tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    processes = [forks.Process(target=_write_many, args=(settings, str(number), 50)) for number in range(4)]
    for process in processes:
        process.start()
    await asyncio.gather(*(add(store, f"own-{number}") for number in range(50)))
    for process in processes:
        await asyncio.to_thread(process.join)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(await members(store)) == 250


async def test_a_file_that_stays_locked_is_named_and_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_MILLISECONDS", 10)
    limit(monkeypatch, Share.WORK, lock_seconds=0.05)
    store = Store.open(Settings(data_dir=tmp_path))
    await migrate(store)
    rival = sqlite3.connect(tmp_path / "bongsu.db", isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="locked"):
        await add(store, "a")
    rival.execute("COMMIT")
    rival.close()
    await add(store, "b")
    assert await members(store) == ["b"]
    await store.close()


@pytest.mark.parametrize("how", ["transaction", "single"])
async def test_a_writer_that_finds_the_file_locked_queues_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_MILLISECONDS", 100)
    store = Store.open(Settings(data_dir=tmp_path))
    await migrate(store)
    rival = sqlite3.connect(tmp_path / "bongsu.db", isolation_level=None, check_same_thread=False)
    rival.execute("BEGIN IMMEDIATE")
    # Longer than SQLite waits by itself, shorter than we do.
    end = threading.Timer(0.25, rival.execute, ["COMMIT"])
    end.start()
    async with store.transaction() if how == "transaction" else store.single() as tx:
        await tx.execute(ADD("a"))
    end.join()
    rival.close()
    assert await members(store) == ["a"]
    await store.close()


@pytest.mark.parametrize("how", ["transaction", "single"])
async def test_a_commit_that_failed_leaves_nothing_and_the_next_is_whole(store: Store, tmp_path: Path, how: str) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No room for one page more in the file that commits are written to.
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "bongsu.db-wal").stat().st_size + 2000, limits[1]))
    try:
        with pytest.raises(StoreDamaged):
            async with store.transaction() if how == "transaction" else store.single() as tx:
                await tx.execute(ADD("lost"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert await is_nothing_open(store)
    await add(store, "kept")
    other = sqlite3.connect(tmp_path / "bongsu.db")
    assert other.execute("SELECT member_id FROM bongsu_members").fetchall() == [("kept",)]
    other.close()


async def test_the_file_is_in_wal_mode_and_commits_are_flushed(store: Store) -> None:
    async with store.single() as tx:
        [mode] = await tx.fetch(same("PRAGMA journal_mode")())
        [synchronous] = await tx.fetch(same("PRAGMA synchronous")())
    assert (mode["journal_mode"], synchronous["synchronous"]) == ("wal", 2)


async def test_a_text_that_is_no_utf8_does_not_make_its_batch_unreadable(store: Store, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "bongsu.db")
    with other:
        other.execute("INSERT INTO bongsu_members (member_id) VALUES (CAST(x'ff61' AS text)), ('b')")
    other.close()
    assert await members(store) == ["b", "\ufffda"]


async def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "bongsu.db").write_text("a letter, perhaps" * 100)
    store = Store.open(Settings(data_dir=tmp_path))
    with pytest.raises(StoreDamaged, match="not a database"):
        await migrate(store)
    await store.close()


async def test_a_reader_cannot_write(store: Store) -> None:
    with pytest.raises(Exception, match="readonly"):
        async with store.read() as tx:
            await tx.execute(ADD("a"))


async def test_readers_that_are_all_in_use_are_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, Share.WORK, wait_seconds=0.05)
    async with AsyncExitStack() as stack:
        for _ in range(sqlite.READERS):
            await stack.enter_async_context(store.read())
        with pytest.raises(StoreBusy, match="all 4 readers were in use for 0.05 s"):
            await members(store)
        # Operators have their own.
        assert await members(store.share(Share.OPERATORS)) == []
    assert await members(store) == []


async def test_a_member_call_does_not_wait_long_for_its_turn(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, Share.MEMBERS, wait_seconds=0.05)
    async with store.transaction():
        with pytest.raises(StoreBusy, match="others were writing for 0.05 s"):
            await add(store.share(Share.MEMBERS), "a")
    await add(store.share(Share.MEMBERS), "b")
    assert await members(store) == ["b"]


async def test_a_place_where_no_file_can_be_made_is_named() -> None:
    store = Store.open(Settings(data_dir=Path("/proc/nowhere"), database_url="sqlite:////proc/bongsu.db"))
    with pytest.raises(StoreUnreachable, match="SQLite at /proc/bongsu.db"):
        await migrate(store)
    await store.close()


async def test_a_closed_store_refuses_instead_of_hanging(tmp_path: Path) -> None:
    store = Store.open(Settings(data_dir=tmp_path))
    await migrate(store)
    with pytest.raises(StoreUnreachable, match="closed"):
        async with store.transaction() as tx:
            await tx.execute(ADD("a"))
            await store.close()
            await tx.execute(ADD("b"))
    for opened in (store.transaction, store.single, store.read):
        with pytest.raises(StoreUnreachable, match="closed"):
            async with opened() as tx:
                await tx.fetch(same("SELECT 1")())
    await store.close()


async def test_an_error_in_opening_is_not_replaced_by_one_in_rolling_back(tmp_path: Path) -> None:
    store = Store.open(Settings(database_url=f"sqlite:///{tmp_path}/no/such/folder/bongsu.db"))
    with pytest.raises(StoreUnreachable):
        await add(store, "a")
    await store.close()


async def test_a_cancelled_writer_does_not_wait_for_the_whole_lock(store: Store, tmp_path: Path) -> None:
    rival = sqlite3.connect(tmp_path / "bongsu.db", isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    for opened in (store.transaction, store.single):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), opened() as tx:
                await tx.execute(ADD("a"))
    rival.execute("COMMIT")
    rival.close()
    await add(store, "b")
    assert await members(store) == ["b"]


@pytest.fixture
def rival(store: Store, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another program that holds the write lock."""
    rival = sqlite3.connect(tmp_path / "bongsu.db", isolation_level=None, check_same_thread=False)
    rival.execute("BEGIN IMMEDIATE")
    yield rival
    rival.close()


@pytest.mark.parametrize("share", list(Share))
async def test_nobody_waits_long_for_another_program(
    store: Store, rival: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, share: Share
) -> None:
    """A worker could, but would keep the requests of its process waiting for their turn."""
    monkeypatch.setattr(sqlite, "LOCK_SECONDS", 0.05)
    limit(monkeypatch, share, lock_seconds=3_600)
    with pytest.raises(StoreBusy, match="locked"):
        await add(store.share(share), "a")
    rival.execute("COMMIT")
    await add(store.share(share), "b")
    assert await members(store) == ["b"]


async def test_what_has_waited_for_its_turn_does_not_wait_as_long_again(
    store: Store, rival: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty writers at once: each in its turn finds that the one before has waited in vain, and tries once."""
    tries = 0
    is_over = sqlite.TimeLimits._is_over

    def counted(time_limits: sqlite.TimeLimits) -> bool:
        nonlocal tries
        tries += 1
        return is_over(time_limits)

    monkeypatch.setattr(sqlite.TimeLimits, "_is_over", counted)
    monkeypatch.setattr(sqlite, "LOCK_SECONDS", 4 * sqlite.BUSY_MILLISECONDS / 1000)
    answers = await asyncio.gather(*(add(store, str(number)) for number in range(20)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {StoreBusy}
    # Four or five of the first, and one of each other.
    assert tries < 2 * 20
    rival.execute("COMMIT")


async def test_a_file_that_stays_locked_can_be_given_up(
    store: Store, rival: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOCK_SECONDS", 3_600)
    limit(monkeypatch, Share.WORK, lock_seconds=3_600)
    found = asyncio.Event()
    loop = asyncio.get_running_loop()
    is_over = sqlite.TimeLimits._is_over

    def announced(time_limits: sqlite.TimeLimits) -> bool:
        answer = is_over(time_limits)
        loop.call_soon_threadsafe(found.set)
        return answer

    monkeypatch.setattr(sqlite.TimeLimits, "_is_over", announced)
    assert await store.answers(0.01)
    writing = asyncio.create_task(add(store, "a"))
    await found.wait()
    assert not await store.answers(0.01)
    store.terminate()
    with pytest.raises(StoreUnreachable, match="given up"):
        await writing
    with pytest.raises(StoreUnreachable, match="given up"):
        await add(store, "b")
    rival.execute("COMMIT")
    assert await store.answers(1)


async def test_only_a_process_that_is_alone_releases_claims(tmp_path: Path) -> None:
    store = Store.open(Settings(data_dir=tmp_path))
    await migrate(store)
    await outbox.add_many(store, [Event(event_type="x")])
    async with store.single() as tx:
        assert len(await outbox.claim(tx, 10, 3600, "somebody:1")) == 1
    async with release_dead_claims(store) as released:
        assert released == 1
        async with store.single() as tx:
            assert len(await outbox.claim(tx, 10, 3600, "me:2")) == 1
        # Another process of this machine starts while we are at work.
        async with release_dead_claims(store) as others:
            assert others == 0
    await store.close()


async def test_a_nul_character_is_refused_as_postgresql_refuses_it(store: Store) -> None:
    columns = {"member_id": "text"}
    statement = in_both(lambda d: f"SELECT given.member_id FROM {d.table('given', columns, 1)}")
    async with store.read() as tx:
        with pytest.raises(ValueError, match="NUL"):
            await tx.fetch(statement(Table(columns, [("ab\0cd",)])))
        [row] = await tx.fetch(statement(Table(columns, [("ab\\u0000cd",)])))
    assert row["member_id"] == "ab\\u0000cd"
