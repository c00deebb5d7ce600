"""The rows of running processes: written with each measurement of the skew, removed at the stop, forgotten after a crash."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

from bongsu.clock import skew
from bongsu.clock.skew import FORGET_SECONDS, SEEN_SECONDS, SkewMonitor
from bongsu.runtime.process import process_name
from bongsu.runtime.roles import Role
from bongsu.runtime.telemetry import CLOCK_SKEW
from bongsu.settings import Settings
from bongsu.store import Store, Transaction, migrate
from bongsu.store.core.query import same
from bongsu.store.desk.processes import Process, find_seen, put_process, remove_process, remove_unseen
from tests.support.rows import set_columns

ROLES = frozenset({Role.WORKER, Role.API})

NAMES = same("SELECT name FROM bongsu_processes ORDER BY name")


async def names(store: Store) -> list[str]:
    async with store.read() as tx:
        return [row["name"] for row in await tx.fetch(NAMES())]


async def seen(store: Store) -> list[Process]:
    async with store.read() as tx:
        return await find_seen(tx, SEEN_SECONDS)


async def make_older(tx: Transaction, name: str, seconds: float) -> None:
    await set_columns(tx, "processes", {"name": name}, seen_at=timedelta(seconds=-seconds))


async def put(store: Store, name: str, seconds_ago: float = 0) -> None:
    async with store.transaction() as tx:
        await put_process(tx, name, ["worker"], 0.0)
        await make_older(tx, name, seconds_ago)


async def measured(monitor: SkewMonitor) -> None:
    async with asyncio.timeout(20):
        await monitor.idle.wait()


def set_clock(patch: pytest.MonkeyPatch, ahead: float) -> None:
    """This process's clock is ahead of the store's by that many seconds."""
    right = time.time
    patch.setattr(skew, "time", SimpleNamespace(time=lambda: right() + ahead))


async def test_a_process_has_a_row_with_its_roles_and_skew_until_it_stops(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, 7200)
    monitor = SkewMonitor(store, ROLES)
    await monitor.start()
    await measured(monitor)
    [process] = await seen(store)
    assert (process.name, process.roles) == (process_name(), ("api", "worker"))
    assert process.skew_seconds == pytest.approx(7200, abs=skew.WARN_SECONDS)
    assert CLOCK_SKEW._value.get() == process.skew_seconds
    await monitor.stop()
    assert await names(store) == []
    await monitor.stop()


async def test_each_measurement_replaces_the_row(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = SkewMonitor(store, ROLES)
    set_clock(monkeypatch, 7200)
    await monitor.tick()
    async with store.single() as tx:
        await make_older(tx, process_name(), SEEN_SECONDS + 10)
    assert await seen(store) == []
    set_clock(monkeypatch, -7200)
    await monitor.tick()
    [process] = await seen(store)
    assert process.skew_seconds == pytest.approx(-7200, abs=skew.WARN_SECONDS)
    await monitor.stop()


async def test_processes_not_seen_for_long_are_forgotten_and_before_that_not_listed(store: Store) -> None:
    await put(store, "crashed:1", FORGET_SECONDS + 10)
    await put(store, "crashed:2", FORGET_SECONDS * 100)
    await put(store, "silent:1", FORGET_SECONDS - 60)
    await put(store, "silent:2", SEEN_SECONDS + 10)
    await put(store, "running:1", SEEN_SECONDS - 60)
    monitor = SkewMonitor(store, ROLES)
    await monitor.tick()
    assert await names(store) == sorted([process_name(), "running:1", "silent:1", "silent:2"])
    assert {process.name for process in await seen(store)} == {process_name(), "running:1"}
    async with store.transaction() as tx:
        assert await remove_unseen(tx, SEEN_SECONDS) == 2
    await monitor.stop()
    assert await names(store) == ["running:1"]


async def test_the_largest_skew_is_listed_first_whatever_its_sign(store: Store) -> None:
    async with store.transaction() as tx:
        for name, seconds in (("a:1", 0.5), ("b:1", -3.25), ("c:1", 2.0), ("d:1", 0.5)):
            await put_process(tx, name, ["clock"], seconds)
    assert [(process.name, process.skew_seconds) for process in await seen(store)] == [
        ("b:1", -3.25),
        ("c:1", 2.0),
        ("a:1", 0.5),
        ("d:1", 0.5),
    ]


async def test_one_process_is_removed_and_no_other(store: Store) -> None:
    await put(store, "a:1")
    await put(store, "a:12")
    async with store.transaction() as tx:
        await remove_process(tx, "a:1")
        await remove_process(tx, "none:1")
    assert await names(store) == ["a:12"]


async def test_forgetting_waits_for_no_process_that_comes_back(migrated_postgres_url: str) -> None:
    """Two that were away for long would otherwise wait for each other's rows. SQLite has one writer."""
    store = Store.open(Settings(database_url=migrated_postgres_url))
    await migrate(store)
    await put(store, "away:1", FORGET_SECONDS * 2)
    await put(store, "away:2", FORGET_SECONDS * 2)
    async with asyncio.timeout(10), store.transaction() as first, store.transaction() as second:
        await put_process(first, "away:1", ["worker"], 0.0)
        await put_process(second, "away:2", ["worker"], 0.0)
        assert await remove_unseen(first, FORGET_SECONDS) == 0
        assert await remove_unseen(second, FORGET_SECONDS) == 0
    assert await names(store) == ["away:1", "away:2"]
    await store.close()


async def test_a_stop_does_not_wait_long_for_a_locked_row(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skew, "REMOVE_SECONDS", 0.1)
    monitor = SkewMonitor(store, ROLES)
    await monitor.start()
    await measured(monitor)
    other = Store.open(settings)
    # Half of what a statement of this share may wait for a lock.
    async with asyncio.timeout(10), other.transaction() as tx:
        await make_older(tx, process_name(), 1.0)
        await monitor.stop()
        # It has ended while the row was locked, and so without removing it.
        assert await names(store) == [process_name()]
    await other.close()


async def test_a_stop_without_a_store_raises_nothing(store: Store) -> None:
    await SkewMonitor(store, ROLES).stop()
    monitor = SkewMonitor(store, ROLES)
    await monitor.start()
    await measured(monitor)
    await store.close()
    await monitor.stop()
