"""Many instances over Redis: two gateways as processes of their own, killed, cut off, emptied and drained."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from bongsu.live.announce import announce_read
from bongsu.live.registry import key_of
from tests.live.client import ask
from tests.live.cluster import Cluster, cluster_on
from tests.live.harness import Ringer, bearer
from tests.servers import PostgresServer

# `make chaos` runs many more.
SEEDS = range(1 + int(os.environ.get("CHAOS_SEEDS", "1")))


@pytest.fixture(scope="module")
def cluster(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Pings bring what signals lose, after half a second instead of twenty.
    with cluster_on(postgres, tmp_path_factory.mktemp("cluster"), ping_seconds=2) as both:
        yield both


@pytest.fixture
async def worker(cluster: Cluster) -> AsyncIterator[Ringer]:
    async with cluster.worker() as ringer:
        yield ringer


@pytest.fixture
def member() -> str:
    return f"m-{uuid4()}"


async def test_a_member_hears_on_every_instance_and_nobody_else_does(cluster: Cluster, worker: Ringer, member: str) -> None:
    async with cluster.open(member, 0) as one, cluster.open(member, 1) as other, cluster.open(f"{member}x", 1) as stranger:
        for page in (one, other, stranger):
            await page.until_live()
        ids = await worker.ring(member, 3)
        for page in (one, other):
            await page.until_told(ids)
            assert (await page.until_seen("badge", 2))[-1] == {"unread": 3}
        await announce_read(worker.announcer._signals, member)
        assert stranger.told == []


async def test_the_fourth_page_closes_the_first_wherever_it_is(cluster: Cluster, worker: Ringer, member: str) -> None:
    pages = [cluster.open(member, at, stays_away=True) for at in (0, 0, 1, 1)]
    for page in pages:
        await page.__aenter__()
        await page.until_live()
    assert await pages[0].until_seen("bye") == [{"reason": "replaced"}]
    ids = await worker.ring(member)
    for page in pages[1:]:
        await page.until_told(ids)
        await page.close()
    await pages[0].close()


async def test_redis_away_streams_say_so_the_inbox_goes_on_and_nothing_is_missing_afterwards(
    cluster: Cluster, worker: Ringer, member: str
) -> None:
    async with cluster.open(member, 0) as one, cluster.open(member, 1) as other:
        for page in (one, other):
            await page.until_live()
        first = await worker.ring(member)
        for page in (one, other):
            await page.until_told(first)
        cluster.redis.crash()
        missed = await worker.ring(member, 2)
        for page in (one, other):
            # Those who were there, and then again when they come back: a stream that says so, and no error.
            await page.until_seen("unavailable", 2)
            assert page.status == 200
        cluster.redis.start()
        for page in (one, other):
            await page.until_told([*first, *missed])
        later = await worker.ring(member)
        for page in (one, other):
            await page.until_told([*first, *missed, *later])


async def test_a_subscription_cut_by_redis_costs_nothing_and_closes_nobody(
    cluster: Cluster, worker: Ringer, member: str
) -> None:
    async with cluster.open(member, 0) as one, cluster.open(member, 1) as other, cluster.operator() as operator:
        for page in (one, other):
            await page.until_live()
        ids: list[int] = []
        for _ in range(3):
            ids += await worker.ring(member)
            await operator.client_kill_filter(_type="pubsub")
            ids += await worker.ring(member)
        for page in (one, other):
            await page.until_told(ids)
            assert page.connections == 1


async def test_what_a_killed_instance_held_is_found_elsewhere_and_its_ghosts_do_not_count(
    cluster: Cluster, worker: Ringer, member: str
) -> None:
    async with cluster.operator() as operator:
        async with cluster.open(member) as page:
            await page.until_live()
            held: Any = await operator.zrange(key_of(member), 0, -1)
            assert len(held) == 1
            cluster.kill(0)
            ids = await worker.ring(member)
            await page.until_told(ids)
            assert page.connections == 2
            assert held[0] in await operator.zrange(key_of(member), 0, -1)
            # As when its lease has ended: the dead are known by it.
            instance = held[0].split(b":")[0]
            seconds, _ = await operator.time()
            await operator.zadd("bongsu:sse:instances", {instance: seconds * 1000 - 1}, xx=True)
        await asyncio.to_thread(cluster.replace, 0)
        async with cluster.open(member, 0) as fresh:
            await fresh.until_live()
            assert held[0] not in await operator.zrange(key_of(member), 0, -1)


async def test_sigterm_sends_everybody_on_and_exits_well(cluster: Cluster, worker: Ringer, member: str) -> None:
    async with cluster.open(member) as page:
        await page.until_live()
        leaving = cluster.gateways[0].process
        leaving.send_signal(signal.SIGTERM)
        assert (await page.until_seen("bye"))[0] == {"reason": "restart"}
        ids = await worker.ring(member)
        await page.until_told(ids)
    assert await asyncio.to_thread(leaving.wait, 30) == 0
    await asyncio.to_thread(cluster.replace, 0)


# --- proof ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_notification_is_seen_once_and_in_order_whatever_happens(
    cluster: Cluster, worker: Ringer, seed: int
) -> None:
    """Members with pages here and there, who come back as browsers do, while everything is killed that can be."""
    dice = random.Random(seed)
    members = [f"m-{seed}-{number}-{uuid4()}" for number in range(4)]
    written: dict[str, list[int]] = {member: [] for member in members}
    pages = {member: [cluster.open(member), cluster.open(member)] for member in members}
    everybody = [page for both in pages.values() for page in both]
    for page in everybody:
        await page.__aenter__()
        await page.until_live()
    harms: list[Callable[[Cluster, random.Random, str], Awaitable[None]]] = [
        _kill, _drain, _cut_subscriptions, _empty_redis, _stall, _restart_redis,
    ]  # fmt: skip
    # One seed does half of it and the next the other half, each in an order of its own.
    harms = harms[seed % 2 :: 2]
    dice.shuffle(harms)
    for harm in harms:
        ringing = asyncio.create_task(_ring(worker, random.Random(dice.random()), written))
        await harm(cluster, dice, dice.choice(members))
        await ringing
    for member in members:
        written[member] += await worker.ring(member)
        for page in pages[member]:
            await page.until_told(written[member])
    for page in everybody:
        await page.close()


async def _ring(worker: Ringer, dice: random.Random, written: dict[str, list[int]]) -> None:
    for _ in range(25):
        member = dice.choice(list(written))
        written[member] += await worker.ring(member, dice.choice((1, 1, 1, 3)))


async def _kill(cluster: Cluster, dice: random.Random, _member: str) -> None:
    place = dice.randrange(2)
    cluster.kill(place)
    await asyncio.to_thread(cluster.replace, place)


async def _drain(cluster: Cluster, dice: random.Random, _member: str) -> None:
    place = dice.randrange(2)
    cluster.gateways[place].process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(cluster.gateways[place].process.wait, 30) == 0
    await asyncio.to_thread(cluster.replace, place)


async def _cut_subscriptions(cluster: Cluster, _dice: random.Random, _member: str) -> None:
    async with cluster.operator() as operator:
        for _ in range(3):
            await operator.client_kill_filter(_type="pubsub")


async def _empty_redis(cluster: Cluster, _dice: random.Random, _member: str) -> None:
    async with cluster.operator() as operator:
        await operator.flushall()


async def _restart_redis(cluster: Cluster, _dice: random.Random, _member: str) -> None:
    await asyncio.to_thread(cluster.redis.crash)
    await asyncio.to_thread(cluster.redis.start)


async def _stall(cluster: Cluster, dice: random.Random, member: str) -> None:
    """A third page that never reads."""
    with contextlib.suppress(ConnectionError):
        answer = await ask(dice.choice(cluster.addresses), bearer(cluster.settings, member))
        answer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        answer.writer.transport.abort()
