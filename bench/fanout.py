"""fan-out: everyone who looked at a product is notified that its price fell, all checks on.

Against the barest statements that write the same rows, against a loop over members, and against itself with fewer and more.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime

import asyncpg
import psutil
import redis.asyncio
from tests.support.servers import find_redis

from bench.crowd import PRODUCT, Crowd
from bench.ground import Ground
from bench.latency import latency
from bench.measure import Contest, Measure
from bongsu.settings import Settings
from bongsu.store import Query, Row, Share, Transaction

TITLE = "fan-out"
BARE_BUDGET = 0.5
LOOP_BUDGET = 25.0
FLAT_BUDGET = 1.20
MEMBERS = 300_000
FEW, MANY = 10_000, 1_000_000
LOOPED = 1_000


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    for make in (ground.postgres, ground.sqlite):
        async with _crowd(await make(), MEMBERS) as theirs, _crowd(await make(), MEMBERS) as ours:
            yield _against_bare(theirs, ours)
            if make == ground.postgres:
                async with _loop(await make(), LOOPED) as loop:
                    yield _against_loop(loop, ours)
        async with _crowd(await make(), FEW) as few, _crowd(await make(), _many(ground)) as many:
            yield _flat(few, many)


async def notes(ground: Ground) -> dict[str, str]:
    count = _many(ground)
    async with _crowd(await ground.postgres(), FEW) as few, _crowd(await ground.postgres(), count) as many:
        await few.tell()
        before = _memory()
        await many.tell()
        grown = _memory() - before
    parts = {}
    for make in (ground.postgres, ground.sqlite):
        async with _crowd(await make(), MEMBERS) as crowd:
            parts[f"Where ours goes, {_database(crowd)}"] = await _parts(crowd)
    return {
        **parts,
        "memory": f"The worker's memory grew by {grown:.0f} MB while it notified {count:,} members after {FEW:,}.",
        "latency": await latency(await ground.postgres()),
    }


def _many(ground: Ground) -> int:
    return MEMBERS if ground.is_quick else MANY


_REST = "begin, commit and Python"
# What a step's statements are for, by a text that no other has.
_PURPOSES = {
    # On PostgreSQL one statement; the parts below are SQLite's.
    "WITH decided AS": "store what was decided",
    "FROM bongsu_behaviors": "find the recipients",
    "INSERT INTO bongsu_decided": "lock the members and decide",
    "UPDATE bongsu_members": "count for each member",
    "INSERT INTO bongsu_notifications": "inbox rows",
    "INSERT INTO bongsu_deliveries": "deliveries",
}


class _Timed:
    """A transaction that adds up how long its statements take, by purpose."""

    def __init__(self, tx: Transaction, seconds: defaultdict[str, float]) -> None:
        self._tx = tx
        self._seconds = seconds
        self.dialect = tx.dialect

    async def fetch(self, *queries: Query) -> Sequence[Row]:
        *first, last = queries
        await self.execute(*first)
        with self._timed(last):
            return await self._tx.fetch(last)

    async def execute(self, *queries: Query) -> list[int]:
        counts = []
        for query in queries:
            with self._timed(query):
                counts += await self._tx.execute(query)
        return counts

    @contextlib.contextmanager
    def _timed(self, query: Query) -> Iterator[None]:
        statement = query.statement.postgres if self.dialect.name == "postgresql" else query.statement.sqlite
        purpose = next((name for text, name in _PURPOSES.items() if text in statement), "other statements")
        began = time.perf_counter()
        yield
        self._seconds[purpose] += time.perf_counter() - began


async def _parts(crowd: Crowd) -> str:
    """How long one fan-out spends on which statement. The inbox rows and deliveries are what the baseline writes too."""
    seconds: defaultdict[str, float] = defaultdict(float)
    transaction = crowd.store.database.transaction

    @contextlib.asynccontextmanager
    async def timed(share: Share) -> AsyncIterator[Transaction]:
        async with transaction(share) as tx:
            yield _Timed(tx, seconds)

    await crowd.tell()
    await crowd.forget()
    vars(crowd.store.database).update(transaction=timed)
    try:
        began = time.perf_counter()
        await crowd.tell()
        total = time.perf_counter() - began
    finally:
        del crowd.store.database.transaction
    seconds[_REST] += total - sum(seconds.values())
    lines = ["| | of a member's time | share |", "|---|--:|--:|"]
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        lines.append(f"| {name} | {spent / crowd.count * 1e6:.1f} µs | {spent / total:.0%} |")
    return "\n".join(lines)


def _memory() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


@contextlib.asynccontextmanager
async def _crowd(settings: Settings, count: int) -> AsyncIterator[Crowd]:
    crowd = await Crowd.gathered(settings, count)
    try:
        yield crowd
    finally:
        await crowd.leave()


def _against_bare(theirs: Crowd, ours: Crowd) -> Contest:
    async def prepare() -> None:
        await theirs.forget()
        await ours.forget()

    return Contest(
        f"{_database(ours)}, {MEMBERS:,} members",
        "INSERT … SELECT of the same rows",
        "member",
        Measure.SPEED,
        theirs.tell_barely,
        ours.tell,
        prepare,
        units_a_turn=MEMBERS,
        budget=BARE_BUDGET,
    )


def _flat(few: Crowd, many: Crowd) -> Contest:
    async def prepare() -> None:
        await few.forget()
        await many.forget()

    return Contest(
        f"{_database(few)}, {many.count:,} members",
        f"the same for {FEW:,}",
        "member",
        Measure.TIME,
        few.tell,
        many.tell,
        prepare,
        units_a_turn=many.count,
        baseline_units_a_turn=FEW,
        budget=FLAT_BUDGET,
    )


class _Loop:
    """One member after the other: two calls to Redis and an insert each, the way it is usually written."""

    def __init__(self, crowd: Crowd, database: asyncpg.Connection, client: redis.asyncio.Redis) -> None:
        self._crowd = crowd
        self._database = database
        self._redis = client

    async def forget(self) -> None:
        await self._crowd.forget()
        await self._redis.flushdb()

    async def tell(self) -> None:
        query = "SELECT member_id FROM bongsu_behaviors WHERE product_id = $1"
        for row in await self._database.fetch(query, PRODUCT):
            member_id = row["member_id"]
            if not await self._redis.set(f"sent:{member_id}:PRICE_DROP:{PRODUCT}", "1", nx=True, ex=3600):
                continue
            if await self._redis.incr(f"count:{member_id}") > 10:
                continue
            await self._database.execute(
                "INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at) VALUES ($1, 1, 9, $2)",
                member_id,
                datetime.now(UTC),
            )


@contextlib.asynccontextmanager
async def _loop(settings: Settings, count: int) -> AsyncIterator[_Loop]:
    server = find_redis()
    database = await asyncpg.connect(settings.database_url)
    client = redis.asyncio.Redis.from_url(server.url)
    try:
        async with _crowd(settings, count) as crowd:
            yield _Loop(crowd, database, client)
    finally:
        await client.aclose()
        await database.close()
        server.stop()


def _against_loop(loop: _Loop, ours: Crowd) -> Contest:
    async def prepare() -> None:
        await loop.forget()
        await ours.forget()

    return Contest(
        f"{_database(ours)}, {MEMBERS:,} members, against a loop",
        "SET NX, INCR and one INSERT a member",
        "member",
        Measure.SPEED,
        loop.tell,
        ours.tell,
        prepare,
        units_a_turn=MEMBERS,
        baseline_units_a_turn=LOOPED,
        budget=LOOP_BUDGET,
    )


def _database(crowd: Crowd) -> str:
    return {"postgresql": "PostgreSQL", "sqlite": "SQLite"}[crowd.store.dialect.name]
