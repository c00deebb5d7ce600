"""How many sends of a channel are under way at once, where its connections or threads are few."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from bongsu.model.outcome import Outgoing


class PrioritySemaphore:
    """Sends wait here for their turn, in order. One permit is for critical ones to few alone: they wait for no others."""

    def __init__(self, permits: int) -> None:
        self._all = asyncio.Semaphore(permits)
        self._ordinary = asyncio.Semaphore(max(1, permits - 1))

    async def acquire(self, outgoing: Outgoing) -> None:
        if not outgoing.is_urgent:
            await self._ordinary.acquire()
        try:
            await self._all.acquire()
        except BaseException:
            if not outgoing.is_urgent:
                self._ordinary.release()
            raise

    def release(self, outgoing: Outgoing) -> None:
        self._all.release()
        if not outgoing.is_urgent:
            self._ordinary.release()

    @contextlib.asynccontextmanager
    async def permit(self, outgoing: Outgoing) -> AsyncIterator[None]:
        await self.acquire(outgoing)
        try:
            yield
        finally:
            self.release(outgoing)
