"""event: what one ordinary event costs our process, from request to recorded push, against a hand-written service."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import orjson
import psutil
from tests.simulator.running import Simulator, simulating
from tests.support.servers import start_redis

from bench.client import Client, encode
from bench.ground import KEYS, Ground
from bench.measure import Contest, Measure
from bench.serving import Server, listening, serving
from bongsu.settings import Settings

TITLE = "CPU of one ordinary event"
BUDGET = 1.0

RATES = (100, 300)
# Long enough that garbage collection, metrics and polling have their part in it.
SECONDS = 6
MEMBERS = 200
CONNECTIONS = 16
PATIENCE_SECONDS = 60.0


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    redis = start_redis()
    try:
        for name, make in (("PostgreSQL and Redis", ground.postgres), ("SQLite", ground.sqlite)):
            redis_url = redis.url if name.startswith("PostgreSQL") else ""
            settings, folder = await make(), (await ground.sqlite()).data_dir
            database = (await ground.postgres()).database_url if redis_url else str(folder / "handwritten.db")
            with simulating() as ours_fcm, simulating() as theirs_fcm:
                async with (
                    _ours(settings, ours_fcm, redis_url) as ours,
                    _handwritten(folder, database, theirs_fcm, redis_url) as theirs,
                ):
                    for rate in RATES:
                        yield Contest(
                            f"{name}, {rate} events a second",
                            "FastAPI, asyncpg or aiosqlite, aiohttp, one event at a time",
                            "event",
                            Measure.TIME,
                            Load(theirs, theirs_fcm, rate).run,
                            Load(ours, ours_fcm, rate).run,
                            units_a_turn=rate * SECONDS,
                            budget=BUDGET,
                        )
    finally:
        redis.stop()


@contextlib.asynccontextmanager
async def _ours(settings: Settings, simulator: Simulator, redis_url: str) -> AsyncIterator[Server]:
    """All roles in one process. The daily limit is not what is measured."""
    changed = {"fcm_url": simulator.address, "fcm_project": "bench", "redis_url": redis_url, "daily_limit": 1_000_000}
    async with serving(settings.model_copy(update=changed), role="all") as server:
        yield server


@contextlib.asynccontextmanager
async def _handwritten(folder: Path, database: str, simulator: Simulator, redis_url: str) -> AsyncIterator[Server]:
    program = ["-m", "bench.rivals.handwritten", "--database", database, "--fcm", simulator.address, "--redis", redis_url]
    async with listening(program, folder) as server:
        yield server


class Load:
    """Events at a steady rate, each about one of some members with a device; how much processor time the server took."""

    def __init__(self, server: Server, simulator: Simulator, rate: int) -> None:
        self._server = server
        self._simulator = simulator
        self._rate = rate
        self._process = psutil.Process(server.pid)
        self._number = 0
        self._is_prepared = False

    async def run(self) -> float:
        if not self._is_prepared:
            await self._register()
        before, accepted = self._seconds(), self._accepted()
        count = self._rate * SECONDS
        await self._send(count)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self._accepted() < accepted + count:
                await asyncio.sleep(0.05)
        return self._seconds() - before

    async def _register(self) -> None:
        client = await Client.connect(self._server.port)
        for number in range(MEMBERS):
            body = orjson.dumps({"token": f"token-{number}", "platform": "ANDROID", "pushConsent": True})
            await client.send(_put(f"/api/members/m-{number}/devices/phone", body), b"HTTP/1.1 200 ")
        client.close()
        self._is_prepared = True

    async def _send(self, count: int) -> None:
        free: asyncio.Queue[Client] = asyncio.Queue()
        for _ in range(CONNECTIONS):
            free.put_nowait(await Client.connect(self._server.port))
        first = time.perf_counter()

        async def send_one(request: bytes) -> None:
            client = await free.get()
            await client.send(request)
            free.put_nowait(client)

        async with asyncio.TaskGroup() as group:
            for place in range(count):
                await asyncio.sleep(max(0.0, first + place / self._rate - time.perf_counter()))
                group.create_task(send_one(self._request()))
        while not free.empty():
            free.get_nowait().close()

    def _request(self) -> bytes:
        self._number += 1
        event = {
            "eventType": "follow.created", "actorId": f"a-{time.time_ns()}", "targetId": f"m-{self._number % MEMBERS}",
            "refId": f"r-{time.time_ns()}", "payload": {"actorName": "민수"},
        }  # fmt: skip
        return encode("/api/events", orjson.dumps(event), "application/json", KEYS["api_keys"])

    def _seconds(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _accepted(self) -> int:
        return int(self._simulator.stats()["accepted"])


def _put(path: str, body: bytes) -> bytes:
    return encode(path, body, "application/json", KEYS["api_keys"]).replace(b"POST", b"PUT", 1)
