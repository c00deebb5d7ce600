"""A store that is not available: a start waits for it, and a stop does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from bongsu.errors import StoreBusy, StoreUnreachable
from bongsu.runtime import telemetry
from bongsu.store.core.sqlite import SqliteDatabase
from bongsu.store.core.store import Store

# Between two attempts to reach the store at the start.
START_RETRY_SECONDS = 2.0
# During the drain, a store that twice in a row has not answered for so long is unresponsive.
ANSWER_SECONDS = 4.0

Check = Callable[[Store], Coroutine[Any, Any, object]]

_log = telemetry.log("bongsu.store")


async def wait_for_store(store: Store, check: Check, stopping: asyncio.Event) -> bool:
    """Repeat `check` while a server is starting, full or away. False if the process is to stop before it succeeds."""
    stopped = asyncio.create_task(stopping.wait())
    try:
        while not stopped.done():
            checking = asyncio.create_task(check(store))
            await asyncio.wait({checking, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not checking.done():
                checking.cancel()
                await asyncio.wait({checking})
                break
            try:
                checking.result()
                return True
            except (StoreUnreachable, StoreBusy) as error:
                if isinstance(store.database, SqliteDatabase):
                    raise  # a file that cannot be opened does not come up by itself
                _log.warning("waiting for the store", error=str(error), retry_seconds=START_RETRY_SECONDS)
            await asyncio.wait({stopped}, timeout=START_RETRY_SECONDS)
        return False
    finally:
        stopped.cancel()


@contextlib.asynccontextmanager
async def abort_unresponsive_store(store: Store) -> AsyncIterator[None]:
    """While the block runs, close the connections of a store that does not answer, so that what waits for it ends.

    What is unfinished then is claimed again after its lease.
    """
    watching = asyncio.create_task(_terminate_unresponsive(store), name="bongsu-abort-unresponsive-store")
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _terminate_unresponsive(store: Store) -> None:
    failures = 0
    while failures < 2:
        failures = 0 if await store.answers(ANSWER_SECONDS) else failures + 1
        await asyncio.sleep(1.0)
    _log.warning("store unresponsive, closing connections")
    store.terminate()
