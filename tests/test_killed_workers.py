"""Killing workers at random, at named points and at any other, never loses or doubles an event."""

from __future__ import annotations

import random
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess

import pytest
from sqlalchemy import text

from bongsu.model import Event
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import events as statements
from tests.killed_worker import work
from tests.processes import forks

PROCESSES = 3
EVENTS_AT_FIRST = 300
EVENTS_PER_END = 60
DEATHS = 20


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_workers_lose_nothing_and_double_nothing(store: Store, settings: Settings, seed: int) -> None:
    dice = random.Random(seed)
    short = settings.model_copy(update={"lease_seconds": 0.3, "poll_seconds": 0.02})
    async with store.write() as tx:
        await tx.execute(text("CREATE TABLE effects (event_id text, pid integer)"))
    events = [Event(event_type="test.effect") for _ in range(EVENTS_AT_FIRST)]
    await add(store, events)
    deaths = 0

    def start() -> ForkServerProcess:
        process = forks.Process(target=work, args=(short, dice.randrange(10**9), deaths < DEATHS), daemon=True)
        process.start()
        return process

    living = [start() for _ in range(PROCESSES)]
    while living:
        ended = wait([one.sentinel for one in living], timeout=dice.uniform(0.05, 0.4))
        if not ended and deaths < DEATHS:
            dice.choice(living).kill()  # from outside, wherever it happens to be
        for one in [one for one in living if not one.is_alive()]:
            living.remove(one)
            one.join()
            assert one.exitcode in (0, -9), "a worker ended by itself, neither finished nor killed"
            deaths += one.exitcode == -9
            if deaths < DEATHS:
                more = [Event(event_type="test.effect") for _ in range(EVENTS_PER_END)]
                await add(store, more)
                events += more
            if deaths < DEATHS or one.exitcode != 0:
                living.append(start())

    assert deaths >= DEATHS
    assert await effects(store) == sorted(str(event.event_id) for event in events)
    assert await statuses(store) == {"DONE": len(events)}


async def add(store: Store, events: list[Event]) -> None:
    async with store.write() as tx:
        await statements.add(tx, events)


async def effects(store: Store) -> list[str]:
    async with store.read() as connection:
        return [row[0] for row in await connection.execute(text("SELECT event_id FROM effects ORDER BY event_id"))]


async def statuses(store: Store) -> dict[str, int]:
    async with store.read() as connection:
        rows = await connection.execute(text("SELECT status, count(*) FROM bongsu_events GROUP BY status"))
        return {row[0]: row[1] for row in rows}
