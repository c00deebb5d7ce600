"""publish: insert events in the caller's own transaction, through the connection or session that the caller passes.

It never commits: if the caller rolls back, the events do not exist; if the caller commits, they are never lost. They go to
bongsu_events where that table is, else to bongsu_outbox, from where the relay brings them to the store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from bongsu.errors import BadEvent, NotATransaction, NoTransactionOpen
from bongsu.ingress import publish_mysql as mysql
from bongsu.ingress.publish_tables import (
    FIND_POSTGRES,
    FIND_SQLITE,
    MYSQL,
    Target,
    choose,
    insert_parameters,
    insert_text,
    known_targets,
)
from bongsu.model import Event
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import as_uuid
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.outbox.insert import add, match_new, statement_parts

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Published:
    """Which events were inserted: an accepted id is new, a duplicate was stored before and nothing was changed."""

    accepted: tuple[UUID, ...]
    duplicates: tuple[UUID, ...]


@overload
def publish(tx: Session | scoped_session[Any] | Connection | sqlite3.Connection, *events: Event) -> Published: ...
@overload
def publish(tx: AsyncSession | async_scoped_session[Any] | AsyncConnection, *events: Event) -> Awaitable[Published]: ...
@overload
def publish(tx: Any, *events: Event) -> Any: ...
def publish(tx: Any, *events: Event) -> Published | Awaitable[Published]:
    """Write the events in the transaction `tx` has open. With an async connection or session, await the answer.

    Takes SQLAlchemy's Session, AsyncSession, Connection and AsyncConnection, psycopg 3 (both kinds), asyncpg, sqlite3,
    aiosqlite, PyMySQL, mysqlclient, aiomysql, asyncmy, Django's connection, and a step of a job's run.
    """
    for event in events:
        if not isinstance(event, Event):
            hint = ": write publish(tx, *events)" if isinstance(event, list | tuple) else ""
            raise BadEvent(f"publish takes Event objects, not {type(event).__name__}{hint}")
    insert, is_async = _adapter(type(tx))  # type: ignore[arg-type]
    if is_async:
        return _publish_async(insert, tx, events)
    return _published(events, [row for part in statement_parts(events) for row in insert(tx, part)])


async def _publish_async(insert: Callable[..., Any], tx: Any, events: Sequence[Event]) -> Published:
    return _published(events, [row for part in statement_parts(events) for row in await insert(tx, part)])


def _published(events: Sequence[Event], rows: Rows) -> Published:
    ids = tuple([event.event_id for event in events])
    if len(rows) == len(ids):
        return Published(ids, ())
    answers = match_new(events, {_id(row[0]) for row in rows})
    return Published(tuple(compress(ids, answers)), tuple(compress(ids, (not is_new for is_new in answers))))


def _id(stored: Any) -> UUID:
    # The text_factory of the caller's sqlite3 connection may answer bytes.
    return as_uuid(stored.decode() if isinstance(stored, bytes) else stored)


# --- one function for each library ------------------------------------------------------------------------------------
# Libraries are recognised by name, so that none of them needs to be installed for the others to work.


@cache
def _adapter(kind: type) -> tuple[Callable[..., Any], bool]:
    for base in kind.__mro__:
        if found := _ADAPTERS.get((base.__module__.partition(".")[0], base.__name__)):
            return found
    raise NotATransaction(f"publish was handed a {kind.__module__}.{kind.__qualname__}")


def _check_database(tx: Any, name: str) -> None:
    if name not in (POSTGRES.name, SQLITE.name):
        writes_to = "PostgreSQL, SQLite, MySQL and MariaDB"
        raise NotATransaction(f"publish was handed a {type(tx).__qualname__} to {name}, and writes to {writes_to}")


def _insert(
    database: str, style: str, events: Sequence[Event], target: Target, *, returning: bool = False
) -> tuple[str, list[Any]]:
    """The text and its parameters."""
    text = insert_text(database, style, events, target, returning=returning or not _is_counted(events))
    return text, insert_parameters(database, events, target)


def _is_counted(events: Sequence[Event]) -> bool:
    """Of one event, the row count shows whether its id was new. Returning the id as well would cost 3 % more."""
    return len(events) == 1


def _new_rows(events: Sequence[Event], cursor: Any) -> Rows:
    """The ids that were new, from the cursor that has executed the statement."""
    rows: Rows = _counted(events, cursor.rowcount) if _is_counted(events) else cursor.fetchall()
    return rows


def _counted(events: Sequence[Event], count: int) -> Rows:
    assert 0 <= count <= 1, f"the driver reports that one event was inserted {count} times"
    return [(events[0].event_id,)] * count


# SQLAlchemy's names of parameter styles → what `insert_values` takes.
_STYLES = {"qmark": "?", "format": "%s", "pyformat": "%s", "numeric_dollar": "$"}

# SQLAlchemy keeps the row count of an INSERT only when asked.
_COUNTING = {"preserve_rowcount": True}


# Where SQLAlchemy keeps what is known of the driver's connection.
_TARGET = "bongsu_target"


def _sqlalchemy_connection(tx: Connection, events: Sequence[Event]) -> Rows:
    is_mysql = tx.dialect.name in (MYSQL, "mariadb")
    if not is_mysql:
        _check_database(tx, tx.dialect.name)
    if not tx.in_transaction():
        tx.begin()  # as the first statement would; on SQLite a listener of the caller's may run BEGIN now
    if _is_sqlalchemy_autocommit(tx):
        raise NoTransactionOpen()
    if is_mysql:
        return mysql.insert_mysql(lambda text, values: tx.exec_driver_sql(text, tuple(values)), events)
    target = tx.info.get(_TARGET)
    if target is None:
        find = FIND_SQLITE if tx.dialect.name == SQLITE.name else FIND_POSTGRES
        target = tx.info[_TARGET] = choose(tx.exec_driver_sql(find).one())
    # The driver's own style of parameters: naming them for SQLAlchemy would double the time.
    text, parameters = _insert(tx.dialect.name, _STYLES[tx.dialect.paramstyle], events, target)
    result = tx.exec_driver_sql(text, tuple(parameters), execution_options=_COUNTING)
    return _counted(events, result.rowcount) if _is_counted(events) else result.all()


def _is_sqlalchemy_autocommit(tx: Connection) -> bool:
    """Asks the driver: the options of SQLAlchemy's connection do not include what create_engine() was given."""
    if tx.dialect.name == SQLITE.name:
        return _is_sqlite_autocommit(tx.connection.driver_connection)
    if tx.dialect.name in (MYSQL, "mariadb"):
        return mysql.is_autocommit(tx.connection.driver_connection)
    return bool(getattr(tx.connection.dbapi_connection, "autocommit", False))


