"""The wire's connections: which are used again, and how they end with time, with their callers and with the wire."""

from __future__ import annotations

import asyncio

import pytest

from bongsu.deliver.channels.http import client as clients
from bongsu.deliver.channels.http.client import Answer, HttpClient, NotSent, ResponseLost
from tests.deliver.channels.http.servers import OK, Peer, answering, hanging_up_after, in_use, only, serving, silence

JSON = {"Content-Type": "application/json"}

# --- used again ---------------------------------------------------------------------------------------------------------


async def test_many_at_once_have_a_connection_each_and_use_them_again(wire: HttpClient) -> None:
    async with serving(answering(OK)) as server:
        for _ in range(5):
            answers = await asyncio.gather(*(wire.post(server.url, JSON, b"%d" % number) for number in range(50)))
            assert {type(answer) for answer in answers} == {Answer}
        assert server.connections == in_use(wire) == 50
        assert len(server.requests) == 250


async def test_no_more_are_kept_than_asked_for() -> None:
    wire = HttpClient(60, idle_connections=2)
    async with serving(answering(OK)) as server:
        await asyncio.gather(*(wire.post(server.url, JSON, b"") for _ in range(5)))
        assert (server.connections, in_use(wire)) == (5, 2)
        await wire.close()


async def test_the_last_used_is_the_next(wire: HttpClient) -> None:
    async with serving(answering(OK)) as server:
        await asyncio.gather(*(wire.post(server.url, JSON, b"") for _ in range(3)))
        (pool,) = wire._pools.values()
        last = pool._idle[-1]
        await wire.post(server.url, JSON, b"")
        assert pool._idle[-1] is last
        assert len(pool._idle) == 3


async def test_a_connection_closed_by_the_server_is_forgotten(wire: HttpClient) -> None:
    async with serving(hanging_up_after(OK)) as server:
        for number in range(1, 4):
            assert isinstance(await wire.post(server.url, JSON, b"{}"), Answer)
            await asyncio.gather(*(connection.closed for connection in wire._connections()))
            assert wire._connections() == []
            assert server.connections == number


async def test_a_connection_that_speaks_unasked_is_dropped(wire: HttpClient) -> None:
    speak = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.hear()
        await peer.say(OK)
        await speak.wait()
        await peer.say(OK.replace(b"200 OK", b"500 No"))
        await peer.hear()

    async with serving(script) as server:
        assert isinstance(await wire.post(server.url, JSON, b"1"), Answer)
        connection = only(wire)
        speak.set()
        await connection.closed
        second = await wire.post(server.url, JSON, b"2")
        assert isinstance(second, Answer)
        assert second.status == 200
        assert server.connections == 2


async def test_an_old_connection_is_not_used_again(wire: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "IDLE_SECONDS", 0.0)
    async with serving(answering(OK)) as server:
        for _ in range(3):
            assert isinstance(await wire.post(server.url, JSON, b"{}"), Answer)
        assert server.connections == 3


@pytest.mark.slow
async def test_old_connections_are_closed_and_then_no_timer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "IDLE_SECONDS", 0.05)
    wire = HttpClient(5)
    async with serving(answering(OK)) as server:
        assert isinstance(await wire.post(server.url, JSON, b"{}"), Answer)
        connection = only(wire)
        await connection.closed
        assert wire._timer is None
        assert isinstance(await wire.post(server.url, JSON, b"{}"), Answer)
        await wire.close()


# --- time, and being called off ---------------------------------------------------------------------------------------


async def test_an_answer_that_does_not_come_is_a_timeout_and_its_connection_is_closed() -> None:
    wire = HttpClient(0.2)
    async with serving(silence) as server:
        began = asyncio.get_running_loop().time()
        outcome = await wire.post(server.url, JSON, b"{}")
        assert asyncio.get_running_loop().time() - began >= 0.19
        assert isinstance(outcome, ResponseLost)
        assert outcome.is_timeout
        await server.ended.wait()
        assert in_use(wire) == 0
        await wire.close()


async def test_an_answer_that_drips_does_not_outlast_the_timeout() -> None:
    async def script(peer: Peer) -> None:
        await peer.hear()
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            await peer.say(b"x")
            await asyncio.sleep(0.02)

    wire = HttpClient(0.2)
    async with serving(script) as server:
        outcome = await wire.post(server.url, JSON, b"{}")
        assert isinstance(outcome, ResponseLost)
        assert outcome.is_timeout
        await wire.close()


