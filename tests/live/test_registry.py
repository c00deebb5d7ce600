"""The registry of connections: one suite over both kinds, then what only Redis can get wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest
import redis.asyncio
from redis.asyncio.client import Pipeline

from bongsu.errors import RedisUnreachable, TooBusy
from bongsu.live.registry import LocalRegistry, RedisRegistry, Registry, key_of
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import DISCONNECT_TOPIC
from bongsu.settings import Settings
from tests.support.servers import RedisServer, start_redis

WAIT_SECONDS = 20


class Told(LocalSignals):
    """Remembers which connections had to go."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: list[tuple[str, str]] = []

    def send(self, topic: str, data: bytes = b"") -> None:
        assert topic == DISCONNECT_TOPIC
        told = json.loads(data)
        self.gone.append((told["memberId"], told["connectionId"]))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def member() -> str:
    """Redis is shared with other tests."""
    return f"m-{uuid4()}"


@contextlib.asynccontextmanager
async def over(url: str, told: Told, **options: float) -> AsyncIterator[RedisRegistry]:
    lease = options.pop("lease_seconds", 15.0)
    registry = RedisRegistry(url, told, Settings(**options), lease_seconds=lease)
    await registry.start()
    try:
        yield registry
    finally:
        await registry.stop()


@pytest.fixture(params=["local", "redis"])
async def registry(request: pytest.FixtureRequest, told: Told) -> AsyncIterator[Registry]:
    if request.param == "local":
        yield LocalRegistry(told, 3)
    else:
        async with over(request.getfixturevalue("redis_server").url, told) as kind:
            yield kind


async def arrive(registry: Registry, member: str, count: int = 1) -> list[str]:
    ids = [registry.new_id() for _ in range(count)]
    for one in ids:
        await registry.enter(member, one)
    return ids


async def connections(registry: Registry, member: str) -> list[str]:
    """Those of the member that need not be closed, oldest first."""
    if isinstance(registry, LocalRegistry):
        return list(registry._members.get(member, ()))
    assert isinstance(registry, RedisRegistry)
    await registry._renew()
    entered: Any = await registry._redis.zrange(key_of(member), 0, -1)
    return [one for one in (one.decode() for one in entered) if one.partition(":")[0] not in registry._dead][
        -registry._limit :
    ]