def _sqlalchemy_session(tx: Session, events: Sequence[Event]) -> Rows:
    return _sqlalchemy_connection(tx.connection(), events)


async def _sqlalchemy_async_connection(tx: AsyncConnection, events: Sequence[Event]) -> Rows:
    return await tx.run_sync(_sqlalchemy_connection, events)


async def _sqlalchemy_async_session(tx: AsyncSession, events: Sequence[Event]) -> Rows:
    return await (await tx.connection()).run_sync(_sqlalchemy_connection, events)


@cache
def _psycopg_parts() -> tuple[Any, Any, Any]:
    from psycopg import AsyncCursor, Cursor, rows  # noqa: PLC0415

    # Which cursors and rows a connection makes is the caller's setting; these are psycopg's own and return tuples.
    return Cursor, AsyncCursor, rows.tuple_row


def _check_psycopg(tx: Any) -> bool:
    """Return whether it is in pipeline mode, where the count is not known yet when execute returns."""
    if tx.autocommit and tx.pgconn.transaction_status == 0:  # PQTRANS_IDLE
        raise NoTransactionOpen()
    return bool(tx.pgconn.pipeline_status)


def _psycopg(tx: Any, events: Sequence[Event]) -> Rows:
    is_piped = _check_psycopg(tx)
    kind, _, row_factory = _psycopg_parts()
    cursor = kind(tx, row_factory=row_factory)
    if (target := known_targets.get(tx)) is None:
        target = known_targets[tx] = choose(cursor.execute(FIND_POSTGRES).fetchone())
    cursor.execute(*_insert(POSTGRES.name, "%s", events, target, returning=is_piped))
    rows: Rows = cursor.fetchall() if is_piped else _new_rows(events, cursor)
    return rows


async def _psycopg_async(tx: Any, events: Sequence[Event]) -> Rows:
    is_piped = _check_psycopg(tx)
    _, kind, row_factory = _psycopg_parts()
    cursor = kind(tx, row_factory=row_factory)
    if (target := known_targets.get(tx)) is None:
        await cursor.execute(FIND_POSTGRES)
        target = known_targets[tx] = choose(await cursor.fetchone())
    await cursor.execute(*_insert(POSTGRES.name, "%s", events, target, returning=is_piped))
    if _is_counted(events) and not is_piped:
        return _counted(events, cursor.rowcount)
    rows: Rows = await cursor.fetchall()
    return rows


async def _asyncpg(tx: Any, events: Sequence[Event]) -> Rows:
    if not tx.is_in_transaction():
        raise NoTransactionOpen()
    driver = getattr(tx, "_con", tx)  # what a pool lends is new each time
    if (target := known_targets.get(driver)) is None:
        target = known_targets[driver] = choose(await tx.fetchrow(FIND_POSTGRES))
    text, parameters = _insert(POSTGRES.name, "$", events, target)
    if _is_counted(events):
        status = await tx.execute(text, *parameters)  # "INSERT 0 1"
        return _counted(events, int(status.rpartition(" ")[2]))
    rows: Rows = await tx.fetch(text, *parameters)
    return rows


