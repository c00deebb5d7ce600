"""The pending sums in Redis: under the keys that others read, and counted again after they were lost."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from structlog.testing import capture_logs

from bongsu.counters.pending import MARKER, PendingSums, redis_key
from bongsu.runtime import telemetry
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import runs as runs_store
from bongsu.store.counters import KeySum
from tests.support.counters import Counting, comment_created, counting
from tests.support.servers import RedisServer, start_redis


@pytest.fixture
async def client(redis_server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(redis_server.url, decode_responses=True)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
async def counts(
    store: Store, settings: Settings, redis_server: RedisServer, client: redis.asyncio.Redis
) -> AsyncIterator[Counting]:
    async with counting(store, settings.model_copy(update={"redis_url": redis_server.url})) as counts:
        yield counts


def test_the_key_has_the_post_as_hash_tag() -> None:
    assert redis_key("comments", "post-1") == "count:comment:delta:{post-1}"
    assert redis_key("likes", "post-1") == "count:likes:delta:{post-1}"


async def test_what_is_pending_is_in_redis_until_a_flush_has_applied_it(
    counts: Counting, client: redis.asyncio.Redis
) -> None:
    await counts.flush()
    await counts.publish(comment_created(), comment_created())
    await counts.call("p-1", 3)
    assert await client.get("count:comment:delta:{p-1}") == "5"
    assert 0 < await client.ttl("count:comment:delta:{p-1}") <= 60
    await counts.flush()
    assert await client.keys("count:*") == []
    assert await counts.value("p-1") == 5


async def test_after_redis_was_emptied_the_sums_are_counted_again_from_the_log_and_reported(
    counts: Counting, client: redis.asyncio.Redis
) -> None:
    await counts.call("old", 7)
    await counts.flush()
    await counts.call("p-1", 2)
    await client.flushall()
    await counts.call("p-1", 1)
    assert await client.get("count:comment:delta:{p-1}") == "1"
    recounts = telemetry.COUNTER_RECOUNTS._value.get()
    assert counts.pending is not None
    with capture_logs() as logs:
        await counts.flusher._recount_if_lost(counts.pending)
    assert await client.get("count:comment:delta:{p-1}") == "3"
    assert await client.exists("count:comment:delta:{old}") == 0
    assert telemetry.COUNTER_RECOUNTS._value.get() == recounts + 1
    (counted,) = [line for line in logs if line["event"] == "pending sums counted again"]
    (batch,) = await counts.batches()
    assert (counted["counters"], counted["since"]) == (1, counts.store.dialect.time(batch["processed_to"]).isoformat())
    async with counts.store.read() as tx:
        newest, *_ = await runs_store.find_newest(tx, "recount", 5)
    assert newest.result is not None
    assert newest.result.startswith("1 counters, since 2")
    await counts.flush()
    assert await client.keys("count:*") == []


async def test_without_a_loss_nothing_is_counted_again(counts: Counting) -> None:
    await counts.flush()
    for _ in range(3):
        await counts.call("p-1", 1)
        await counts.flush()
    async with counts.store.read() as tx:
        assert len(await runs_store.find_newest(tx, "recount", 5)) == 1


async def test_while_redis_is_away_counting_goes_on_and_afterwards_redis_catches_up(
    store: Store, settings: Settings
) -> None:
    server = start_redis()
    url = server.url
    async with counting(store, settings.model_copy(update={"redis_url": url})) as counts:
        await counts.flush()
        await counts.call("p-1", 1)
        server.stop()
        await counts.call("p-1", 2)
        await counts.publish(comment_created())
        assert await counts.value("p-1") == 4
        await counts.flush()
        await counts.call("p-1", 8)
        assert await counts.value("p-1") == 12
        assert (await counts.stored())["comments", "p-1"] == 4
        server.start()
        try:
            await counts.send_pending()
            await counts.flusher._recount_if_lost(counts.pending)  # type: ignore[arg-type]
            async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
                assert await client.get("count:comment:delta:{p-1}") == "8"
        finally:
            server.stop()


async def test_a_change_that_could_not_be_written_makes_the_sums_incomplete(redis_server: RedisServer) -> None:
    async with redis.asyncio.Redis.from_url(redis_server.url) as client:
        await client.set(MARKER, 1)
        pending = PendingSums(redis_server.url, 3)
        assert await pending.are_complete()
        pending._drop()
        assert not await pending.are_complete()
        await pending.tick()
        assert await client.exists(MARKER) == 0
        await pending.stop()


async def test_a_key_that_holds_something_else_does_not_stop_the_others(
    redis_server: RedisServer, client: redis.asyncio.Redis
) -> None:
    pending = PendingSums(redis_server.url, 3)
    await client.set("count:comment:delta:{bad}", "no number")
    pending.add([KeySum("comments", "bad", 1), KeySum("comments", "good", 2)])
    await pending.stop()
    assert await client.get("count:comment:delta:{good}") == "2"
