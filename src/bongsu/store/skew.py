"""How far this process's clock is from the store's.

Due times, windows, caps, schedules and leases use the store's time, so a wrong clock harms none of them. It still shows in
log lines and in tokens (`exp`), so the skew is a metric, a warning in the log, and a line of `bongsu doctor`.
"""

from __future__ import annotations

import time

from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop
from bongsu.store.clock import find_now
from bongsu.store.store import Store

MEASURE_SECONDS = 30.0
# Clocks kept by NTP are within milliseconds; a slow round trip of the measurement itself stays below this.
WARN_SECONDS = 1.0


async def measure_skew(store: Store) -> float:
    """By how many seconds this process's clock is ahead of the store's."""
    async with store.read() as tx:
        before = time.time()
        now = await find_now(tx)
        after = time.time()
    return (before + after) / 2 - now.timestamp()


class SkewMonitor(Loop):
    """Measures the skew now and then."""

    def __init__(self, store: Store) -> None:
        super().__init__("clock-skew", MEASURE_SECONDS)
        self._store = store
        self._is_warned = False

    async def tick(self) -> int:
        skew = await measure_skew(self._store)
        telemetry.CLOCK_SKEW.set(skew)
        is_wrong = abs(skew) > WARN_SECONDS
        if is_wrong and not self._is_warned:
            self._log.warning("this machine's clock differs from the store's: correct it (NTP)", skew_seconds=round(skew, 3))
        self._is_warned = is_wrong
        return 0