def _is_sqlite_autocommit(tx: Any) -> bool:
    return not tx.in_transaction and (tx.isolation_level is None or _has_autocommit(tx))


def _has_autocommit(tx: Any) -> bool:
    return getattr(tx, "autocommit", None) is True


def _sqlite3(tx: sqlite3.Connection, events: Sequence[Event]) -> Rows:
    if _is_sqlite_autocommit(tx):
        raise NoTransactionOpen()
    cursor = tx.cursor()
    cursor.row_factory = None  # the caller's may make dicts
    try:
        rows = _new_rows(events, cursor.execute(*_insert(SQLITE.name, "?", events, Target.EVENTS)))
    except sqlite3.OperationalError as error:
        # Nothing was run: SQLite finds out when it prepares the statement.
        if not _is_table_missing(error):
            raise
        target = choose(cursor.execute(FIND_SQLITE).fetchone())
        rows = _new_rows(events, cursor.execute(*_insert(SQLITE.name, "?", events, target)))
    cursor.close()
    return rows


def _is_table_missing(error: sqlite3.OperationalError) -> bool:
    return "no such table: bongsu_events" in str(error)


async def _aiosqlite(tx: Any, events: Sequence[Event]) -> Rows:
    # Python 3.12's `autocommit` is not passed on by aiosqlite, and may be asked for in the connection's own thread only.
    if _is_sqlite_autocommit(tx) or (not tx.in_transaction and await tx._execute(_has_autocommit, tx._conn)):
        raise NoTransactionOpen()
    async with tx.cursor() as cursor:
        cursor.row_factory = None
        try:
            await cursor.execute(*_insert(SQLITE.name, "?", events, Target.EVENTS))
        except sqlite3.OperationalError as error:
            if not _is_table_missing(error):
                raise
            await cursor.execute(FIND_SQLITE)
            target = choose(await cursor.fetchone())
            await cursor.execute(*_insert(SQLITE.name, "?", events, target))
        if _is_counted(events):
            return _counted(events, cursor.rowcount)
        rows: Rows = await cursor.fetchall()
    return rows


def _django(tx: Any, events: Sequence[Event]) -> Rows:
    if tx.get_autocommit():
        raise NoTransactionOpen()
    with tx.cursor() as cursor:
        if tx.vendor == MYSQL:
            return mysql.insert_mysql(cursor.execute, events)
        _check_database(tx, tx.vendor)
        cursor.execute(*_insert(tx.vendor, "%s", events, _django_target(tx, cursor)))
        return _new_rows(events, cursor)


def _django_target(tx: Any, cursor: Any) -> Target:
    if tx.vendor == SQLITE.name:
        cursor.execute(FIND_SQLITE)
        return choose(cursor.fetchone())
    if (target := known_targets.get(tx.connection)) is None:
        cursor.execute(FIND_POSTGRES)
        target = known_targets[tx.connection] = choose(cursor.fetchone())
    return target


async def _step(tx: Any, events: Sequence[Event]) -> Rows:
    """A step of a job's run, which is a transaction of the store's own."""
    return [(event_id,) for event_id in await add(tx, events)]


# (top-level package, class name) → (function, whether it is awaited)
_ADAPTERS: dict[tuple[str, str], tuple[Callable[..., Any], bool]] = {
    ("sqlalchemy", "Connection"): (_sqlalchemy_connection, False),
    ("sqlalchemy", "Session"): (_sqlalchemy_session, False),
    ("sqlalchemy", "scoped_session"): (_sqlalchemy_session, False),
    ("sqlalchemy", "AsyncConnection"): (_sqlalchemy_async_connection, True),
    ("sqlalchemy", "AsyncSession"): (_sqlalchemy_async_session, True),
    ("sqlalchemy", "async_scoped_session"): (_sqlalchemy_async_session, True),
    ("psycopg", "Connection"): (_psycopg, False),
    ("psycopg", "AsyncConnection"): (_psycopg_async, True),
    ("asyncpg", "Connection"): (_asyncpg, True),
    ("asyncpg", "PoolConnectionProxy"): (_asyncpg, True),
    ("sqlite3", "Connection"): (_sqlite3, False),
    ("aiosqlite", "Connection"): (_aiosqlite, True),
    ("pymysql", "Connection"): (mysql.pymysql, False),
    ("MySQLdb", "Connection"): (mysql.pymysql, False),
    ("aiomysql", "Connection"): (mysql.aiomysql, True),
    ("asyncmy", "Connection"): (mysql.aiomysql, True),
    ("django", "BaseDatabaseWrapper"): (_django, False),
    ("django", "ConnectionProxy"): (_django, False),  # what `from django.db import connection` is
    ("bongsu", "Step"): (_step, True),
}
