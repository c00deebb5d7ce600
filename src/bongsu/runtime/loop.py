"""Everything that runs is a Loop: start, stop, tick.

A Loop ticks while ticks find work, then waits for a wake or the poll interval. With `pause_seconds` it also waits after a
tick that found work, to gather more for the next. A tick that crashes is logged, counted and backed off; the loop goes on.
One whose transaction the database rolled back is repeated after a moment. Nothing that runs in the background has a
`while True` of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Protocol, TypeVar

from bongsu.errors import BongsuError, StoreRolledBack
from bongsu.runtime import telemetry
from bongsu.runtime.backoff import doubling

# The first retry is quick because most faults are a connection that broke once. The longest is how long a loop may take to
# notice that an outage is over, once for every loop on a notification's path.
FIRST_BACKOFF = 0.1
LAST_BACKOFF = 2.0
# Before a transaction that the database rolled back is repeated. Repeated at once, it might be faster than the transaction
# that it was rolled back for, and deadlock with it again.
ROLLED_BACK_SECONDS = 0.05
# In an outage that goes on, a crash is logged at 1, 2, 4, 8, 16 and then at every 16th.
LOGGED_EVERY = 16


class Loop(ABC):
    """Subclasses define `tick`, which returns how much it did: if more than 0, it is called again at once."""

    def __init__(self, name: str, poll_seconds: float) -> None:
        self.name = name
        self._poll_seconds = poll_seconds
        self._log = telemetry.log(f"bongsu.{name}")
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        # For tests and drains, which wait for these instead of sleeping.
        self.idle = asyncio.Event()
        self.crashed = asyncio.Event()

    @abstractmethod
    async def tick(self) -> int:
        """Do one bounded piece of work; return its size."""

    @property
    def pause_seconds(self) -> float:
        """Debounce: how long to wait after a tick that found work, woken or not, so that the next one has a larger batch."""
        return 0.0

    def wake(self) -> None:
        """There may be work: tick now instead of at the next poll. Waking many times is waking once."""
        self.idle.clear()
        self._wake.set()

    def on_signal(self, _data: bytes | None) -> None:
        """Wake on any signal of a topic, whatever its data: for `Signals.listen`."""
        self.wake()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def start(self) -> None:
        if self._task is None:
            self._stopping.clear()
            self._task = asyncio.create_task(self._run(), name=f"bongsu-{self.name}")

    async def stop(self) -> None:
        """Let the tick under way finish, then return. May be called twice, or before start."""
        self._stopping.set()
        self._wake.set()
        task, self._task = self._task, None
        if task is not None:
            await task

    async def _run(self) -> None:
        crashes = 0
        while not self.is_stopping:
            self._wake.clear()
            try:
                done = await self._tick()
            except Exception as error:
                crashes += 1
                telemetry.LOOP_CRASHES.labels(self.name).inc()
                self._log_crash(error, crashes)
                self.crashed.set()
                await self._pause(self._stopping, doubling(FIRST_BACKOFF, crashes, LAST_BACKOFF))
                continue
            crashes = 0
            if done == 0:
                if not self._wake.is_set():
                    self.idle.set()
                await self._pause(self._wake, self._poll_seconds)
            elif self.pause_seconds:
                await self._pause(self._stopping, self.pause_seconds)

    async def _tick(self) -> int:
        try:
            return await self.tick()
        except StoreRolledBack as error:
            # Nothing of that transaction was stored, and the transaction that it gave way to goes on.
            self._log.warning("transaction rolled back, repeating the tick", error=str(error))
            await self._pause(self._stopping, ROLLED_BACK_SECONDS)
            return await self.tick()

    def _log_crash(self, error: Exception, crashes: int) -> None:
        is_power_of_two = crashes & (crashes - 1) == 0
        if crashes % LOGGED_EVERY == 0 or (is_power_of_two and crashes < LOGGED_EVERY):
            # Our own errors name their cure; they need no traceback.
            self._log.error("tick crashed", error=str(error), crashes=crashes, exc_info=not isinstance(error, BongsuError))

    @staticmethod
    async def _pause(until: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await until.wait()


class Startable(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


_Started = TypeVar("_Started", bound=Startable)


@contextlib.asynccontextmanager
async def running(part: _Started) -> AsyncIterator[_Started]:
    """Start it, and stop it at the end of the block."""
    await part.start()
    try:
        yield part
    finally:
        await part.stop()


@contextlib.asynccontextmanager
async def running_together(parts: Sequence[Startable]) -> AsyncIterator[None]:
    """Start them in order; stop them at the same time: where several hang, that takes no longer than where one does."""
    try:
        for part in parts:
            await part.start()
        yield
    finally:
        await asyncio.gather(*(part.stop() for part in parts))
