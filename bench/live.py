"""live: a message to thousands of open streams, what an idle stream costs, and how soon a page hears of an event."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import psutil
from tests.support.servers import start_redis

from bench import arrival, cores
from bench.broadcast import HAS_RIVAL, Audience, bare, ours, rival, starlette_loop, websockets_broadcast
from bench.ground import Ground
from bench.measure import Contest, Measure
from bench.serving import busiest
from bench.streams import room_for
from bongsu.settings import Settings

TITLE = "live streams"
RIVAL_BUDGET = 4.0
BARE_BUDGET = 0.5
MEMORY_BUDGET = 0.4

STREAMS = 5_000
IDLE_STREAMS = 5_000
QUICK_IDLE_STREAMS = 1_000
MANY_STREAMS = 10_000
# One ping interval, so that every stream is pinged and read for once.
IDLE_SECONDS = 20.0
# Messages whose cost is looked at from the side.
LOOKED_AT = 20
# Messages a round. The host takes a processor away for as long as a message takes: with few, a round says what it took.
MANY_TURNS = 5
# Of one who takes ten times as long.
FEW_TURNS = 2
# While a message is timed nobody is pinged: neither do the others ping.
NO_PINGS = 3_600.0


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    with cores.clients():
        async with _settings(ground, sse_ping_seconds=NO_PINGS) as settings:
            async for contest in _fan_out(settings):
                yield contest
            async for contest in _socket_fan_out(settings):
                yield contest
            if HAS_RIVAL:
                yield _memory(settings, QUICK_IDLE_STREAMS if ground.is_quick else IDLE_STREAMS)


async def notes(ground: Ground) -> dict[str, str]:
    found = {}
    with cores.clients():
        async with _settings(ground, sse_ping_seconds=NO_PINGS) as settings:
            found[f"Whose processor time, one message to {STREAMS:,} streams"] = await _shares(settings)
            found[f"Profile of {LOOKED_AT} such messages, our gateway"] = await _profile(settings)
        async with _settings(ground) as settings:
            found[f"{MANY_STREAMS:,} idle streams"] = await _idle(settings)
        found["From an event to the page"] = await arrival.report(ground)
    if not HAS_RIVAL:
        found["Left out"] = "Not installed: sse-starlette. `pip install -e '.[bench]'` adds it."
    if not cores.ARE_APART:
        found["Cores"] = "There is one core, or no say over it: server and client shared it."
    if ground.is_quick:
        found["Quick"] = (
            f"A first impression: memory of {QUICK_IDLE_STREAMS:,} streams instead of {IDLE_STREAMS:,}, "
            f"events for {arrival.QUICK_SECONDS} s instead of {arrival.SECONDS}, {arrival.QUICK_ROUNDS} times instead of "
            f"{arrival.ROUNDS}."
        )
    return found


@contextlib.asynccontextmanager
async def _settings(ground: Ground, **changes: float) -> AsyncIterator[Settings]:
    """PostgreSQL and a Redis of their own."""
    settings, redis = await ground.postgres(), start_redis()
    cores.keep_databases_away()
    try:
        yield settings.model_copy(update={"redis_url": redis.url, **changes})
    finally:
        redis.stop()


# --- one message to all -------------------------------------------------------------------------------------------------


async def _fan_out(settings: Settings) -> AsyncGenerator[Contest, None]:
    """All servers stay up with all their streams, silent while it is not their turn."""
    kinds: list[tuple[str, float, int, Callable[[Path], contextlib.AbstractAsyncContextManager[Audience]]]] = [
        ("a bare asyncio protocol", BARE_BUDGET, MANY_TURNS, bare)
    ]
    if HAS_RIVAL:
        kinds.append(("sse-starlette", RIVAL_BUDGET, FEW_TURNS, rival))
    count = min(STREAMS, room_for(STREAMS * (1 + len(kinds))) // (1 + len(kinds)))
    async with ours(settings) as gateway:
        await gateway.open(count)
        for against, budget, turns, kind in kinds:
            async with kind(settings.data_dir) as theirs:
                await theirs.open(count)
                yield Contest(
                    f"one message to {count:,} streams", against, "message", Measure.SPEED, theirs.send, gateway.send,
                    turns=turns, units_a_turn=count, budget=budget,
                )  # fmt: skip


async def _socket_fan_out(settings: Settings) -> AsyncGenerator[Contest, None]:
    """The same over WebSocket. Theirs send one text to all; ours reads each member's notification from the store."""
    count = min(STREAMS, room_for(STREAMS * 2) // 2)
    async with ours(settings, is_ws=True) as gateway:
        await gateway.open(count)
        for against, kind in (("`websockets.broadcast`", websockets_broadcast), ("a Starlette loop", starlette_loop)):
            async with kind(settings.data_dir) as theirs:
                await theirs.open(count)
                yield Contest(
                    f"one message to {count:,} WebSockets", against, "message", Measure.SPEED, theirs.send, gateway.send,
                    turns=FEW_TURNS, units_a_turn=count,
                )  # fmt: skip


async def _shares(settings: Settings) -> str:
    """What is over the bare server's is what ours has to know of each reader."""
    lines = ["| | processor time of the server |", "|---|--:|"]
    count = min(STREAMS, room_for(STREAMS))
    audiences: list[tuple[str, contextlib.AbstractAsyncContextManager[Audience]]] = [
        ("a bare asyncio protocol", bare(settings.data_dir)),
        ("ours", ours(settings)),
        ("ours, WebSocket", ours(settings, is_ws=True)),
        ("`websockets.broadcast`", websockets_broadcast(settings.data_dir)),
    ]
    for name, audience in audiences:
        async with audience as some:
            await some.open(count)
            server = psutil.Process(some.server.pid)
            await some.send()
            before = server.cpu_times()
            for _ in range(LOOKED_AT):
                await some.send()
            after = server.cpu_times()
        used = after.user + after.system - before.user - before.system
        lines.append(f"| {name} | {used / LOOKED_AT / count * 1e6:.1f} µs a stream |")
    return "\n".join(lines)


async def _profile(settings: Settings) -> str:
    file = settings.data_dir / "live.prof"
    async with ours(settings, file) as gateway:
        await gateway.open(min(STREAMS, room_for(STREAMS)))
        for _ in range(LOOKED_AT):
            await gateway.send()
    return busiest(file)


# --- what an idle stream costs ------------------------------------------------------------------------------------------


def _memory(settings: Settings, count: int) -> Contest:
    async def theirs() -> float:
        async with rival(settings.data_dir) as audience:
            return await _growth(audience, count)

    async def gateways() -> float:
        async with ours(settings) as audience:
            return await _growth(audience, count)

    return Contest(
        f"memory of an idle stream, {count:,} open", "sse-starlette", "stream", Measure.MEMORY, theirs, gateways,
        units_a_turn=count, budget=MEMORY_BUDGET,
    )  # fmt: skip


async def _growth(audience: Audience, count: int) -> float:
    """Bytes the server's own memory grows by. The first few streams are what any server needs to have served at all."""
    await audience.open(count // 10)
    process = psutil.Process(audience.server.pid)
    before = process.memory_full_info().uss
    await audience.open(count)
    return float(process.memory_full_info().uss - before)


async def _idle(settings: Settings) -> str:
    count = min(MANY_STREAMS, room_for(MANY_STREAMS))
    async with ours(settings) as gateway:
        await gateway.open(count)
        process = psutil.Process(gateway.server.pid)
        before = process.cpu_times()
        await asyncio.sleep(IDLE_SECONDS)
        after = process.cpu_times()
        used = after.user + after.system - before.user - before.system
        memory = process.memory_full_info().uss
    return (
        f"One gateway with {count:,} streams that nobody writes to, each pinged and looked after every "
        f"{settings.sse_ping_seconds:.0f} s: {used / IDLE_SECONDS:.1%} of a core, {memory / 2**20:,.0f} MiB in all."
    )
