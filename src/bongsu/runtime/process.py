"""What every serving process does: stop on signals, name its address, tune the garbage collector, allow many open files."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
from collections.abc import Iterator

# New objects between two garbage collections. Python's default of 700 would collect many times within one batch of rows.
GC_THRESHOLD = 50_000


def process_name() -> str:
    """`host:pid`, to show which process holds a claim or runs a job."""
    return f"{socket.gethostname()}:{os.getpid()}"


@contextlib.contextmanager
def stop_on_signals(stopping: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set the event, and do nothing else, however often they come."""
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


def tune_gc() -> None:
    """Exclude what is loaded by now from garbage collection, which would take 60 ms each time, and collect less often:
    thousands of new rows are ordinary work, not garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)


def raise_file_limit() -> None:
    """Every stream and every push under way is an open file. A process begins with 1,024 and may have many more."""
    with contextlib.suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
