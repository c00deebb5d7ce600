"""Killed workers, at named points and at any other, lose and double no recipient; nor do eight concurrent ones."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from bongsu.errors import StoreBusy
from bongsu.model import Event
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from tests.decide.killed_worker import work
from tests.support.decisions import rows
from tests.support.killed_processes import kill_at_random
from tests.support.long_runs import seeds
from tests.support.processes import forks
from tests.support.random_events import DAILY_LIMIT, add_crowd, check_decisions, random_event

# `make chaos` runs many more.
SEEDS = seeds(1)
PROCESSES = 3
EVENTS_AT_FIRST = 60
EVENTS_PER_END = 8
DEATHS = 20

RIVALS = 8
RIVALRY = 200


@pytest.fixture
def short(settings: Settings) -> Settings:
    return settings.model_copy(update={"lease_seconds": 0.5, "poll_seconds": 0.02, "daily_limit": DAILY_LIMIT})


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
async def test_killed_workers_lose_and_double_no_recipient(store: Store, short: Settings, seed: int) -> None:
    dice = random.Random(seed)
    await add_crowd(store)
    events = [random_event(dice) for _ in range(EVENTS_AT_FIRST)]
    await add(store, events)
    deaths = 0
    for deaths in kill_at_random(
        work, short, dice, processes=PROCESSES, deaths=DEATHS, pause=(0.05, 0.4), is_more_to_come=True
    ):
        if deaths < DEATHS:
            more = [random_event(dice) for _ in range(EVENTS_PER_END)]
            await add(store, more)
            events += more

    assert deaths >= DEATHS
    await finished_well(store, events)


async def test_eight_workers_on_the_same_members_stay_exact_and_never_deadlock(store: Store, short: Settings) -> None:
    dice = random.Random(8)
    await add_crowd(store)
    events = [random_event(dice) for _ in range(RIVALRY)]
    await add(store, events)
    long = short.model_copy(update={"lease_seconds": 60})
    rivals = [forks.Process(target=work, args=(long, seed, False), daemon=True) for seed in range(RIVALS)]
    for one in rivals:
        one.start()
    for one in rivals:
        one.join()
        assert one.exitcode == 0
    await finished_well(store, events)
    if store.dialect.name == "postgresql":
        deadlocks = await rows(store, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert deadlocks[0][0] == 0


async def finished_well(store: Store, events: list[Event]) -> None:
    counted = await rows(store, "SELECT status, count(*), max(attempts), max(error) FROM bongsu_events GROUP BY status")
    assert [tuple(row) for row in counted] == [("DONE", len(events), 0, None)]
    await check_decisions(store, events)


async def add(store: Store, events: list[Event]) -> None:
    """As a caller does: where the workers keep the file locked for too long, it tries again."""
    is_stored = False
    while not is_stored:
        with suppress(StoreBusy):
            async with store.transaction() as tx:
                await outbox.add(tx, events)
            is_stored = True
