"""What the machine's host took for itself meanwhile: on a shared host a pause of it is longer than what is measured."""

from __future__ import annotations

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections.abc import AsyncIterator
from pathlib import Path

EVERY_SECONDS = 0.05
# The system counts in hundredths of a second, so what was taken may be counted a little later; and who has waited meanwhile
# is served after it.
AFTER_SECONDS = 0.3


class Taken:
    """When processor time was taken from us, as Linux counts it. Elsewhere it is never known to have been."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        try:
            yield
            await asyncio.sleep(2 * EVERY_SECONDS)
        finally:
            task.cancel()

    def was(self, began: float, ended: float) -> bool:
        """Whether some was between these moments, or so shortly before that it may still be felt."""
        place = bisect_left(self.moments, began - AFTER_SECONDS)
        return place < len(self.moments) and self.moments[place] <= ended + EVERY_SECONDS

    async def _watch(self) -> None:
        before = _stolen()
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            if (now := _stolen()) != before:
                before = now
                self.moments.append(time.perf_counter())


def _stolen() -> int:
    try:
        with Path("/proc/stat").open() as lines:
            return int(lines.readline().split()[8])
    except (OSError, IndexError, ValueError):
        return 0
