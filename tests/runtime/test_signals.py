"""Signals: one suite over both kinds, then what only Redis can get wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import redis.asyncio

from bongsu.runtime.redis_signals import RedisSignals
from bongsu.runtime.signals import LocalSignals, Signals
from tests.support.servers import RedisServer, start_redis


class Ear:
    """Hears signals and lets a test wait for them."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[bytes | None] = asyncio.Queue()

    def __call__(self, data: bytes | None) -> None:
        self.heard.put_nowait(data)

    def forget(self) -> None:
        while not self.heard.empty():
            self.heard.get_nowait()

    async def next(self) -> bytes | None:
        async with asyncio.timeout(20):
            return await self.heard.get()

    async def next_data(self) -> bytes:
        """The next signal that is not "some may have been missed"."""
        while (data := await self.next()) is None:
            pass
        return data


@pytest.fixture(params=["local", "redis"])
async def signals(request: pytest.FixtureRequest) -> AsyncIterator[Signals]:
    kind: Signals
    if request.param == "local":
        kind = LocalSignals()
    else:
        kind = RedisSignals(request.getfixturevalue("redis_server").url)
    await kind.start()
    yield kind
    await kind.stop()


async def settled(*signals: Signals) -> None:
    for kind in signals:
        if isinstance(kind, RedisSignals):
            async with asyncio.timeout(20):
                await kind.wait_all_subscribed()


async def test_every_listener_of_a_topic_gets_a_signal_and_no_other_does(signals: Signals) -> None:
    first, second, other = Ear(), Ear(), Ear()
    with signals.listen("a", first), signals.listen("a", second), signals.listen("b", other):
        await settled(signals)
        signals.send("a", b"news")
        assert await first.next_data() == b"news"
        assert await second.next_data() == b"news"
        signals.send("b", b"last")
        assert await other.next_data() == b"last"


async def test_signals_arrive_once_and_in_order(signals: Signals) -> None:
    ear = Ear()
    with signals.listen("a", ear):
        await settled(signals)
        for number in range(100):
            signals.send("a", str(number).encode())
        assert [await ear.next_data() for _ in range(100)] == [str(number).encode() for number in range(100)]
        signals.send("a", b"end")
        assert await ear.next_data() == b"end"


async def test_after_the_context_no_signal_arrives(signals: Signals) -> None:
    gone, there = Ear(), Ear()
    with signals.listen("a", there):
        with signals.listen("a", gone):
            await settled(signals)
        gone.forget()
        signals.send("a", b"x")
        assert await there.next_data() == b"x"
    assert gone.heard.empty()


async def test_a_listener_that_crashes_does_not_keep_signals_from_others(signals: Signals) -> None:
    def crash(_data: bytes | None) -> None:
        raise RuntimeError("a bug")

    ear = Ear()
    with signals.listen("a", crash), signals.listen("a", ear):
        await settled(signals)
        signals.send("a", b"x")
        assert await ear.next_data() == b"x"


async def test_sending_where_nobody_listens_is_fine(signals: Signals) -> None:
    signals.send("nobody", b"x")
    ear = Ear()
    with signals.listen("a", ear):
        await settled(signals)
        signals.send("a")
        assert await ear.next_data() == b""


async def test_start_and_stop_may_be_called_twice(signals: Signals) -> None:
    await signals.start()
    await signals.stop()
    await signals.stop()
    ear = Ear()
    with signals.listen("a", ear):
        signals.send("a", b"after the end")  # never raises, and reaches who is here
    assert ear.heard.get_nowait() == b"after the end"


async def test_who_has_waited_for_the_subscription_misses_nothing(signals: Signals) -> None:
    ears = [Ear() for _ in range(200)]
    with contextlib.ExitStack() as stack:
        for number, ear in enumerate(ears):
            stack.enter_context(signals.listen(f"member:{number}", ear))
        assert all(await asyncio.gather(*(signals.wait_subscribed(f"member:{number}") for number in range(200))))
        assert signals.is_connected
        for number in range(200):
            signals.send(f"member:{number}", str(number).encode())
        assert [await ear.next_data() for ear in ears] == [str(number).encode() for number in range(200)]


async def test_topics_come_and_go_in_any_order_and_only_open_ones_get_signals(signals: Signals) -> None:
    for _ in range(20):
        with signals.listen("a", Ear()):
            pass
    ear, second = Ear(), Ear()
    with signals.listen("a", ear):
        with signals.listen("a", second):
            assert await signals.wait_subscribed("a")
        assert await signals.wait_subscribed("a")
        signals.send("a", b"x")
        assert await ear.next_data() == b"x"


# --- over Redis -------------------------------------------------------------------------------------------------------


async def test_another_process_gets_the_signal(redis_server: RedisServer) -> None:
    here, there = RedisSignals(redis_server.url), RedisSignals(redis_server.url)
    await here.start()
    await there.start()
    ear, own = Ear(), Ear()
    with there.listen("a", ear), here.listen("a", own):
        await settled(here, there)
        here.send("a", b"over")
        assert await ear.next_data() == b"over"
        there.send("a", b"and back")
        # Heard once each: the sender is not told by Redis what it has told itself.
        assert [await own.next_data(), await own.next_data()] == [b"over", b"and back"]
        assert own.heard.empty()
    await here.stop()
    await there.stop()


