"""How long an event takes from the request that brings it to the bytes on an open page, at a hundred events a second."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import orjson
from tests.support.servers import start_redis

from bench import cores
from bench.client import Client, encode
from bench.ground import KEYS, Ground
from bench.host import Taken
from bench.serving import serving
from bongsu.api.stream import PATH
from bongsu.runtime.keys import Keys
from bongsu.settings import Settings

EVENTS_A_SECOND = 100
# A host may take a processor away for ten times as long as an event takes: one such moment is a round's, not all of them.
ROUNDS, SECONDS = 5, 10
QUICK_ROUNDS, QUICK_SECONDS = 2, 5
# What comes first finds nothing warm, and is not counted.
WARM_UP = 200
PAGES = 200
# More than can be under way at once, unless something is wrong.
CONNECTIONS = 32
BUDGET_SECONDS = 0.050
# Fewer than these have no hundredth to speak of.
LEAST = 200
PATIENCE_SECONDS = 30.0
ROLES = ("api", "worker", "gateway")

Serving = Callable[[Settings], contextlib.AbstractAsyncContextManager[tuple[int, int]]]

_ARRIVED = re.compile(rb'"refId":"(\d+)"')


async def report(ground: Ground) -> str:
    """A line for each way to run it: round by round they take turns, each time with servers and a database of their own."""
    rounds, seconds = (QUICK_ROUNDS, QUICK_SECONDS) if ground.is_quick else (ROUNDS, SECONDS)
    lines = [
        f"{EVENTS_A_SECOND} events a second for {seconds} s, {rounds} times, each for one of {PAGES} members with a page "
        "open; from the first byte of the request to the bytes at the page. Each round has its own 99 of 100, and here are "
        f"their median and spread (budget: {BUDGET_SECONDS * 1000:.0f} ms); while the host took nothing, of all rounds "
        "together.",
        "",
        "| | accepted, median | at the page, median | 99 of 100 | spread | | while the host took nothing | of all |",
        "|---|--:|--:|--:|--:|---|--:|--:|",
    ]
    redis = start_redis()

    async def round_of(kind: Serving, settings: Settings) -> list[Way]:
        async with kind(settings) as (api, gateway):
            return await measure(settings, api, gateway, seconds)

    sqlite, postgres, apart = [], [], []
    try:
        for _ in range(rounds):
            sqlite.append(await round_of(serving_all, await ground.sqlite()))
            postgres.append(await round_of(serving_all, await ground.postgres()))
            settings = (await ground.postgres()).model_copy(update={"redis_url": redis.url})
            apart.append(await round_of(serving_apart, settings))
    finally:
        redis.stop()
    lines.append(_line("all roles in one process, SQLite", sqlite))
    lines.append(_line("all roles in one process, PostgreSQL", postgres))
    lines.append(_line("a process each, PostgreSQL and Redis", apart))
    return "\n".join(lines)


@contextlib.asynccontextmanager
async def serving_all(settings: Settings) -> AsyncIterator[tuple[int, int]]:
    """The ports of API and gateway."""
    async with contextlib.AsyncExitStack() as stack:
        with cores.servers():
            server = await stack.enter_async_context(serving(_roomy(settings), role="all"))
        yield server.port, server.port


@contextlib.asynccontextmanager
async def serving_apart(settings: Settings) -> AsyncIterator[tuple[int, int]]:
    """Three processes would have machines of their own: they have both cores."""
    async with contextlib.AsyncExitStack() as stack:
        with cores.anywhere():
            ports = {}
            for role in ROLES:
                ports[role] = (await stack.enter_async_context(serving(_roomy(settings), role=role))).port
        yield ports["api"], ports["gateway"]


def _roomy(settings: Settings) -> Settings:
    """The daily limit is not what is measured."""
    return settings.model_copy(update={"daily_limit": 1_000_000})


def _line(name: str, rounds: Sequence[Sequence[Way]]) -> str:
    ways = [way for one in rounds for way in one]
    undisturbed = [way.arrived for way in ways if not way.is_disturbed]
    lasts = [_99_of_100([way.arrived for way in one]) for one in rounds]
    cells = (
        _millis(statistics.median(way.accepted for way in ways)),
        _millis(statistics.median(way.arrived for way in ways)),
        _millis(statistics.median(lasts)),
        f"{min(lasts) * 1000:.1f}-{_millis(max(lasts))}",
        "met" if statistics.median(lasts) <= BUDGET_SECONDS else "missed",
        _millis(_99_of_100(undisturbed)) if len(undisturbed) >= LEAST else "-",
        f"{len(undisturbed) / len(ways):.0%}",
    )
    return f"| {name} | {' | '.join(cells)} |"


def _millis(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _99_of_100(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


@dataclass(frozen=True)
class Way:
    """How long an event took to be accepted, and to be at the page; and whether the host was busy with others meanwhile."""

    accepted: float
    arrived: float
    is_disturbed: bool


async def measure(settings: Settings, api: int, gateway: int, seconds: int) -> list[Way]:
    pages = await _open_pages(settings, gateway)
    sender = Sender(api)
    total = WARM_UP + seconds * EVENTS_A_SECOND
    taken = Taken()
    try:
        async with taken.watched():
            await sender.send_all(total)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while sum(len(page.arrived) for page in pages) < total:
                    await asyncio.sleep(0.01)
    finally:
        for page in pages:
            page.close()
    arrived = {number: at for page in pages for number, at in page.arrived.items()}
    return [
        Way(
            sender.accepted[number] - sender.began[number],
            arrived[number] - sender.began[number],
            taken.was(sender.began[number], arrived[number]),
        )
        for number in range(WARM_UP, total)
    ]


class Sender:
    """Sends by the clock, whether or not the last one was answered."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: asyncio.Queue[Client] = asyncio.Queue()
        self.began: dict[int, float] = {}
        self.accepted: dict[int, float] = {}

    async def send_all(self, count: int) -> None:
        for _ in range(CONNECTIONS):
            self._free.put_nowait(await Client.connect(self._port))
        first = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await asyncio.sleep(max(0.0, first + number / EVENTS_A_SECOND - time.perf_counter()))
                group.create_task(self._send(number))
        while not self._free.empty():
            self._free.get_nowait().close()

    async def _send(self, number: int) -> None:
        event = {
            "eventType": "comment.created", "actorId": "somebody", "targetId": f"member-{number % PAGES}",
            "refId": str(number), "payload": {"actorName": "민수"},
        }  # fmt: skip
        request = encode("/api/events", orjson.dumps(event), "application/json", KEYS["api_keys"])
        self.began[number] = time.perf_counter()
        client = await self._free.get()
        await client.send(request)
        self.accepted[number] = time.perf_counter()
        self._free.put_nowait(client)


class Page(asyncio.Protocol):
    """One open stream, which notes when what arrived."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = b""
        self.arrived: dict[int, float] = {}
        self.live: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._received += data
        whole, found, self._received = self._received.rpartition(b"\n\n")
        if found and not self.live.done() and b"id: " in whole:
            self.live.set_result(None)
        for number in _ARRIVED.findall(whole):
            self.arrived[int(number)] = now

    def close(self) -> None:
        self._transport.abort()


async def _open_pages(settings: Settings, port: int) -> list[Page]:
    keys = Keys.load(settings)
    pages = []
    for number in range(PAGES):
        token = keys.member_token(f"member-{number}", timedelta(hours=1))
        request = f"GET {PATH} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        _, page = await asyncio.get_running_loop().create_connection(functools.partial(Page, request), "127.0.0.1", port)
        pages.append(page)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(page.live for page in pages))
    return pages
