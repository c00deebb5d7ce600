"""Many instances over Redis: two gateways as processes of their own, killed, cut off, emptied and drained."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from bongsu.live import announce
from bongsu.live.announce import announce_change, announce_changes
from bongsu.live.registry import key_of
from tests.live.client import EventSource
from tests.live.cluster import Cluster, cluster_on
from tests.live.harness import READERS, Ringer, withdraw, write_to_all
from tests.live.model import Shown, Writer, find_inbox
from tests.support.servers import PostgresServer

# `make chaos` runs many more.
SEEDS = range(1 + int(os.environ.get("CHAOS_SEEDS", "1")))
WRITERS = 8
# Each of 600 kB. A reader is cut when a megabyte waits for it, beyond what the system holds for both ends.
STALLING_RINGS = 30


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
        announce_change(worker.announcer._signals, member)
        assert stranger.told == []


@pytest.mark.parametrize("few", [announce.FEW, 0])
async def test_what_was_withdrawn_leaves_the_pages_on_every_instance(
    cluster: Cluster, worker: Ringer, member: str, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(announce, "FEW", few)
    other = f"{member}x"
    message_id = await write_to_all(worker.store, [member, other])
    async with cluster.open(member, 0) as one, cluster.open(member, 1) as two, cluster.open(other, 1) as three:
        for page in (one, two, three):
            await page.until_live()
            assert len(page.told) == 1
        step = await withdraw(worker.store, message_id)
        announce_changes(worker.announcer._signals, [member_id for member_id, _ in step])
        for page, whose in ((one, member), (two, member), (three, other)):
            await page.until(lambda page: page.seen("badge")[-1] == {"unread": 0})
            assert await page.until_seen("withdrawn") == [{"id": str(dict(step)[whose])}]
            assert int(page.last_id) > dict(step)[whose]
        # Whoever comes back to the other instance gets what is new, and only that.
        later = await worker.ring(member)
        again = cluster.open(member, 0)
        again.last_id = two.last_id
        async with again:
            await again.until_told(later)
        assert again.seen("withdrawn") == []


async def test_the_fourth_page_closes_the_first_wherever_it_is(cluster: Cluster, worker: Ringer, member: str) -> None:
    """And whatever it speaks."""
    pages = [cluster.open(member, at, wire, stays_away=True) for at in (0, 1) for wire in READERS]
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
async def test_every_page_gets_each_event_once_and_in_order_whatever_happens(
    cluster: Cluster, worker: Ringer, seed: int
) -> None:
    """Members with pages of both wires here and there, who come back by themselves, while everything is killed that can be
    and eight writers change the inboxes. At the end each page shows what the inbox has."""
    async with contextlib.AsyncExitStack() as pages:
        trial = Trial(cluster, worker, random.Random(seed), pages)
        await trial.begin([f"m-{seed}-{number}-{uuid4()}" for number in range(10)])
        harms = [trial.kill, trial.drain, trial.cut_subscriptions, trial.empty_redis, trial.stall, trial.restart_redis]
        # One seed does half of it and the next the other half, each in an order of its own.
        harms = harms[seed % 2 :: 2]
        trial.dice.shuffle(harms)
        for harm in harms:
            await trial.suffer(harm)
        await trial.check()


def has_come(last: int, unread: int) -> Callable[[EventSource], bool]:
    return lambda page: int(page.last_id) >= last and page.seen("badge")[-1:] == [{"unread": unread}]


@dataclass
class Trial:
    """Members, and their pages."""

    cluster: Cluster
    worker: Ringer
    dice: random.Random
    open_pages: contextlib.AsyncExitStack
    pages: dict[str, list[EventSource]] = field(default_factory=dict)

    async def begin(self, members: list[str]) -> None:
        for member in members:
            # So that the member is known, and a page begins with everything.
            await self._tell(member)
            pages = [self.cluster.open(member, wire=wire, last_id="0") for wire in READERS]
            self.pages[member] = [await self.open_pages.enter_async_context(page) for page in pages]
        for both in self.pages.values():
            for page in both:
                await page.until_seen("notification")

    async def suffer(self, harm: Callable[[], Awaitable[None]]) -> None:
        signals, members = self.worker.announcer._signals, list(self.pages)
        writers = [Writer(self.worker, signals, members, self.dice.random()) for _ in range(WRITERS)]
        writing = asyncio.gather(*(writer.write(6) for writer in writers))
        await harm()
        await writing

    async def check(self) -> None:
        for member, pages in self.pages.items():
            inbox, unread, last = await find_inbox(self.worker.store, member)
            for page in pages:
                await page.until(has_come(last, unread))
                shown = Shown()
                shown.apply(page.frames)
                assert (shown.items, shown.unread) == (inbox, unread)

    async def _tell(self, member: str, count: int = 1, **words: str) -> int:
        """The last one's id."""
        return (await self.worker.ring(member, count, **words))[-1]

    # --- harms --------------------------------------------------------------------------------------------------------

    async def kill(self) -> None:
        place = self.dice.randrange(2)
        self.cluster.kill(place)
        await asyncio.to_thread(self.cluster.replace, place)

    async def drain(self) -> None:
        place = self.dice.randrange(2)
        self.cluster.gateways[place].process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self.cluster.gateways[place].process.wait, 30) == 0
        await asyncio.to_thread(self.cluster.replace, place)

    async def cut_subscriptions(self) -> None:
        async with self.cluster.operator() as operator:
            for _ in range(3):
                await operator.client_kill_filter(_type="pubsub")

    async def empty_redis(self) -> None:
        async with self.cluster.operator() as operator:
            await operator.flushall()

    async def restart_redis(self) -> None:
        await asyncio.to_thread(self.cluster.redis.crash)
        await asyncio.to_thread(self.cluster.redis.start)

    async def stall(self) -> None:
        """A third page stops reading until it is cut. The others hear meanwhile, and it misses nothing when it is back."""
        member = self.dice.choice(list(self.pages))
        page = self.cluster.open(member, receive_bytes=4096, last_id="0")
        await self.open_pages.enter_async_context(page)
        await page.until(lambda page: page.is_open)
        page.stall()
        for _ in range(STALLING_RINGS):
            last = await self._tell(member, 10, body="가" * 20_000)
            for other in self.pages[member]:
                await other.until(lambda page, last=last: page.told[-1:] >= [last])  # type: ignore[misc]
            if page.is_cut:
                break
        assert page.is_cut
        page.go_on()
        self.pages[member].append(page)
