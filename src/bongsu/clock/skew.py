"""How far this process's clock is from the store's.

Due times, windows, caps, schedules and leases use the store's time, so a wrong clock does not affect them. It does affect
log lines and the expiry of tokens (`exp`), so the skew is a metric, a warning in the log, and a row in the store, from which
`bongsu doctor` lists the skew of every process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection

from bongsu.errors import StoreError
from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop
from bongsu.runtime.process import process_name
from bongsu.store.core.clock import find_now
from bongsu.store.core.store import Store
from bongsu.store.desk.processes import put_process, remove_process, remove_unseen

MEASURE_SECONDS = 30.0
# Clocks kept by NTP are within milliseconds; a slow round trip of the measurement itself stays below this.
WARN_SECONDS = 1.0
# A process that was seen within this time is taken to be running: one or two measurements may fail in between.
SEEN_SECONDS = 120.0
# The row of a process that crashed stays this long. Far more than SEEN_SECONDS, so that the row of a live process whose
# store was away for a few minutes is not deleted and inserted again.
FORGET_SECONDS = 600.0
# A stop waits no longer than this to remove the row: a locked store must not delay it, and the row is forgotten anyway.
REMOVE_SECONDS = 2.0


async def measure_skew(store: Store) -> float:
    """By how many seconds this process's clock is ahead of the store's."""
    async with store.read() as tx:
        before = time.time()
        now = await find_now(tx)
        after = time.time()
    return (before + after) / 2 - now.timestamp()


class SkewMonitor(Loop):
    """Measures the skew every half minute, and keeps this process's row in the store while it runs."""

    def __init__(self, store: Store, roles: Collection[str]) -> None:
        super().__init__("clock-skew", MEASURE_SECONDS)
        self._store = store
        self._roles = roles
        self._name = process_name()
        self._is_warned = False
        self._has_row = False

    async def tick(self) -> int:
        skew = await measure_skew(self._store)
        telemetry.CLOCK_SKEW.set(skew)
        self._warn_once(skew)
        self._has_row = True
        async with self._store.transaction() as tx:
            await put_process(tx, self._name, self._roles, skew)
            await remove_unseen(tx, FORGET_SECONDS)
        return 0

    async def stop(self) -> None:
        await super().stop()
        if self._has_row:
            self._has_row = False
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(REMOVE_SECONDS), self._store.single() as tx:
                    await remove_process(tx, self._name)

    def _warn_once(self, skew: float) -> None:
        is_wrong = abs(skew) > WARN_SECONDS
        if is_wrong and not self._is_warned:
            self._log.warning("clock skew", cure="correct this machine's clock (NTP)", skew_seconds=round(skew, 3))
        self._is_warned = is_wrong
