"""What all processes that serve have in common: they are told to stop, say where they listen, and settle their memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Iterator

# New objects between two looks for garbage among them; Python's own 700 are gone with every seventh of a portion of rows.
GARBAGE_LOOKS = 50_000


def process_name() -> str:
    """`host:pid`: who holds a claim or runs a job."""
    return f"{socket.gethostname()}:{os.getpid()}"


@contextlib.contextmanager
def told_by_signals(stopping: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set the event, as often as they come, and do nothing else."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def settle_memory() -> None:
    """What is loaded by now stays. Python would look through all of it again and again for garbage, 60 ms at a time.

    And of what comes, thousands of rows at once are no sign of garbage: it looks after so many more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_LOOKS, 20, 20)
