"""One timer for all streams: pings, and the end of each stream's lifetime."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable

from bongsu.live.member_state import Stream
from bongsu.runtime.loop import Loop

# Streams are spread over so many slots within a ping interval, so that they are not all pinged at once.
SLOTS = 20


class PingSchedule(Loop):
    """Pings one slot of streams at a time. `on_ping` reads the store for them, in case a signal was lost."""

    def __init__(
        self,
        ping_seconds: float,
        timeout_seconds: float,
        on_ping: Callable[[Iterable[str]], None],
        on_timeout: Callable[[Stream], None],
    ) -> None:
        # Fine enough for both, and at most a second: a stream may outlive its token by no more.
        self._step = min(ping_seconds / SLOTS, timeout_seconds / SLOTS, 1.0)
        super().__init__("live-pings", poll_seconds=self._step)
        self._ping_seconds = ping_seconds
        self._on_ping = on_ping
        self._on_timeout = on_timeout
        self._slots: list[set[Stream]] = [set() for _ in range(SLOTS)]
        self._ends: defaultdict[int, set[Stream]] = defaultdict(set)
        self._next_slot = 0
        self._turn: int | None = None
        self._ended: int | None = None

    def add(self, stream: Stream, ends_at: float) -> None:
        """Ping it from now on, and call `on_timeout` at that time of the event loop's clock."""
        if self._ended is None:
            self._ended = self._step_now()
        self._next_slot = (self._next_slot + 1) % SLOTS
        stream.slot = self._next_slot
        # Rounded up: never too early. A time in the past ends at the next step.
        stream.last_step = max(int(ends_at / self._step), self._ended) + 1
        self._slots[stream.slot].add(stream)
        self._ends[stream.last_step].add(stream)

    def remove(self, stream: Stream) -> None:
        self._slots[stream.slot].discard(stream)
        ending = self._ends.get(stream.last_step)
        if ending is not None:
            ending.discard(stream)
            if not ending:
                del self._ends[stream.last_step]

    async def tick(self) -> int:
        now = asyncio.get_running_loop().time()
        self._end(self._step_now())
        turn = int(now * SLOTS / self._ping_seconds)
        first = turn if self._turn is None else max(self._turn + 1, turn - SLOTS + 1)
        for number in range(first, turn + 1):
            streams = self._slots[number % SLOTS]
            for stream in streams:
                stream.connection.write_best_effort(stream.connection.wire.ping)
            self._on_ping([stream.member_id for stream in streams])
        self._turn = turn
        return 0

    def _end(self, step: int) -> None:
        for ended in range(step if self._ended is None else self._ended + 1, step + 1):
            for stream in list(self._ends.get(ended, ())):
                self._on_timeout(stream)
        self._ended = step

    def _step_now(self) -> int:
        return int(asyncio.get_running_loop().time() / self._step)
