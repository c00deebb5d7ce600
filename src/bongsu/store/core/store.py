"""The store: one database behind everything, and the ways to use it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from bongsu.errors import StoreFull, StoreRolledBack
from bongsu.runtime import telemetry
from bongsu.runtime.loop import ROLLED_BACK_SECONDS
from bongsu.settings import Settings
from bongsu.store.core.postgres import PostgresDatabase
from bongsu.store.core.private_files import sqlite_path
from bongsu.store.core.query import Dialect, Transaction
from bongsu.store.core.shares import Share
from bongsu.store.core.sqlite import SqliteDatabase

# After a write failed because of the disk, so long a process is not ready. Then it is tried again by ordinary work: a probe
# that writes little would succeed where that does not.
FAILED_DISK_SECONDS = 30.0
# A commit needs a few pages at least, and a megabyte fills in no time.
LEAST_FREE_BYTES = 1024 * 1024

_log = telemetry.log("bongsu.store")
_T = TypeVar("_T")


async def repeat_if_rolled_back(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run work that is one transaction; once more if the database rolled it back, for example as the victim of a deadlock.

    Nothing of it was stored then. It is logged, because we lock in one order: a deadlock is a defect, or another program's.
    """
    try:
        return await work()
    except StoreRolledBack as error:
        _log.warning("transaction rolled back, repeating it", error=str(error))
        await asyncio.sleep(ROLLED_BACK_SECONDS)
        return await work()


class Store:
    """Open it once per process; close it last. `share` is the kind of work it is used for."""

    def __init__(self, database: PostgresDatabase | SqliteDatabase, share: Share = Share.WORK) -> None:
        self.database = database
        self._share = share

    @classmethod
    def open(cls, settings: Settings) -> Store:
        """Nothing is connected yet: the first use does that, and raises if it cannot."""
        if settings.is_embedded:
            return cls(SqliteDatabase(sqlite_path(settings)))
        return cls(PostgresDatabase(settings.database_url))

    def share(self, share: Share) -> Store:
        """The same store, with the connections that are kept for that kind of work."""
        return Store(self.database, share)

    @property
    def location(self) -> str:
        return self.database.location

    @property
    def dialect(self) -> Dialect:
        return self.database.dialect

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Committed when the block ends, rolled back when it raises."""
        return self.database.transaction(self._share)

    async def run(self, work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        """Work in a transaction of its own, which is repeated once if the database rolls it back.

        For callers that would otherwise answer with an error. A Loop repeats its tick, and needs no more than `transaction`.
        """

        async def attempt() -> _T:
            async with self.transaction() as tx:
                return await work(tx)

        return await repeat_if_rolled_back(attempt)

    def single(self) -> AbstractAsyncContextManager[Transaction]:
        """For one statement, which is a transaction by itself: it need not be begun and committed."""
        return self.database.autocommit(self._share)

    def read(self) -> AbstractAsyncContextManager[Transaction]:
        """For reading: each statement sees what was committed when it began."""
        return self.database.read(self._share)

    def read_within(self, seconds: float) -> AbstractAsyncContextManager[Transaction]:
        """For a statement that is not ours: it can only read, and is stopped after so long (StoreTooSlow). On a connection
        that nothing else needs, whatever the share."""
        return self.database.read_within(seconds)

    async def close(self) -> None:
        await self.database.close()

    async def answers(self, seconds: float) -> bool:
        """Whether the database answers a new connection within that time."""
        return await self.database.answers(seconds)

    def check_disk(self) -> None:
        """Raise StoreFull if the disk is full, or failed within the last FAILED_DISK_SECONDS. Writes nothing."""
        failed_at, free = self.database.location.failed_at, self.database.free_bytes()
        if failed_at is not None and time.monotonic() < failed_at + FAILED_DISK_SECONDS:
            raise StoreFull(f"{self.location}: the disk failed or was full less than {FAILED_DISK_SECONDS:g} s ago")
        if free is not None and free < LEAST_FREE_BYTES:
            raise StoreFull(f"{self.location}: {free} bytes are free")

    def terminate(self) -> None:
        """Give up on a database that does not answer: every statement under way fails, and so does every later one."""
        self.database.terminate()
