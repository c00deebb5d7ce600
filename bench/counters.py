"""counters: one hot post with a hundred writers against an UPDATE of it for each event, and a flush of many keys against one
bare bulk UPDATE."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Any

import asyncpg

from bench.ground import Ground
from bench.measure import Contest, Measure
from bongsu.counters.calls import Counters
from bongsu.runtime.loop import running
from bongsu.store import Store
from bongsu.store.counters.flush import Scope, flush

TITLE = "counters"
HOT_BUDGET, FLUSH_BUDGET = 10.0, 2.0
WRITERS = 100
# Calls of each writer in a turn. The synchronous side is so slow that fewer have to do.
CALLS, UPDATES = 50, 5
# A server takes a hundred connections, and has some for itself.
CONNECTIONS = 90
KEYS = 100_000

# As a team's own table is; and one whose pages have as much room as ours, so that no index is touched by an update.
_POSTS = "CREATE TABLE posts (id text PRIMARY KEY, comment_count bigint NOT NULL)"
_ROOMY = "CREATE TABLE roomy (id text PRIMARY KEY, comment_count bigint NOT NULL) WITH (fillfactor = 50)"
_COMMENTED = "UPDATE posts SET comment_count = comment_count + 1 WHERE id = 'hot'"
# The rows of the deltas are there already, and so is a value for each.
_FILL = "INSERT INTO {} SELECT 'post-' || n, 5 FROM generate_series(1, $1::integer) AS n"
_DELTAS = "CREATE TABLE deltas (id text NOT NULL, delta bigint NOT NULL)"
_FILL_DELTAS = "INSERT INTO deltas SELECT 'post-' || n, 1 FROM generate_series(1, $1::integer) AS n"
_BULK = "UPDATE {} AS p SET comment_count = comment_count + d.delta FROM deltas AS d WHERE p.id = d.id"
_FILL_COUNTERS = """
    INSERT INTO bongsu_counters (counter, key, value, changed_at)
    SELECT 'comments', 'post-' || n, 5, now() FROM generate_series(1, $1::integer) AS n"""
_FILL_LOG = """
    INSERT INTO bongsu_count_deltas (counter, key, delta)
    SELECT 'comments', 'post-' || n, 1 FROM generate_series(1, $1::integer) AS n"""


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    settings = await ground.postgres()
    store = Store.open(settings)
    try:
        async with _synchronous(settings.database_url) as updates, running(Counters(store)) as counters:
            yield Contest(
                f"one hot post, {WRITERS} writers",
                "an UPDATE of the post and a commit for each",
                "event",
                Measure.SPEED,
                updates,
                partial(_call, counters),
                units_a_turn=WRITERS * CALLS,
                baseline_units_a_turn=WRITERS * UPDATES,
                budget=HOT_BUDGET,
            )
        async with contextlib.aclosing(_flushes(settings.database_url, store)) as found:
            async for contest in found:
                yield contest
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _synchronous(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        await pool.execute(_POSTS)
        await pool.execute("INSERT INTO posts VALUES ('hot', 0)")

        async def write() -> None:
            for _ in range(UPDATES):
                await pool.execute(_COMMENTED)

        async def updates() -> None:
            await asyncio.gather(*(write() for _ in range(WRITERS)))

        yield updates


async def _call(counters: Counters) -> None:
    async def write() -> None:
        for _ in range(CALLS):
            await counters.count("comments", "hot", 1)

    await asyncio.gather(*(write() for _ in range(WRITERS)))


async def _flushes(url: str, store: Store) -> AsyncGenerator[Contest, None]:
    connection = await asyncpg.connect(url)
    try:
        for statement in (_ROOMY, _DELTAS):
            await connection.execute(statement)
        for statement in (_FILL.format("posts"), _FILL.format("roomy"), _FILL_COUNTERS, _FILL_DELTAS):
            await connection.execute(statement, KEYS)

        async def prepare() -> None:
            await connection.execute("DELETE FROM bongsu_count_deltas")
            await connection.execute(_FILL_LOG, KEYS)
            for table in ("bongsu_count_deltas", "bongsu_counters", "posts", "roomy", "deltas"):
                await connection.execute(f"VACUUM ANALYZE {table}")

        async def bulk(table: str) -> float:
            began = time.perf_counter()
            assert await connection.execute(_BULK.format(table)) == f"UPDATE {KEYS}"
            return time.perf_counter() - began

        async def flushed() -> float:
            began = time.perf_counter()
            async with store.transaction() as tx:
                batch = await flush(tx, Scope(), 2 * KEYS, with_applied=False)
            assert batch is not None
            assert batch.keys == KEYS
            return time.perf_counter() - began

        against = "one bare UPDATE … FROM of as many rows"
        for table, more, budget in (("posts", "", FLUSH_BUDGET), ("roomy", ", half of each page free as in ours", None)):
            yield Contest(
                f"a flush of {KEYS:,} keys",
                f"{against}{more}",
                "key",
                Measure.TIME,
                partial(bulk, table),
                flushed,
                prepare,
                units_a_turn=KEYS,
                budget=budget,
            )
    finally:
        await connection.close()
