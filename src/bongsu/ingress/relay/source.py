"""Relay: the Source that reads an outbox. Rows are locked, stored, and deleted in the transaction that has locked them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from bongsu.errors import SourceError
from bongsu.ingress.consumer import Received
from bongsu.ingress.relay.outbox import OutboxDatabase, OutboxRow, as_message

# How often an outbox without rows is asked whether it has some: soon after there were any, and otherwise. A look is one
# statement over one index entry, a few hundred microseconds.
BUSY_POLL_SECONDS = 0.02
IDLE_POLL_SECONDS = 0.05
BUSY_FOR_SECONDS = 2.0
# So long a receive waits.
RECEIVE_SECONDS = 1.0


class Relay:
    """A Source. Any number of processes may relay one outbox: locked rows are skipped by the others.

    While many rows wait, the next batch is read on a second connection as the one before is stored, which doubles the speed.
    Batches are still stored one after the other, in the order in which they were read.
    """

    def __init__(self, name: str, database: OutboxDatabase, ahead: OutboxDatabase | None = None) -> None:
        """`ahead` is the same outbox once more; None where rows cannot be locked."""
        self._name = name
        self._database = database
        self._ahead = ahead
        self._reading: asyncio.Task[list[OutboxRow]] | None = None
        self._rejected: list[tuple[str, str]] = []
        self._is_ahead_open = False
        self._has_found_none = False
        self._found_at = time.monotonic()

    @property
    def name(self) -> str:
        return f"outbox {self._name}"

    async def receive(self, limit: int) -> Sequence[Received]:
        self._rejected = []
        until = time.monotonic() + RECEIVE_SECONDS
        while time.monotonic() < until:
            if self._has_found_none:
                if not self._is_busy:
                    await self._close_ahead()
                await asyncio.sleep(self._poll_seconds)
                if not await self._database.has_waiting():
                    continue
            rows = await self._next_batch(limit)
            self._has_found_none = not rows
            if rows:
                self._found_at = time.monotonic()
                return [as_message(row) for row in rows]
        return ()

    async def _next_batch(self, limit: int) -> list[OutboxRow]:
        reading, self._reading = self._reading, None
        if reading is not None and self._ahead is not None:
            rows = await reading
            # These rows are locked by the other connection, which settles them; the one before is free.
            self._database, self._ahead = self._ahead, self._database
        else:
            rows = await self._database.lock_batch(limit)
        if self._ahead is not None and len(rows) == limit:
            self._is_ahead_open = True
            self._reading = asyncio.create_task(self._ahead.lock_batch(limit))
        return rows

    async def _drop_next(self) -> None:
        """Hand back the rows that were read ahead: order holds only if the batch before them is stored first."""
        reading, self._reading = self._reading, None
        if reading is not None and self._ahead is not None:
            reading.cancel()
            await asyncio.wait({reading})
            await self._ahead.roll_back()
        await self._close_ahead()

    async def _close_ahead(self) -> None:
        """A connection that is not used for long is closed by the server, which would look like a fault."""
        if self._ahead is not None and self._is_ahead_open:
            self._is_ahead_open = False
            await self._ahead.close()

    async def reject(self, message: Received, reason: str) -> None:
        """Written when the batch is settled."""
        self._rejected.append((message.handle, reason))

    async def acknowledge(self, messages: Sequence[Received]) -> None:
        rejected, self._rejected = self._rejected, []
        try:
            await self._database.settle([message.handle for message in messages], rejected)
        except SourceError:
            await self._drop_next()
            raise

    async def release(self, messages: Sequence[Received]) -> None:
        await self._drop_next()
        await self._database.roll_back()

    async def close(self) -> None:
        with contextlib.suppress(SourceError):
            await self._drop_next()
        await self._database.close()
        if self._ahead is not None:
            await self._ahead.close()

    async def check(self) -> str:
        return await self._database.check()

    @property
    def _is_busy(self) -> bool:
        return time.monotonic() < self._found_at + BUSY_FOR_SECONDS

    @property
    def _poll_seconds(self) -> float:
        return BUSY_POLL_SECONDS if self._is_busy else IDLE_POLL_SECONDS
