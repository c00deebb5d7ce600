"""A run whose process is killed or stopped, and whose store is restarted: finished once, nobody twice, nobody left out."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from bongsu.clock.runs import Runs
from bongsu.clock.scheduler import Clock
from bongsu.errors import RunLost
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from bongsu.store import runs as statements
from bongsu.store.core.query import same
from bongsu.store.runs import RunRow
from tests.clock.killed_run import ITEMS, LEASE_SECONDS, LOST, MIDDLE, Walker, walk_and_die, walk_and_stop
from tests.support.processes import forks
from tests.support.rows import set_columns
from tests.support.servers import PostgresServer, start_postgres

TYPES = same("SELECT event_type FROM bongsu_events")


async def runs_of(store: Store) -> list[RunRow]:
    async with store.read() as tx:
        return await statements.find_newest(tx, "walk", 10)


async def take_over(store: Store) -> None:
    """As when its lease has ended: a clock finds it and goes on."""
    await set_columns(store, "runs", due=timedelta(seconds=-1))
    await look(store)


async def look(store: Store) -> None:
    clock = Clock(store, [Walker().job], ZoneInfo("UTC"), lease_seconds=LEASE_SECONDS)
    await clock.tick()
    await clock.wait_finished()


async def finished_once(store: Store) -> RunRow:
    """The only run, after it has been through all items once."""
    (run,) = await runs_of(store)
    assert (run.result, run.error, run.done) == (f"{ITEMS} items", None, ITEMS)
    async with store.read() as tx:
        types = [row["event_type"] for row in await tx.fetch(TYPES())]
    assert sorted(types) == sorted(f"item.{item}" for item in range(ITEMS))
    return run


@pytest.mark.parametrize("point", ["in a step", "after a step"])
async def test_a_run_whose_process_is_killed_is_finished_by_another(store: Store, settings: Settings, point: str) -> None:
    process = forks.Process(target=walk_and_die, args=(settings, point))
    process.start()
    await asyncio.to_thread(process.join)
    assert process.exitcode == -signal.SIGKILL
    (left,) = await runs_of(store)
    assert (left.cursor, left.finished_at) == (MIDDLE + (point == "after a step"), None)
    assert left.leased_by.endswith(f":{process.pid}")
    # As long as its lease lasts, nobody else goes on.
    await look(store)
    assert (await runs_of(store))[0].epoch == 1
    await take_over(store)
    run = await finished_once(store)
    assert (run.epoch, run.requested_by, run.leased_by) == (2, "cli:min-ji", f"{left.leased_by.split(':')[0]}:{os.getpid()}")


async def test_a_process_that_was_stopped_for_longer_than_its_lease_writes_nothing(store: Store, settings: Settings) -> None:
    process = forks.Process(target=walk_and_stop, args=(settings,))
    process.start()
    assert process.pid is not None
    while not _is_stopped(process.pid):
        await asyncio.sleep(0.01)
    await take_over(store)
    finished = await finished_once(store)
    os.kill(process.pid, signal.SIGCONT)
    await asyncio.to_thread(process.join)
    assert process.exitcode == LOST
    after = await finished_once(store)
    assert (after.leased_by, after.finished_at, after.epoch) == (finished.leased_by, finished.finished_at, 2)


def _is_stopped(pid: int) -> bool:
    """By the third field of its line, behind its name in brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """One that may be restarted."""
    server = start_postgres()
    yield server
    server.stop()


@pytest.fixture
async def own_store(own_postgres: PostgresServer) -> AsyncIterator[Store]:
    store = Store.open(Settings(database_url=own_postgres.create_database()))
    await migrate(store)
    yield store
    await store.close()


async def test_a_run_survives_restarts_of_the_store(own_postgres: PostgresServer, own_store: Store) -> None:
    restarted: list[str] = []

    def restart(point: str) -> None:
        if point not in restarted:
            restarted.append(point)
            own_postgres.restart()

    # Within the lease: the same process goes on.
    await Runs(own_store, LEASE_SECONDS).run_by_hand(Walker(restart).job, "cli:min-ji")
    assert restarted == ["before a step", "in a step", "after a step"]
    assert (await finished_once(own_store)).epoch == 1


async def test_a_run_survives_an_outage_longer_than_its_lease(own_postgres: PostgresServer, own_store: Store) -> None:
    def crash(point: str) -> None:
        if point == "in a step":
            own_postgres.crash()

    with pytest.raises(RunLost):
        await Runs(own_store, 1.0).run_by_hand(Walker(crash).job, "cli:min-ji")
    own_postgres.start()
    while not (await runs_of(own_store))[0].is_abandoned:
        await asyncio.sleep(0.01)
    await look(own_store)
    assert (await finished_once(own_store)).epoch == 2
