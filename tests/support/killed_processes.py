"""Processes that kill themselves at points of their own choice, and are killed at any other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess

from bongsu.runtime.loop import Loop
from bongsu.settings import Settings
from tests.support.processes import forks

# A few hundredths of the leases in these tests.
PAUSE_SECONDS = 0.01
# Runs to the end of its work, or of its life: settings, seed, whether it is mortal.
Work = Callable[[Settings, int, bool], None]


async def work_until_nothing_is_left(loops: Sequence[Loop], is_left: Callable[[], Awaitable[object]]) -> None:
    """What a killed process had claimed is due when its lease ends. None spins until then: others need the processor."""
    while await is_left():
        for loop in loops:
            loop.wake()
        for loop in loops:
            await loop.idle.wait()
        await asyncio.sleep(PAUSE_SECONDS)


def kill_at_random(
    work: Work,
    settings: Settings,
    dice: random.Random,
    *,
    processes: int,
    deaths: int,
    pause: tuple[float, float],
    is_more_to_come: bool = False,
) -> Iterator[int]:
    """Run so many processes at a time and kill one after every pause until that many have died; start others in their place
    until the work is done. Yields how many have died so far each time a process has ended.

    With `is_more_to_come` the caller adds work each time, as long as too few have died; so processes that finished are
    started again too.
    """
    died = 0

    def start() -> ForkServerProcess:
        process = forks.Process(target=work, args=(settings, dice.randrange(10**9), died < deaths), daemon=True)
        process.start()
        return process

    living = [start() for _ in range(processes)]
    while living:
        ended = wait([one.sentinel for one in living], timeout=dice.uniform(*pause))
        if not ended and died < deaths:
            dice.choice(living).kill()  # from outside, wherever it happens to be
        for one in [one for one in living if not one.is_alive()]:
            living.remove(one)
            one.join()
            assert one.exitcode in (0, -9), "a process ended by itself, neither finished nor killed"
            died += one.exitcode == -9
            yield died
            if one.exitcode != 0 or (is_more_to_come and died < deaths):
                living.append(start())
