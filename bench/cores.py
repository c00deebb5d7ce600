"""Two cores, one for the server and one for the rest: so that a client's work, or a database's, is never taken out of the
server's time. Where there is one core, or no say, nothing is kept apart.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import psutil

_ALL = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
_SERVER, _CLIENT = set(_ALL[:1]), set(_ALL[-1:])
ARE_APART = len(_ALL) > 1


@contextlib.contextmanager
def _only(cores: set[int]) -> Iterator[None]:
    """This thread, and every thread and process it starts meanwhile."""
    if not ARE_APART:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def clients() -> contextlib.AbstractContextManager[None]:
    return _only(_CLIENT)


def servers() -> contextlib.AbstractContextManager[None]:
    return _only(_SERVER)


def keep_databases_away() -> None:
    """Those that run already, and what they start, go where the clients are."""
    for one in psutil.Process().children(recursive=True) if ARE_APART else ():
        if one.name().startswith(("postgres", "redis")):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(one.pid, _CLIENT)


def anywhere() -> contextlib.AbstractContextManager[None]:
    return _only(set(_ALL))
