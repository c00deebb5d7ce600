"""Chat between two instances over Redis, each a process of its own, killed, cut off and emptied. Read with `websockets`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from bongsu.chat.fanout import Fanout
from bongsu.chat.history import History
from bongsu.chat.rooms import Rooms
from bongsu.live.presence import RedisPresence
from bongsu.live.registry import INSTANCES, key_of
from bongsu.runtime.redis_signals import RedisSignals
from bongsu.store import Store
from tests.live.client import WAIT_SECONDS
from tests.live.cluster import Cluster, cluster_on
from tests.live.harness import bearer
from tests.live.socket_client import socket_url
from tests.support.servers import PostgresServer

# `make chaos` runs many more.
SEEDS = range(int(os.environ.get("CHAOS_SEEDS", "1")))
WRITERS = 8
READERS = 20
ROOMS = 2
# Messages that each writer has stored between two harms.
MESSAGES = 5
AWAY = (OSError, ConnectionClosed, InvalidHandshake, TimeoutError, EOFError)


@pytest.fixture(scope="module")
def cluster(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Pings bring what signals lose, after half a second instead of twenty.
    with cluster_on(postgres, tmp_path_factory.mktemp("chat"), ping_seconds=2) as both:
        yield both


@dataclass
class Desk:
    """The server's half, here."""

    store: Store
    rooms: Rooms
    history: History

    async def room(self, *member_ids: str) -> str:
        return str((await self.rooms.create(None, "room", member_ids)).room_id)


@pytest.fixture
async def desk(cluster: Cluster) -> AsyncIterator[Desk]:
    store, signals = Store.open(cluster.settings), RedisSignals(cluster.redis.url)
    await signals.start()
    try:
        yield Desk(store, Rooms(store, Fanout(signals)), History(store))
    finally:
        await signals.stop()
        await store.close()


@dataclass(eq=False)
class Reader:
    """Comes back until it is closed, to one instance after the other, and resumes from what it has seen."""

    cluster: Cluster
    member_id: str
    rooms: list[str]
    place: int
    last: dict[str, int] = field(default_factory=dict)
    texts: dict[tuple[str, int], str | None] = field(default_factory=dict)
    connections: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    socket: ClientConnection | None = None
    is_ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while True:
            address = self.cluster.addresses[self.place % len(self.cluster.addresses)]
            self.place += 1
            with contextlib.suppress(*AWAY):
                await self._read(address)
            self.is_ready.clear()
            await asyncio.sleep(0.02)

    async def _read(self, address: str) -> None:
        opening = connect(
            socket_url(address), additional_headers=bearer(self.cluster.settings, self.member_id), proxy=None, open_timeout=5
        )
        async with opening as self.socket:
            self.connections += 1
            resumed: set[str] = set()
            async for text in self.socket:
                frame: dict[str, Any] = json.loads(text)
                if frame["op"] == "ready":
                    for room in self.rooms:
                        await self.do("resume", roomId=room, afterSeq=self.last.get(room, 0))
                    self.is_ready.set()
                elif frame["op"] == "error":
                    self.errors.append(frame)
                elif frame["op"] == "resumed":
                    resumed.add(frame["roomId"])
                else:
                    self.take(frame, frame.get("roomId") in resumed)

    async def do(self, op: str, **fields: Any) -> None:
        assert self.socket is not None
        await self.socket.send(json.dumps({"op": op, **fields}))

    def take(self, frame: dict[str, Any], is_resumed: bool) -> None:
        if frame["op"] == "message":
            room, seq = frame["roomId"], frame["seq"]
            expected = self.last.get(room, 0) + 1
            if seq == expected:
                self.last[room] = seq
                self.texts[room, seq] = frame["message"]
            elif is_resumed:
                self.problems.append(f"{self.member_id}: {seq} instead of {expected}")


@dataclass(eq=False)
class Writer(Reader):
    """Sends again what it has no answer for."""

    acked: dict[tuple[str, str], int] = field(default_factory=dict)
    waiting: dict[str, asyncio.Future[int]] = field(default_factory=dict)

    def take(self, frame: dict[str, Any], is_resumed: bool) -> None:
        if frame["op"] == "ack" and (answer := self.waiting.get(frame["clientMessageId"])) and not answer.done():
            answer.set_result(frame["seq"])
        super().take(frame, is_resumed)

    async def say(self, room: str, text: str) -> None:
        async with asyncio.timeout(2 * WAIT_SECONDS):
            while (room, text) not in self.acked:
                answer = self.waiting[text] = asyncio.get_running_loop().create_future()
                with contextlib.suppress(*AWAY):
                    async with asyncio.timeout(1):
                        await self.is_ready.wait()
                        await self.do("send", roomId=room, clientMessageId=text, message=text)
                        self.acked[room, text] = await answer


@contextlib.asynccontextmanager
async def running_all(readers: list[Reader]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(reader.run()) for reader in readers]
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            for reader in readers:
                await reader.is_ready.wait()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(is_so: Callable[[], bool], what: Callable[[], object]) -> None:
    try:
        async with asyncio.timeout(2 * WAIT_SECONDS):
            while not is_so():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited in vain: {what()}") from None


def have_seen(readers: list[Reader], room: str, last: int) -> bool:
    return not behind(readers, room, last)


