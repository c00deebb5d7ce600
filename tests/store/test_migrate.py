"""Migrations: once, from many processes at once, never onto a store of the future."""

from __future__ import annotations

import asyncio

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import text

import bongsu.store
from bongsu.errors import StoreNotMigrated, StoreTooNew
from bongsu.settings import Settings
from bongsu.store import Store, check, migrate
from bongsu.store.migrate import HEAD
from tests.processes import forks


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
    async with store.write() as tx:
        await tx.execute(text("UPDATE bongsu_version SET version_num = '9999'"))
    for attempt in (check, migrate):
        with pytest.raises(StoreTooNew, match="revision 9999, this Bongsu knows"):
            await attempt(store)
    async with store.read() as connection:
        assert (await connection.execute(text("SELECT version_num FROM bongsu_version"))).scalar() == "9999"


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


def test_the_head_we_name_is_the_head_there_is() -> None:
    config = Config()
    config.set_main_option("script_location", f"{bongsu.store.__path__[0]}/migrations")
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]
