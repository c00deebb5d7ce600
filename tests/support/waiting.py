"""Wait for what sends no signal: that something is so, that other transactions wait for ours, that a statement runs."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from bongsu.store import Store
from bongsu.store.core.clock import find_now
from bongsu.store.core.query import same
from bongsu.store.core.sqlite import SqliteDatabase

_FOR_A_LOCK = same("""
    SELECT count(*) AS found FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'""")
_IN_PG_SLEEP = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"


async def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    """Ask until it is so. The condition may be async."""
    async with asyncio.timeout(seconds):
        while not (await found if inspect.isawaitable(found := condition()) else found):
            await asyncio.sleep(0.005)


def eventually(look: Callable[[], Any], wanted: Any, seconds: float = 30) -> None:
    """Ask until the answer is the wanted one; each question is a request of its own, so there is no signal to wait for."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while (found := look()) != wanted:
        assert time.monotonic() < deadline, f"still {found!r}, not {wanted!r}"
        pause.wait(0.02)


async def until_waiting(store: Store, count: int = 1) -> None:
    """Until so many wait for a lock; on SQLite, which has one writer, for their turn to write."""
    async with asyncio.timeout(60):
        while await _waiting(store) < count:
            await asyncio.sleep(0)


async def _waiting(store: Store) -> int:
    if isinstance(store.database, SqliteDatabase):
        return len(store.database._turn._waiters or ())
    async with store.read() as tx:
        (row,) = await tx.fetch(_FOR_A_LOCK())
    found: int = row["found"]
    return found


async def until_later(store: Store) -> None:
    """Until the store's clock shows another time: SQLite's counts milliseconds, and what is stored in one has no order."""
    async with store.read() as tx:
        before = await find_now(tx)
    async with asyncio.timeout(60):
        while True:
            async with store.read() as tx:
                if await find_now(tx) > before:
                    return


async def until_asleep(postgres_url: str) -> None:
    """Until a statement is in pg_sleep(). Asked on a connection that is not the store's."""

    def is_asleep() -> bool:
        with psycopg.connect(postgres_url) as operator:
            found = operator.execute(_IN_PG_SLEEP).fetchone()
        return found is not None and found[0] > 0

    async with asyncio.timeout(60):
        while not await asyncio.to_thread(is_asleep):
            await asyncio.sleep(0)
