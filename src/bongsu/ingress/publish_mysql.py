"""publish through the libraries for MySQL and MariaDB: PyMySQL, mysqlclient, aiomysql, asyncmy.

The store is never in such a database: events go to bongsu_outbox. An INSERT that fails ends no transaction there, so a
duplicate is an error that is caught, and a missing table is found by the INSERT itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bongsu.errors import NothingToPublishTo, NoTransactionOpen
from bongsu.ingress.publish_tables import MYSQL, outbox_text, outbox_values
from bongsu.model import Event

Rows = Sequence[Sequence[Any]]

# The server's numbers.
_DUPLICATE, _NO_SUCH_TABLE = 1062, 1146
_IN_TRANSACTION = 1


def insert_mysql(execute: Callable[[str, Sequence[Any]], object], events: Sequence[Event]) -> Rows:
    """The ids that were new. `execute` runs a statement with parameters in the style %s."""
    try:
        execute(*_insert(events))
    except Exception as error:
        if not _is_duplicate(error):
            raise
        # A statement of several rows stores none of them then: each is tried alone.
        return [row for event in events for row in insert_mysql(execute, [event])] if len(events) > 1 else []
    return [(event.event_id,) for event in events]


async def insert_mysql_async(execute: Callable[[str, Sequence[Any]], Awaitable[object]], events: Sequence[Event]) -> Rows:
    try:
        await execute(*_insert(events))
    except Exception as error:
        if not _is_duplicate(error):
            raise
        return [row for event in events for row in await insert_mysql_async(execute, [event])] if len(events) > 1 else []
    return [(event.event_id,) for event in events]


def pymysql(tx: Any, events: Sequence[Event]) -> Rows:
    _check_open(tx)
    with tx.cursor() as cursor:
        return insert_mysql(cursor.execute, events)


async def aiomysql(tx: Any, events: Sequence[Event]) -> Rows:
    """aiomysql and asyncmy."""
    _check_open(tx)
    async with tx.cursor() as cursor:
        return await insert_mysql_async(cursor.execute, events)


def is_autocommit(driver: Any) -> bool:
    """Asks the driver's own connection."""
    get = getattr(driver, "get_autocommit", None)
    return bool(driver.autocommit if get is None else get())


def _check_open(tx: Any) -> None:
    # mysqlclient does not say whether a transaction was begun in autocommit mode: there it is refused.
    if is_autocommit(tx) and not getattr(tx, "server_status", 0) & _IN_TRANSACTION:
        raise NoTransactionOpen()


def _insert(events: Sequence[Event]) -> tuple[str, list[Any]]:
    return outbox_text(MYSQL, "%s", len(events), returning=False), outbox_values(MYSQL, events)


def _is_duplicate(error: Exception) -> bool:
    """Of our key, and of no other that the caller may have added. Raises the cure if the table is missing."""
    # SQLAlchemy wraps the driver's error.
    arguments = getattr(getattr(error, "orig", None) or error, "args", ())
    number = arguments[0] if arguments else None
    if number == _NO_SUCH_TABLE and "bongsu_outbox" in str(arguments):
        raise NothingToPublishTo("There is no bongsu_outbox in this database") from error
    return number == _DUPLICATE and "PRIMARY" in str(arguments)
