"""python -m bongsu.simulator: the same as `bongsu simulator`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from bongsu.errors import BongsuError
from bongsu.runtime import telemetry
from bongsu.simulator.server import serve


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bongsu.simulator", description="An FCM that can fail on purpose.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9099, help="0 takes a free one")
    parser.add_argument("--faults", type=Path, help="a JSON file: docs/howto/simulator.md")
    given = parser.parse_args()
    telemetry.configure_logs()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(given.host, given.port, given.faults))
    except BongsuError as error:
        sys.exit(f"bongsu: {error}")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The fastest loop there is; None for the usual one."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415
    except ImportError:  # Windows
        return None
    return new_event_loop


if __name__ == "__main__":
    main()
