"""Killed workers, at named points and at any other, lose and double no recipient; nor do eight concurrent ones."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from bongsu.errors import StoreBusy
from bongsu.model import Event
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from tests.decide.killed_worker import work, work_on_likes
from tests.decide.test_digest import like
from tests.support.decisions import add_members, rows
from tests.support.killed_processes import kill_at_random
from tests.support.long_runs import seeds
from tests.support.processes import forks
from tests.support.random_events import DAILY_LIMIT, add_crowd, check_decisions, random_event
from tests.support.rows import add_device
from tests.support.senders import dispatch_due
from tests.test_digest import window_ends

# `make chaos` runs many more.
SEEDS = seeds(1)
PROCESSES = 3
EVENTS_AT_FIRST = 60
EVENTS_PER_END = 8
DEATHS = 20

OWNERS = [f"owner{number}" for number in range(4)]
POSTS = ["p1", "p2"]
ACTORS = [f"actor{number:02d}" for number in range(30)]
DEATHS_AMONG_LIKES = 8

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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
async def test_killed_workers_gather_each_like_once_and_one_push_follows(store: Store, short: Settings, seed: int) -> None:
    dice = random.Random(seed)
    settings = short.model_copy(update={"daily_limit": 1_000})
    await add_members(store, *OWNERS)
    async with store.transaction() as tx:
        for owner in OWNERS:
            await add_device(tx, owner)
    likes = [like(actor, post, owner) for owner in OWNERS for post in POSTS for actor in ACTORS]
    # The same actor again, and one's own like.
    likes += [like(like_.actor_id, str(like_.ref_id), str(like_.target_id)) for like_ in dice.sample(likes, 40)]
    likes += [like(owner, post, owner) for owner in OWNERS for post in POSTS]
    dice.shuffle(likes)
    await add(store, likes[::2])
    late = likes[1::2]
    deaths = 0
    for deaths in kill_at_random(
        work_on_likes,
        settings,
        dice,
        processes=PROCESSES,
        deaths=DEATHS_AMONG_LIKES,
        pause=(0.02, 0.3),
        is_more_to_come=True,
    ):
        # All the others at the last death at the latest, so that there is work until then.
        part, late = (late[:8], late[8:]) if deaths < DEATHS_AMONG_LIKES - 1 else (late, [])
        await add(store, [*part, *dice.sample(likes, 4)])

    assert deaths >= DEATHS_AMONG_LIKES
    assert not late
    counted = await rows(store, "SELECT status, count(*) FROM bongsu_events GROUP BY status")
    assert [tuple(row) for row in counted] == [("DONE", len(likes))]
    digests = await rows(store, "SELECT member_id, key, size FROM bongsu_digests ORDER BY member_id, key")
    assert [tuple(row) for row in digests] == [(owner, post, len(ACTORS)) for owner in OWNERS for post in POSTS]
    await window_ends(store)
    sent = sorted((push.member_id, push.ref_id, push.data["count"]) for push in await dispatch_due(store, settings))
    assert sent == [(owner, post, len(ACTORS)) for owner in OWNERS for post in POSTS]


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
