"""Whether a connection to PostgreSQL that was kept still lives, found out without asking the server each time.

A server that goes away says so, or at least hangs up: an idle connection to which something was said is looked at more
closely, and so is one that has rested for long, because a firewall may have forgotten it.
"""

from __future__ import annotations

import select

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.store.postgres import POSTGRES

# Firewalls forget connections after minutes.
LONG_REST_SECONDS = 5.0
# A server that is there answers at once.
ANSWER_SECONDS = 5.0


async def lives(connection: AsyncConnection, rested_seconds: float) -> bool:
    driver = POSTGRES.driver(connection)
    if rested_seconds < LONG_REST_SECONDS and not _was_spoken_to(driver):
        return True
    try:
        await driver.execute("SELECT 1", timeout=ANSWER_SECONDS)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        return False
    return True


def _was_spoken_to(driver: asyncpg.Connection) -> bool:
    """Whether there is something to be read, be it the last words of a server or only that it has hung up."""
    if driver.is_closed():
        return True
    try:
        place = driver._transport.get_extra_info("socket").fileno()
    except (AttributeError, OSError, ValueError):
        return True  # not to be found out this way: ask
    poll = select.poll()
    poll.register(place, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