def behind(readers: list[Reader], room: str, last: int) -> list[object]:
    return [(one.last.get(room), one.problems, one.errors) for one in readers if one.last.get(room) != last]


async def test_who_is_online_is_known_across_instances(cluster: Cluster, desk: Desk) -> None:
    a, b, c = (f"{name}-{uuid4()}" for name in "abc")
    room = await desk.room(a, b, c)
    here = RedisPresence(cluster.redis.url)
    async with running_all([Reader(cluster, a, [room], 0), Reader(cluster, b, [room], 1)]):
        assert await here.online([a, b, c]) == {a, b}
        # What an instance left behind that was killed: its lease has ended.
        async with cluster.operator() as operator:
            seconds, _ = await operator.time()
            await operator.zadd(INSTANCES, {"killed": seconds * 1000 - 1})
            await operator.zadd(key_of(c), {"killed:1": seconds * 1_000_000})
        assert await here.online([a, b, c]) == {a, b}
    await here.stop()


async def test_members_on_two_instances_talk_and_a_removal_holds_on_both(cluster: Cluster, desk: Desk) -> None:
    a, b = f"a-{uuid4()}", f"b-{uuid4()}"
    room = await desk.room(a, b)
    one, two = Writer(cluster, a, [room], 0), Writer(cluster, b, [room], 1)
    async with running_all([one, two]):
        await one.say(room, "hello")
        await two.say(room, "hi")
        await until(lambda: one.last.get(room) == two.last.get(room) == 2, lambda: (one.last, two.last))
        await desk.rooms.remove(None, UUID(room), b)
        await one.say(room, "in private")
        await until(lambda: one.last[room] == 3, lambda: one.last)
        await desk.rooms.add(None, UUID(room), b)
        await one.say(room, "again")
        # It was not sent what came while it was away, and is now out of order until it resumes.
        await two.do("resume", roomId=room, afterSeq=2)
        await until(lambda: two.last[room] == 4, lambda: two.last)
    assert one.problems == []


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_reader_sees_every_message_once_and_in_order_whatever_happens(
    cluster: Cluster, desk: Desk, seed: int
) -> None:
    dice = random.Random(seed)
    names = [f"w-{seed}-{number}-{uuid4()}" for number in range(WRITERS)]
    others = [f"r-{seed}-{number}-{uuid4()}" for number in range(READERS)]
    rooms = [await desk.room(*names, *others) for _ in range(ROOMS)]
    writers = [Writer(cluster, name, rooms, number) for number, name in enumerate(names)]
    readers: list[Reader] = [*writers, *(Reader(cluster, name, rooms, number) for number, name in enumerate(others))]
    harms: list[Callable[[], Awaitable[None]]] = [
        lambda: _kill(cluster, dice), lambda: _cut(cluster), lambda: _empty(cluster), lambda: _restart_redis(cluster),
        lambda: _drop_readers(readers, dice),
    ]  # fmt: skip
    dice.shuffle(harms)
    async with running_all(readers):
        for number, harm in enumerate(harms):
            async with asyncio.TaskGroup() as group:
                for writer in writers:
                    group.create_task(_write(writer, dice.choice(rooms), f"{writer.member_id}-{number}"))
                group.create_task(_harm(harm))
        for room in rooms:
            stored = await _history(desk, room)
            assert [one[0] for one in stored] == list(range(1, len(stored) + 1))
            await until(partial(have_seen, readers, room, len(stored)), partial(behind, readers, room, len(stored)))
            for reader in readers:
                assert reader.problems == []
                assert [(seq, reader.texts[room, seq]) for seq, _ in stored] == stored
            texts = dict(stored)
            for writer in writers:
                for (where, text), seq in writer.acked.items():
                    assert where != room or texts[seq] == text
            # Each was stored once, however often it was sent.
            assert len(set(texts.values())) == len(texts)
        assert sum(len(writer.acked) for writer in writers) == len(harms) * WRITERS * MESSAGES


async def _write(writer: Writer, room: str, name: str) -> None:
    for number in range(MESSAGES):
        await writer.say(room, f"{name}-{number}")


async def _history(desk: Desk, room: str) -> list[tuple[int, str | None]]:
    found: list[tuple[int, str | None]] = []
    while part := await desk.history.after(None, UUID(room), found[-1][0] if found else 0, 100):
        found += [(message.seq, message.message) for message in part]
    return found


async def _harm(harm: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(0.05)
    await harm()


async def _kill(cluster: Cluster, dice: random.Random) -> None:
    place = dice.randrange(2)
    cluster.kill(place)
    await asyncio.to_thread(cluster.replace, place)


async def _cut(cluster: Cluster) -> None:
    async with cluster.operator() as operator:
        await operator.client_kill_filter(_type="pubsub")


async def _empty(cluster: Cluster) -> None:
    async with cluster.operator() as operator:
        await operator.flushall()


async def _restart_redis(cluster: Cluster) -> None:
    cluster.redis.crash()
    await asyncio.to_thread(cluster.redis.start)


async def _drop_readers(readers: list[Reader], dice: random.Random) -> None:
    for reader in dice.sample(readers, len(readers) // 2):
        if reader.socket is not None:
            reader.socket.transport.abort()
