"""`python -m bench.profiled FILE serve --role api` is `bongsu serve --role api` with a profile of it written to FILE.

By the clock, waiting included: keep the server busy, or most of what you see is the loop doing nothing.
"""

from __future__ import annotations

import cProfile
import sys

# Loading code is no part of serving, and would be the first ten lines of any profile.
import bongsu.service  # noqa: F401
from bongsu.cli.main import main


def profiled(file: str) -> None:
    profile = cProfile.Profile()
    try:
        profile.runcall(main)
    finally:
        profile.dump_stats(file)


if __name__ == "__main__":
    profiled(sys.argv.pop(1))
