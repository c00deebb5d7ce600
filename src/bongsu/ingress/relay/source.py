"""Relay: the Source that reads an outbox. Rows are locked, stored, and deleted in the transaction that has locked them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bongsu.ingress.consumer import Received
from bongsu.ingress.relay.outbox import OutboxDatabase, as_message

# How often an outbox without rows is asked whether it has some: soon after there were any, and otherwise. A look is one
# statement over one index entry, a few hundred microseconds.
BUSY_POLL_SECONDS = 0.02
IDLE_POLL_SECONDS = 0.075
BUSY_FOR_SECONDS = 2.0
# So long a receive waits.
RECEIVE_SECONDS = 1.0


class Relay:
    """A Source. Any number of processes may relay one outbox: locked rows are skipped by the others."""

    def __init__(self, name: str, database: OutboxDatabase) -> None:
        self._name = name
        self._database = database
        self._rejected: list[tuple[str, str]] = []
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
                await asyncio.sleep(self._poll_seconds)
                if not await self._database.has_waiting():
                    continue
            rows = await self._database.lock_batch(limit)
            self._has_found_none = not rows
            if rows:
                self._found_at = time.monotonic()
                return [as_message(row) for row in rows]
        return ()

    async def reject(self, message: Received, reason: str) -> None:
        """Written when the batch is settled."""
        self._rejected.append((message.handle, reason))

    async def acknowledge(self, messages: Sequence[Received]) -> None:
        rejected, self._rejected = self._rejected, []
        await self._database.settle([message.handle for message in messages], rejected)

    async def release(self, messages: Sequence[Received]) -> None:
        await self._database.roll_back()

    async def close(self) -> None:
        await self._database.close()

    async def check(self) -> str:
        return await self._database.check()

    @property
    def _poll_seconds(self) -> float:
        is_busy = time.monotonic() < self._found_at + BUSY_FOR_SECONDS
        return BUSY_POLL_SECONDS if is_busy else IDLE_POLL_SECONDS
