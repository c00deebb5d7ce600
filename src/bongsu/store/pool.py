"""The open connections to a database: taken, used, and kept for whoever comes next.

SQLAlchemy opens them and speaks over them. Keeping them is ours, because its own pool makes new objects and a task for each
use, and that takes longer than our side of a short statement does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from bongsu.store.dialect import Dialect

# Whether a connection that has rested for so many seconds can still be used.
Lives = Callable[[AsyncConnection, float], Awaitable[bool]]


@dataclass(frozen=True)
class Limits:
    # Connections in all, and of those how many stay open when nobody uses them.
    most: int
    kept: int
    # How long one is waited for.
    seconds: float


class Pool:
    """The connections of one engine, which keeps none itself and leaves it to us to begin and end transactions."""

    def __init__(self, engine: AsyncEngine, dialect: Dialect, limits: Limits, lives: Lives) -> None:
        self.engine = engine
        self._dialect = dialect
        self._limits = limits
        self._lives = lives
        self._room = asyncio.Semaphore(limits.most)
        # The one that was used last is taken first: it knows the statements, and is warm.
        self._resting: list[tuple[AsyncConnection, float]] = []
        self._is_closed = False

    async def take(self) -> AsyncConnection:
        """One that works, for `give_back` to be told of whatever happens."""
        await self._wait()
        try:
            if self._resting:
                connection, since = self._resting.pop()
                if await self._is_well(connection, time.monotonic() - since):
                    return connection
                # What has happened to it has happened to the others, and to ask each might take a minute.
                while self._resting:
                    await self._hang_up(self._resting.pop()[0])
            return await self.engine.connect()
        except BaseException:
            self._room.release()
            raise

    async def give_back(self, connection: AsyncConnection, *, is_spoilt: bool = False) -> None:
        """It is kept if it works, nothing is left open on it, and there are not enough of them."""
        try:
            is_sound = not is_spoilt and not connection.invalidated and self._dialect.is_sound(connection)
            is_kept = is_sound and len(self._resting) < self._limits.kept and not self._is_closed
            if is_kept:
                self._resting.append((connection, time.monotonic()))
        finally:
            self._room.release()
        if not is_kept:
            await (_close(connection) if is_sound else self._hang_up(connection))

    async def close(self) -> None:
        self._is_closed = True
        while self._resting:
            await _close(self._resting.pop()[0])
        await self.engine.dispose()

    async def _wait(self) -> None:
        if not self._room.locked():
            await self._room.acquire()
            return
        limits = self._limits
        try:
            async with asyncio.timeout(limits.seconds):
                await self._room.acquire()
        except TimeoutError:
            raise TimeoutError(f"all {limits.most} connections were in use for {limits.seconds:g} s") from None

    async def _is_well(self, connection: AsyncConnection, rested_seconds: float) -> bool:
        is_well = False
        try:
            is_well = await self._lives(connection, rested_seconds)
        finally:
            if not is_well:
                await self._hang_up(connection)
        return is_well

    async def _hang_up(self, connection: AsyncConnection) -> None:
        self._dialect.hang_up(connection)
        await _close(connection)


async def _close(connection: AsyncConnection) -> None:
    """Also SQLAlchemy's part of it. It waits two seconds at most for a server to whom one has not hung up."""
    await connection.invalidate()
    await connection.close()