async def test_each_call_has_its_own_time_though_there_is_one_timer() -> None:
    """Those that began together end together, one that began later ends later, and an answered one is not touched."""
    loop = asyncio.get_running_loop()

    async def script(peer: Peer) -> None:
        while request := await peer.hear():
            if request.endswith(b"answer"):
                await peer.say(OK)

    async def timed(body: bytes) -> tuple[Answer | NotSent | ResponseLost, float]:
        began = loop.time()
        return await wire.post(server.url, JSON, body), loop.time() - began

    wire = HttpClient(0.4)
    async with serving(script) as server:
        assert isinstance(await wire.post(server.url, JSON, b"answer"), Answer)
        first = [asyncio.create_task(timed(b"silence")) for _ in range(10)]
        await asyncio.sleep(0.15)
        later = asyncio.create_task(timed(b"silence"))
        for task in [*first, later]:
            outcome, seconds = await task
            assert isinstance(outcome, ResponseLost)
            assert outcome.is_timeout
            assert seconds >= 0.39
        assert isinstance(await wire.post(server.url, JSON, b"answer"), Answer)
        await wire.close()


async def test_a_timer_set_for_an_idle_connection_does_not_hold_up_a_calls_end() -> None:
    async def script(peer: Peer) -> None:
        await peer.hear()
        await peer.say(OK)
        await peer.hear()
        await peer.hear()

    loop = asyncio.get_running_loop()
    wire = HttpClient(0.3)
    async with serving(script) as server:
        assert isinstance(await wire.post(server.url, JSON, b"1"), Answer)
        wire._sweep(loop)  # it comes back when the idle one is old
        idle_until = wire._sweep_at
        outcome = await wire.post(server.url, JSON, b"2")
        assert isinstance(outcome, ResponseLost)
        assert outcome.is_timeout
        assert loop.time() < idle_until
        await wire.close()


async def test_a_cancelled_call_takes_its_connection_along(wire: HttpClient) -> None:
    async with serving(silence) as server:
        task = asyncio.create_task(wire.post(server.url, JSON, b"{}"))
        await server.heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert in_use(wire) == 0
        await server.ended.wait()


async def test_cancelled_while_connecting_leaves_no_connection(wire: HttpClient) -> None:
    async with serving(silence) as server:
        for steps in range(6):
            task = asyncio.create_task(wire.post(server.url, JSON, b"{}"))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert in_use(wire) == 0


async def test_an_answer_to_a_cancelled_call_does_not_bring_its_connection_back(wire: HttpClient) -> None:
    async with serving(silence) as server:
        task = asyncio.create_task(wire.post(server.url, JSON, b"{}"))
        await server.heard.wait()
        connection = only(wire)
        task.cancel()
        connection.data_received(OK)
        assert connection.is_closing, "before anybody else could have taken it"
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_cancelled_after_its_answer_it_does_not_take_the_connection_from_the_next(wire: HttpClient) -> None:
    async with serving(silence) as server:
        first = asyncio.create_task(wire.post(server.url, JSON, b"1"))
        await server.heard.wait()
        connection = only(wire)
        connection.data_received(OK)
        # Runs before the first resumes, and finds its connection free.
        second = wire.post(server.url, JSON, b"2")
        waits = second.send(None)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not connection.is_closing
        connection.data_received(OK)
        with pytest.raises(StopIteration) as returned:
            second.send(None)
        assert waits is not None
        assert isinstance(returned.value.value, Answer)


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_closing_ends_idle_connections_and_calls_under_way() -> None:
    async def script(peer: Peer) -> None:
        while request := await peer.hear():
            if request.endswith(b"answer"):
                await peer.say(OK)

    wire = HttpClient(60)
    async with serving(script) as server:
        await asyncio.gather(*(wire.post(server.url, JSON, b"answer") for _ in range(3)))
        server.heard.clear()
        task = asyncio.create_task(wire.post(server.url, JSON, b"silence"))
        await server.heard.wait()
        await wire.close()
        outcome = await task
        assert isinstance(outcome, ResponseLost)
        assert not outcome.is_timeout
        assert wire._connections() == []
        assert isinstance(await wire.post(server.url, JSON, b"{}"), NotSent)
        await wire.close()
        await asyncio.gather(*server.tasks)


async def test_closed_while_connecting_nothing_is_sent() -> None:
    wire = HttpClient(60)
    async with serving(answering(OK)) as server:
        task = asyncio.create_task(wire.post(server.url, JSON, b"{}"))
        await asyncio.sleep(0)
        await wire.close()
        assert isinstance(await task, NotSent)
        assert server.requests == []
