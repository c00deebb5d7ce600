"""Processes that die at points of their own choice, and are killed at any other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess

from bongsu.settings import Settings
from tests.processes import forks

# Runs to the end of its work, or of its life: settings, seed, whether it is mortal.
Work = Callable[[Settings, int, bool], None]


def killing(
    work: Work,
    settings: Settings,
    dice: random.Random,
    *,
    processes: int,
    deaths: int,
    pause: tuple[float, float],
    is_more_to_come: bool = False,
) -> Iterator[int]:
    """Run so many at a time, kill one after every pause until that many have died, and start others in their place until the
    work is done. Each time one has ended, says how many have died so far.

    Whoever says that there is more to come adds to the work then, as long as too few have died; so those that came to
    its end meanwhile are started again too.
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
