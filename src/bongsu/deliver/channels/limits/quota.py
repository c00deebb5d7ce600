"""A provider's quota, shared by all processes on one store: each draws permits in portions and sends that many.

A portion is valid for a short time. It grows when it is used up before that and shrinks when it is not, so a busy process
asks the store about once a second and an idle one holds few permits. What is left over is given back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bongsu.deliver.channels.limits.pace import BURST_SHARE, MINUTE
from bongsu.runtime import telemetry
from bongsu.store import Store
from bongsu.store.deliveries.quotas import draw

# What was drawn is used within this time or given back. Longer → fewer draws, and less of the quota can be used.
LEASE_SECONDS = 2.0
# The first and smallest portion. The largest is what flows in this part of a second, so that no process takes everything.
LEAST = 16.0
MOST_SECONDS = 0.25
# When nothing is left, how soon to ask again; and how long a send waits before it is put off.
PAUSE_SECONDS = 0.1
MOST_WAIT_SECONDS = 5.0


class Quota:
    """Permits of this process to send. All processes together use no more of them in any sixty seconds than the quota."""

    def __init__(
        self, store: Store, channel: str, name: str, per_minute: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._name = name
        self._capacity = max(1.0, per_minute * BURST_SHARE)
        # A permit drawn at the end of one minute may be used in the next.
        self._flow = (per_minute - self._capacity) / (MINUTE + LEASE_SECONDS)
        self._most = max(1.0, self._flow * MOST_SECONDS)
        self._clock = clock
        self._portion = min(LEAST, self._most)
        self._left = 0.0
        self._until = 0.0
        # How many wait that go before others.
        self._first_waiting = 0
        self._drawing: asyncio.Task[None] | None = None
        self._granted = telemetry.QUOTA_GRANTED.labels(channel)
        self._empty = telemetry.QUOTA_EMPTY.labels(channel)

    def take(self, *, is_first: bool = False) -> bool:
        """Use a permit that was drawn before, if there is one. Others leave permits to those who are first and wait."""
        needed = 1.0 if is_first else 1.0 + self._first_waiting
        if self._left < needed or self._clock() >= self._until:
            return False
        self._left -= 1.0
        return True

    def give_back(self) -> None:
        """Return a permit that was taken and not used."""
        self._left += 1.0

    async def wait(self, *, is_first: bool = False) -> bool:
        """Take a permit, drawing more if needed. False if none was available for so long that the send should be retried."""
        self._first_waiting += is_first
        try:
            return await self._wait(is_first)
        finally:
            self._first_waiting -= is_first

    async def _wait(self, is_first: bool) -> bool:
        deadline = self._clock() + MOST_WAIT_SECONDS
        while not self.take(is_first=is_first):
            if (remaining := deadline - self._clock()) <= 0:
                return False
            # Many wait for one draw; none longer than its own time, however long the store takes.
            if self._drawing is None or self._drawing.done():
                self._drawing = asyncio.create_task(self._draw(), name="bongsu-quota")
                self._drawing.add_done_callback(_retrieve)
            done, _ = await asyncio.wait({self._drawing}, timeout=remaining)
            for drawn in done:
                drawn.result()
        return True

    async def _draw(self) -> None:
        if self._clock() < self._until:
            self._portion = min(self._portion * 2, self._most)
        elif self._left > self._portion / 2:
            self._portion = max(self._portion / 2, min(LEAST, self._most))
        # Counted from before the draw: by the store's clock the portion is valid for a little longer than by ours.
        until, back, self._left = self._clock() + LEASE_SECONDS, self._left, 0.0
        async with self._store.single() as tx:
            granted = await draw(tx, self._name, self._portion, back, self._capacity, self._flow)
        self._left, self._until = granted, until
        self._granted.inc(granted)
        if granted < 1.0:
            self._empty.inc()
            await asyncio.sleep(PAUSE_SECONDS)


def _retrieve(drawing: asyncio.Task[None]) -> None:
    """A draw that fails after all have stopped waiting is not reported: it concerns no send."""
    if not drawing.cancelled():
        drawing.exception()
