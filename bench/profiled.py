"""`python -m bench.profiled FILE serve --role api` is `bongsu serve --role api` with a profile of it written to FILE.

Counted is the processor's time, not the clock's: of a server that mostly waits we want to know what it does when it works.
"""

from __future__ import annotations

import cProfile
import sys
import time

# Loading code is no part of serving, and would be the first ten lines of any profile.
import bongsu.service  # noqa: F401
from bongsu.cli import main


def profiled(file: str) -> None:
    profile = cProfile.Profile(time.process_time)
    try:
        profile.runcall(main)
    finally:
        profile.dump_stats(file)


if __name__ == "__main__":
    profiled(sys.argv.pop(1))
