"""Two gateways, each a process of its own, with PostgreSQL and a Redis that may be harmed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from bongsu.live.registry import LEASE_SECONDS
from bongsu.runtime.redis_signals import RedisSignals
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from tests.conftest import KEYS
from tests.live.client import EventSource
from tests.live.harness import READERS, Ringer, bearer, ringing
from tests.support.processes import Served, serving
from tests.support.servers import PostgresServer, RedisServer, start_redis


@dataclass
class Cluster:
    settings: Settings
    redis: RedisServer
    program: Sequence[str] | None
    # Where readers go, one after the other. Changed when a gateway is replaced.
    addresses: list[str] = field(default_factory=list)
    gateways: list[Served] = field(default_factory=list)
    _running: list[contextlib.ExitStack] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        given = {
            "redis_url": self.redis.url,
            "database_url": self.settings.database_url,
            "data_dir": str(self.settings.data_dir),
            "sse_ping_seconds": str(self.settings.sse_ping_seconds),
            **KEYS,
        }
        return {f"BONGSU_{name.upper()}": value for name, value in given.items()}

    def start(self, count: int) -> None:
        with ThreadPoolExecutor(count) as pool:
            for stack, served in pool.map(lambda _: self._serve(), range(count)):
                self._running.append(stack)
                self.gateways.append(served)
                self.addresses.append(served.address)

    def _serve(self) -> tuple[contextlib.ExitStack, Served]:
        stack = contextlib.ExitStack()
        return stack, stack.enter_context(serving(self.environment(), "--role", "gateway", program=self.program))

    def kill(self, place: int) -> None:
        self.gateways[place].process.kill()
        self.gateways[place].process.wait()

    def replace(self, place: int) -> None:
        """A new one for one that has ended."""
        self._running[place].close()
        self._running[place], self.gateways[place] = self._serve()
        self.addresses[place] = self.gateways[place].address

    def stop(self) -> None:
        for stack in self._running:
            stack.close()

    def open(self, member_id: str, at: int | None = None, wire: str = "sse", **options: Any) -> EventSource:
        addresses = self.addresses if at is None else [self.addresses[at]]
        return READERS[wire](addresses, bearer(self.settings, member_id), **options)

    @contextlib.asynccontextmanager
    async def worker(self) -> AsyncIterator[Ringer]:
        """The worker's half, here."""
        store = Store.open(self.settings)
        signals = RedisSignals(self.redis.url)
        await signals.start()
        try:
            async with ringing(store, signals) as ringer:
                yield ringer
        finally:
            await signals.stop()
            await store.close()

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Redis]:
        async with Redis.from_url(self.redis.url) as client:
            yield client


@contextlib.contextmanager
def cluster_on(
    postgres: PostgresServer, folder: Path, count: int = 2, ping_seconds: float = 600, lease_seconds: float = LEASE_SECONDS
) -> Iterator[Cluster]:
    url = postgres.create_database()
    server = start_redis()
    settings = Settings(
        data_dir=folder, database_url=url, redis_url=server.url, sse_ping_seconds=ping_seconds, poll_seconds=0.05, **KEYS
    )
    asyncio.run(_migrate(settings))
    cluster = Cluster(settings, server, None if lease_seconds == LEASE_SECONDS else _leased_for(lease_seconds))
    try:
        cluster.start(count)
        yield cluster
    finally:
        cluster.stop()
        server.stop()
        postgres.drop_database(url)


def _leased_for(seconds: float) -> list[str]:
    """Nobody needs to set the lease but who cannot wait for it."""
    code = f"from bongsu.live import registry; registry.LEASE_SECONDS = {seconds}; from bongsu.cli.main import main; main()"
    return [sys.executable, "-c", code]


async def _migrate(settings: Settings) -> None:
    store = Store.open(settings)
    await migrate(store)
    await store.close()
