"""How many sends of a channel are under way at once, where its connections or threads are few."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from bongsu.model.outcome import Outgoing


class Turns:
    """Sends wait here for their turn, in order. One place is for critical ones to few alone: they wait for no others."""

    def __init__(self, places: int) -> None:
        self._all = asyncio.Semaphore(places)
        self._ordinary = asyncio.Semaphore(max(1, places - 1))

    async def acquire(self, outgoing: Outgoing) -> None:
        if not outgoing.goes_first:
            await self._ordinary.acquire()
        try:
            await self._all.acquire()
        except BaseException:
            if not outgoing.goes_first:
                self._ordinary.release()
            raise

    def release(self, outgoing: Outgoing) -> None:
        self._all.release()
        if not outgoing.goes_first:
            self._ordinary.release()

    @contextlib.asynccontextmanager
    async def hold(self, outgoing: Outgoing) -> AsyncIterator[None]:
        await self.acquire(outgoing)
        try:
            yield
        finally:
            self.release(outgoing)
