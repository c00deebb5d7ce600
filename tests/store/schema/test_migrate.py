"""Migrations: once, from many processes at once, never onto a store of the future."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

import bongsu.store
from bongsu.errors import StoreNotMigrated, StoreTooNew
from bongsu.model import new_id
from bongsu.settings import Settings
from bongsu.store import Store, check, migrate
from bongsu.store.core.query import same
from bongsu.store.schema import upgrade
from bongsu.store.schema.migrate import HEAD
from tests.support.notifications import NOON
from tests.support.processes import forks


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
        await tx.execute(same("UPDATE bongsu_version SET version_num = '9999'")())
    for attempt in (check, migrate):
        with pytest.raises(StoreTooNew, match="revision 9999, this Bongsu knows"):
            await attempt(store)
    async with store.read() as tx:
        [row] = await tx.fetch(same("SELECT version_num FROM bongsu_version")())
    assert row["version_num"] == "9999"


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


def test_the_head_we_name_is_the_head_there_is() -> None:
    assert ScriptDirectory.from_config(migrations()).get_heads() == [HEAD]


def _apply_until(revision: str) -> Callable[[Connection], None]:
    def apply(connection: Connection) -> None:
        config = migrations()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    return apply


async def test_when_messages_were_last_used_before_the_migration_is_kept(
    empty: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = NOON, NOON + timedelta(days=3)
    with monkeypatch.context() as patch:
        patch.setattr(upgrade, "_run_alembic", _apply_until("0004"))
        await upgrade.upgrade(empty)
    add_message = same("""
        INSERT INTO bongsu_messages (event_id, notice, locale, type, subject, title, body, data, channels, lane, guarantee,
                                     is_critical, is_told, created_at)
        VALUES ($1, 0, 'ko', 'T', 's', 't', 'b', '{}', 8, 1, 'at_most_once', false, $2, $3)""")
    add_notification = same("""
        INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at) VALUES ($1, 1, 8, $2)""")
    async with empty.transaction() as tx:
        await tx.execute(
            add_message(new_id(), True, first),
            add_message(new_id(), False, first),
            *(add_notification(member_id, at) for member_id, at in (("a", first), ("b", last), ("c", first))),
        )
    assert await migrate(empty) == ("0004", HEAD)
    async with empty.read() as tx:
        rows = await tx.fetch(same("SELECT told_at FROM bongsu_messages ORDER BY message_id")())
    assert [row["told_at"] and empty.dialect.time(row["told_at"]) for row in rows] == [last, None]
    await empty.close()


async def test_what_is_not_in_the_inbox_no_longer_counts_as_unread(empty: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(upgrade, "_run_alembic", _apply_until("0005"))
        await upgrade.upgrade(empty)
    add_member = same("INSERT INTO bongsu_members (member_id, unread) VALUES ($1, $2)")
    add_notification = same("""
        INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at, read_at)
        VALUES ($1, $2, $3, $4, $5)""")
    async with empty.transaction() as tx:
        await tx.execute(
            add_member("a", 3),
            add_member("b", 1),
            # In the inbox, two by SMS alone, and another that was read.
            *(add_notification("a", number, channels, NOON, None) for number, channels in enumerate((9, 2, 2))),
            add_notification("a", 3, 2, NOON, NOON),
            add_notification("b", 4, 8, NOON, None),
        )
    assert await migrate(empty) == ("0005", HEAD)
    async with empty.read() as tx:
        rows = await tx.fetch(same("SELECT member_id, unread FROM bongsu_members ORDER BY member_id")())
    assert [tuple(row) for row in rows] == [("a", 1), ("b", 1)]
    await empty.close()
