"""What all processes that serve have in common: they are told to stop, and say where they listen."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator


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
