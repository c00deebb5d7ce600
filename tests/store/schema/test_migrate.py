"""Migrations: once, from many processes at once, never onto a store of the future."""

from __future__ import annotations

import asyncio

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

import bongsu.store
from bongsu.errors import StoreNotMigrated, StoreTooNew, StoreTooOld
from bongsu.settings import Settings
from bongsu.store import Store, check, migrate
from bongsu.store.core.query import Statement, same
from bongsu.store.schema import upgrade
from bongsu.store.schema.migrate import FIRST, HEAD
from tests.support.processes import forks
from tests.support.rows import add_suppression


@pytest.fixture
async def empty(settings: Settings) -> Store:
    return Store.open(settings)


async def test_an_empty_store_is_refused_and_then_migrated(empty: Store) -> None:
    with pytest.raises(StoreNotMigrated, match="revision none.*Run `bongsu migrate`"):
        await check(empty)
    assert await migrate(empty) == (None, HEAD)
    await check(empty)
    assert await migrate(empty) == (HEAD, HEAD)
    await empty.close()


async def test_a_store_newer_than_the_code_is_refused_and_left_alone(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.execute(same("UPDATE bongsu_version SET version_num = 'r9999'")())
    for attempt in (check, migrate):
        with pytest.raises(StoreTooNew, match="revision r9999, this Bongsu knows"):
            await attempt(store)
    async with store.read() as tx:
        [row] = await tx.fetch(same("SELECT version_num FROM bongsu_version")())
    assert row["version_num"] == "r9999"


@pytest.mark.parametrize("revision", ["0001", "0011"])
async def test_a_store_from_before_the_first_release_is_refused_and_left_alone(empty: Store, revision: str) -> None:
    create = same("CREATE TABLE bongsu_version (version_num varchar(32) NOT NULL PRIMARY KEY)")
    async with empty.transaction() as tx:
        await tx.execute(create(), same("INSERT INTO bongsu_version VALUES ($1)")(revision))
    for attempt in (check, migrate):
        with pytest.raises(StoreTooOld) as refused:
            await attempt(empty)
        assert f"is at revision {revision}, this Bongsu knows {FIRST} and later" in str(refused.value)
        assert "Start with an empty database" in str(refused.value)
        assert "\n" not in str(refused.value)
    async with empty.read() as tx:
        [row] = await tx.fetch(same("SELECT version_num FROM bongsu_version")())
        tables = await tx.fetch(_TABLES())
    assert row["version_num"] == revision
    assert [table["name"] for table in tables] == ["bongsu_version"]
    await empty.close()


_TABLES = Statement(
    postgres="SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'",
    sqlite="SELECT name FROM sqlite_master WHERE type = 'table'",
)


def _migrate(settings: Settings) -> None:
    async def work() -> None:
        store = Store.open(settings)
        await migrate(store)
        await check(store)
        await store.close()

    asyncio.run(work())


def test_processes_migrating_at_once_are_safe(settings: Settings) -> None:
    processes = [forks.Process(target=_migrate, args=(settings,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4


async def test_a_migration_that_fails_leaves_nothing(empty: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("half way")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="half way"):
        patch.setattr("alembic.runtime.migration.HeadMaintainer.update_to_step", fail)
        await migrate(empty)
    with pytest.raises(StoreNotMigrated):
        await check(empty)
    assert await migrate(empty) == (None, HEAD)
    await empty.close()


def migrations() -> Config:
    config = Config()
    config.set_main_option("script_location", f"{bongsu.store.__path__[0]}/schema/migrations")
    config.set_main_option("path_separator", "os")
    return config


async def test_suppressions_are_kept_when_merged_becomes_a_reason(empty: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite copies the table."""
    run = command.upgrade
    with monkeypatch.context() as older:
        older.setattr(command, "upgrade", lambda config, _: run(config, "r0002"))
        await upgrade.upgrade(empty)
    async with empty.transaction() as tx:
        for member_id in ("a", "b"):
            await add_suppression(tx, 7, member_id)
    await migrate(empty)
    async with empty.transaction() as tx:
        await add_suppression(tx, 7, "c", reason="MERGED")
        rows = await tx.fetch(same("SELECT member_id, reason FROM bongsu_suppressions ORDER BY member_id")())
    assert [tuple(row) for row in rows] == [("a", "DUPLICATE"), ("b", "DUPLICATE"), ("c", "MERGED")]
    await empty.close()


def test_the_migrations_begin_and_end_where_we_name_them() -> None:
    found = ScriptDirectory.from_config(migrations())
    assert found.get_bases() == [FIRST]
    assert found.get_heads() == [HEAD]
