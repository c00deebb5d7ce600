"""Whether a pooled connection to PostgreSQL still lives, found out without asking the server each time.

SQLAlchemy's own ping is three round trips whenever a connection is taken from the pool, which is most of what a short
transaction costs. A server that goes away says so, or at least hangs up: an idle connection to which something was said is
looked at more closely, and so is one that has rested for long, because a firewall may have forgotten it.
"""

from __future__ import annotations

import select
import time
from typing import Any

from sqlalchemy import Engine, event, exc

# Firewalls forget connections after minutes.
LONG_REST_SECONDS = 5.0


def watch(engine: Engine) -> None:
    """Replace connections that have died before anybody is given one."""
    event.listen(engine, "checkin", _rest)
    event.listen(engine, "checkout", _take)


def _rest(_connection: Any, record: Any) -> None:
    record.info["rests_since"] = time.monotonic()


def _take(connection: Any, record: Any, _proxy: Any) -> None:
    since = record.info.get("rests_since")
    if since is None:
        return  # just opened
    if time.monotonic() - since < LONG_REST_SECONDS and not _was_spoken_to(connection.driver_connection):
        return
    try:
        connection.ping()
    except Exception as error:
        # The pool's word for "give me another".
        raise exc.DisconnectionError from error


def _was_spoken_to(driver: Any) -> bool:
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