async def test_a_topic_that_was_left_and_joined_again_gets_signals_of_other_processes(redis_server: RedisServer) -> None:
    here, there = RedisSignals(redis_server.url), RedisSignals(redis_server.url)
    await here.start()
    await there.start()
    try:
        for number in range(30):
            ear = Ear()
            with there.listen("a", ear):
                assert await there.wait_subscribed("a")
                here.send("a", str(number).encode())
                assert await ear.next_data() == str(number).encode()
    finally:
        await here.stop()
        await there.stop()


async def test_a_topic_taken_up_again_before_redis_has_answered_waits_for_the_answer(redis_server: RedisServer) -> None:
    signals = RedisSignals(redis_server.url)
    receiver = signals._receiver
    with signals.listen("t", Ear()):
        # As when Redis has been asked for it.
        receiver._to_subscribe.remove("t")
        receiver._requested["t"] += 1
    with signals.listen("t", Ear()):
        assert receiver._unconfirmed == {"t"}
        receiver._confirm("t")
        assert receiver._unconfirmed == set()
    await signals.stop()


async def test_a_watcher_is_called_when_redis_goes_and_when_it_is_back() -> None:
    server = start_redis()
    signals = RedisSignals(server.url)
    told: asyncio.Queue[bool] = asyncio.Queue()
    await signals.start()
    try:
        with signals.watch(told.put_nowait), signals.listen("a", Ear()):
            assert await signals.wait_subscribed("a")
            server.crash()
            async with asyncio.timeout(20):
                assert await told.get() is False
            assert not signals.is_connected
            assert not await signals.wait_subscribed("a")
            server.start()
            async with asyncio.timeout(20):
                assert await told.get() is True
                while not await signals.wait_subscribed("a"):
                    pass
            assert signals.is_connected
            # A connection that broke alone is no reason to tell anybody.
            async with redis.asyncio.Redis.from_url(server.url) as operator:
                await operator.client_kill_filter(_type="pubsub")
            assert await signals.wait_subscribed("a")
            assert told.empty()
    finally:
        await signals.stop()
        server.stop()


async def test_a_killed_subscription_comes_back_and_signals_that_some_may_have_been_missed(
    redis_server: RedisServer,
) -> None:
    signals = RedisSignals(redis_server.url)
    await signals.start()
    ear = Ear()
    with signals.listen("a", ear):
        await settled(signals)
        ear.forget()
        async with redis.asyncio.Redis.from_url(redis_server.url) as operator:
            await operator.client_kill_filter(_type="pubsub")
        assert await ear.next() is None
        await settled(signals)
    await signals.stop()


async def test_with_redis_away_sending_returns_at_once_and_all_heals_when_it_is_back() -> None:
    server = start_redis()
    here, there = RedisSignals(server.url), RedisSignals(server.url)
    await here.start()
    await there.start()
    ear, own = Ear(), Ear()
    try:
        with there.listen("a", ear), here.listen("a", own):
            await settled(here, there)
            server.crash()
            here.send("a", b"into the void")
            assert await own.next_data() == b"into the void"
            ear.forget()
            server.start()
            assert await ear.next() is None
            here.send("a", b"back again")
            assert await ear.next_data() == b"back again"
    finally:
        await here.stop()
        await there.stop()
        server.stop()


async def test_stopping_while_redis_is_away_does_not_hang() -> None:
    server = start_redis()
    signals = RedisSignals(server.url)
    await signals.start()
    ear = Ear()
    with signals.listen("a", ear):
        await settled(signals)
        ear.forget()
        server.stop()
        signals.send("a", b"x")
        assert await ear.next() == b"x"
    async with asyncio.timeout(20):
        await signals.stop()


async def test_stopping_after_a_long_silence_is_not_a_crash(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both happen at the same moment: there was nothing to hear, and the connection is hung up."""
    signals = RedisSignals(redis_server.url)
    await signals.start()
    receiver = signals._receiver

    async def hear_nothing(*_: object, **__: object) -> None:
        while receiver._pubsub is not None:
            await asyncio.sleep(0)

    monkeypatch.setattr(redis.asyncio.client.PubSub, "get_message", hear_nothing)
    with signals.listen("a", Ear()):
        async with asyncio.timeout(20):
            while receiver._pubsub is None:
                await asyncio.sleep(0)
    await signals.stop()
    assert not receiver.crashed.is_set()


async def test_stopping_while_a_ping_is_written_is_not_a_crash(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py writes in a task of its own: the connection may be closed before that begins."""
    signals = RedisSignals(redis_server.url)
    receiver, is_pinging = signals._receiver, asyncio.Event()
    original = redis.asyncio.connection.AbstractConnection._send_packed_command

    async def write_late(connection: redis.asyncio.Connection, command: list[bytes]) -> None:
        if any(b"PING" in piece for piece in command):
            is_pinging.set()
            while receiver._pubsub is not None:
                await asyncio.sleep(0)
            while connection.is_connected:
                await asyncio.sleep(0)
        await original(connection, command)

    async def hear_nothing(*_: object, **__: object) -> None:
        """As after a silence."""

    monkeypatch.setattr(redis.asyncio.connection.AbstractConnection, "_send_packed_command", write_late)
    monkeypatch.setattr(redis.asyncio.client.PubSub, "get_message", hear_nothing)
    await signals.start()
    async with asyncio.timeout(20):
        await is_pinging.wait()
        await signals.stop()
    assert not receiver.crashed.is_set()


async def test_never_started_it_still_stops_and_serves_this_process() -> None:
    signals, ear = RedisSignals("redis://127.0.0.1:1/0"), Ear()
    with signals.listen("a", ear):
        signals.send("a", b"x")
    await signals.stop()
    assert ear.heard.get_nowait() == b"x"