async def eventually(registry: Registry, member: str, expected: list[str]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await connections(registry, member) != expected:
            await asyncio.sleep(0)


async def test_as_many_as_the_limit_stay_and_one_more_closes_the_oldest(registry: Registry, told: Told, member: str) -> None:
    ids = await arrive(registry, member, 3)
    assert await connections(registry, member) == ids
    assert told.gone == []
    fourth = registry.new_id()
    assert await registry.enter(member, fourth) == [ids[0]]
    assert told.gone == [(member, ids[0])]
    assert await connections(registry, member) == [*ids[1:], fourth]


async def test_who_left_makes_room(registry: Registry, told: Told, member: str) -> None:
    ids = await arrive(registry, member, 3)
    registry.leave(member, ids[1])
    await eventually(registry, member, [ids[0], ids[2]])
    more = await arrive(registry, member)
    assert told.gone == []
    assert await connections(registry, member) == [ids[0], ids[2], *more]


async def test_one_that_enters_right_after_another_left_closes_none(registry: Registry, told: Told, member: str) -> None:
    """A page that is reloaded leaves and enters in the same moment."""
    ids = await arrive(registry, member, 3)
    for _ in range(10):
        registry.leave(member, ids.pop(0))
        ids += await arrive(registry, member)
    assert told.gone == []
    assert await connections(registry, member) == ids


async def test_leaving_twice_or_without_having_come_is_fine(registry: Registry, member: str) -> None:
    [one] = await arrive(registry, member)
    registry.leave(member, one)
    registry.leave(member, one)
    registry.leave(member, "never")
    await eventually(registry, member, [])


async def test_members_do_not_count_for_each_other(registry: Registry, told: Told, member: str) -> None:
    odd = [f"{member}{end}" for end in ("}", "{x}", ":", " 가")]
    for one in odd:
        assert len(await arrive(registry, one, 3)) == 3
    assert told.gone == []


async def test_many_at_once_leave_the_newest(registry: Registry, told: Told, member: str) -> None:
    ids = [registry.new_id() for _ in range(50)]
    await asyncio.gather(*(registry.enter(member, one) for one in ids))
    assert await connections(registry, member) == ids[-3:]
    assert list(dict.fromkeys(one for _, one in told.gone)) == ids[:-3]


async def test_ids_are_never_given_twice(registry: Registry) -> None:
    assert len({registry.new_id() for _ in range(1000)}) == 1000


# --- over Redis -------------------------------------------------------------------------------------------------------


async def test_the_limit_holds_over_instances(redis_server: RedisServer, told: Told, member: str) -> None:
    async with over(redis_server.url, told) as here, over(redis_server.url, told) as there:
        first = await arrive(here, member, 2)
        second = await arrive(there, member, 2)
        assert told.gone == [(member, first[0])]
        assert await connections(there, member) == await connections(here, member) == [first[1], *second]


async def test_what_an_instance_leaves_behind_when_it_is_killed_is_forgotten(
    redis_server: RedisServer, told: Told, member: str
) -> None:
    async with over(redis_server.url, told) as here:
        killed = RedisRegistry(redis_server.url, told, Settings(), lease_seconds=0.2)
        entering = [asyncio.create_task(killed.enter(member, killed.new_id())) for _ in range(2)]
        await asyncio.sleep(0)
        await killed._arrivals.tick()  # and never again
        await asyncio.gather(*entering)
        [own] = await arrive(here, member)
        assert len(await connections(here, member)) in (3, 1)
        await eventually(here, member, [own])
        await arrive(here, member, 2)
        assert told.gone == []
        async with redis.asyncio.Redis.from_url(redis_server.url) as operator:
            assert await operator.zcard(key_of(member)) == 3
        await killed._redis.aclose()


async def test_what_is_older_than_any_stream_is_a_ghost_whatever_its_instance_says(
    redis_server: RedisServer, told: Told, member: str
) -> None:
    async with over(redis_server.url, told) as here, redis.asyncio.Redis.from_url(redis_server.url) as operator:
        seconds, micros = await operator.time()
        old = (seconds - 3601) * 1_000_000 + micros
        await operator.zadd(key_of(member), {f"{here._instance}:ghost": old, f"{here._instance}:real": old + 2_000_000})
        ids = await arrive(here, member, 2)
        assert told.gone == []
        assert await connections(here, member) == [f"{here._instance}:real", *ids]
        assert 0 < await operator.ttl(key_of(member)) <= 3600


async def test_one_whose_caller_gave_up_while_it_was_entered_is_removed(
    redis_server: RedisServer, told: Told, member: str
) -> None:
    async with over(redis_server.url, told) as here:
        async with here._writing:
            given_up = asyncio.create_task(here.enter(member, here.new_id()))
            async with asyncio.timeout(WAIT_SECONDS):
                # Until its batch is taken and waits to be written.
                while not here._arrivals._has_capacity.is_set():
                    await asyncio.sleep(0)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
        [other] = await arrive(here, member)  # written after the first
        await eventually(here, member, [other])


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The next answer of Redis is lost: what was asked for was done."""
    is_lost, execute = False, Pipeline.execute

    async def losing_one(pipeline: Pipeline, *arguments: Any, **options: Any) -> list[Any]:
        nonlocal is_lost
        answer: list[Any] = await execute(pipeline, *arguments, **options)
        if is_lost:
            is_lost = False
            raise redis.exceptions.TimeoutError("the answer did not come")
        return answer

    def lose() -> None:
        nonlocal is_lost
        is_lost = True

    monkeypatch.setattr(Pipeline, "execute", losing_one)
    return lose


@pytest.mark.parametrize("count", [2, 3])
async def test_one_that_does_not_know_whether_it_was_entered_counts_once_when_it_comes_again(
    redis_server: RedisServer, told: Told, member: str, losing: Callable[[], None], count: int
) -> None:
    """It closes the oldest if there are too many, and no other."""
    async with over(redis_server.url, told) as here:
        ids = await arrive(here, member, count)
        losing()
        with pytest.raises(RedisUnreachable):
            await arrive(here, member)
        ids += await arrive(here, member)
        assert told.gone == [(member, one) for one in ids[:-3]]
        assert await connections(here, member) == ids[-3:]


async def test_one_that_has_to_go_and_was_not_told_is_told_with_the_next(
    redis_server: RedisServer, told: Told, member: str
) -> None:
    """Its instance did not get the signal."""
    async with over(redis_server.url, told) as here, over(redis_server.url, told) as there:
        [oldest] = await arrive(here, member)
        [second, *_] = await arrive(there, member, 3)
        told.gone.clear()
        await arrive(there, member)
        assert told.gone == [(member, oldest), (member, second)]


async def test_one_that_enters_while_the_instance_stops_is_refused(
    redis_server: RedisServer, told: Told, member: str
) -> None:
    async with over(redis_server.url, told) as here:
        await arrive(here, member)
    with pytest.raises(TooBusy):
        await here.enter(member, here.new_id())


async def test_after_redis_was_emptied_everybody_is_entered_again_as_old_as_they_are(told: Told, member: str) -> None:
    server = start_redis()
    try:
        # Long enough to be renewed in time on a busy machine; everybody is entered again within it.
        async with over(server.url, told, lease_seconds=2.0) as here:
            ids = await arrive(here, member, 3)
            async with redis.asyncio.Redis.from_url(server.url) as operator:
                await operator.flushall()
            await eventually(here, member, ids)
            await arrive(here, member)
            assert told.gone == [(member, ids[0])]
    finally:
        server.stop()


async def test_one_that_missed_that_it_had_to_go_is_told_again(redis_server: RedisServer, told: Told, member: str) -> None:
    async with over(redis_server.url, told) as here, over(redis_server.url, told) as there:
        [oldest] = await arrive(here, member)
        others = await arrive(there, member, 3)
        assert told.gone.pop() == (member, oldest)
        here.enter_again()
        async with asyncio.timeout(WAIT_SECONDS):
            while not told.gone:
                await asyncio.sleep(0)
        assert told.gone == [(member, oldest)]
        assert await connections(here, member) == others


async def test_without_redis_nobody_enters_and_with_it_all_heals(told: Told, member: str) -> None:
    server = start_redis()
    try:
        async with over(server.url, told) as here:
            [one] = await arrive(here, member)
            server.crash()
            with pytest.raises(RedisUnreachable):
                await arrive(here, member)
            here.leave(member, one)
            server.start()
            [two] = await arrive(here, member)
            await eventually(here, member, [two])
            server.stop()
    finally:
        server.stop()
