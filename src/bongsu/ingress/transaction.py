"""publish: an event, written in the caller's own transaction, through the object the caller hands over.

It never commits. What the caller rolls back was never said; what the caller commits is never lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress
from typing import Any, overload
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from bongsu.errors import BadEvent, NotATransaction, NoTransactionOpen
from bongsu.model import Event
from bongsu.store import events as statements
from bongsu.store.databases import dialect_named
from bongsu.store.dialect import Dialect
from bongsu.store.postgres import POSTGRES
from bongsu.store.sqlite import SQLITE

Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Published:
    """What became of the events: an accepted id is new, a duplicate was stored before and nothing was changed."""

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
    aiosqlite, and Django's connection.
    """
    for event in events:
        if not isinstance(event, Event):
            hint = ": write publish(tx, *events)" if isinstance(event, list | tuple) else ""
            raise BadEvent(f"publish takes Event objects, not {type(event).__name__}{hint}")
    execute, is_async = _way_into(type(tx))  # type: ignore[arg-type]
    if is_async:
        return _publish_later(execute, tx, events)
    return _answer(events, [row for part in statements.parts(events) for row in execute(tx, part)])


async def _publish_later(execute: Callable[..., Any], tx: Any, events: Sequence[Event]) -> Published:
    return _answer(events, [row for part in statements.parts(events) for row in await execute(tx, part)])


def _answer(events: Sequence[Event], rows: Rows) -> Published:
    ids = tuple([event.event_id for event in events])
    if len(rows) == len(ids):
        return Published(ids, ())
    answers = statements.told_apart(events, {_id(row[0]) for row in rows})
    return Published(tuple(compress(ids, answers)), tuple(compress(ids, (not is_new for is_new in answers))))


def _id(stored: Any) -> UUID:
    # The text_factory of the caller's sqlite3 connection may answer bytes.
    return statements.as_uuid(stored.decode() if isinstance(stored, bytes) else stored)


# --- one way in for each library --------------------------------------------------------------------------------------
# Libraries are known by name, so that none of them needs to be installed for the others to work.


@cache
def _way_into(kind: type) -> tuple[Callable[..., Any], bool]:
    for base in kind.__mro__:
        if way := _WAYS.get((base.__module__.partition(".")[0], base.__name__)):
            return way
    raise NotATransaction(f"publish was handed a {kind.__module__}.{kind.__qualname__}")


def _dialect(tx: Any, name: str) -> Dialect:
    if name not in (POSTGRES.name, SQLITE.name):
        raise NotATransaction(f"publish was handed a {type(tx).__qualname__} to {name}, and writes to PostgreSQL and SQLite")
    return dialect_named(name)


def _statement(
    dialect: Dialect, events: Sequence[Event], placeholder: Callable[[int], str], *, returning: bool = False
) -> tuple[str, list[Any]]:
    sql = statements.insert_statement(dialect, len(events), placeholder, returning or not _is_counted(events))
    return sql, statements.insert_parameters(dialect, events)


def _is_counted(events: Sequence[Event]) -> bool:
    """Of one event, how many rows were stored tells whether its id was new; asking for the id too would cost 3 % more."""
    return len(events) == 1


def _told(events: Sequence[Event], cursor: Any) -> Rows:
    """The ids that were new, by the cursor that has executed the statement."""
    rows: Rows = _counted(events, cursor.rowcount) if _is_counted(events) else cursor.fetchall()
    return rows


def _counted(events: Sequence[Event], count: int) -> Rows:
    assert 0 <= count <= 1, f"the driver says that one event was stored {count} times"
    return [(events[0].event_id,)] * count


def _question_mark(_place: int) -> str:
    return "?"


def _percent(_place: int) -> str:
    return "%s"


def _dollar(place: int) -> str:
    return f"${place + 1}"


_PLACEHOLDERS: dict[str, Callable[[int], str]] = {
    "qmark": _question_mark,
    "format": _percent,
    "pyformat": _percent,
    "numeric_dollar": _dollar,
}


# SQLAlchemy does not promise the count of an INSERT unasked.
_COUNTING = {"preserve_rowcount": True}


def _sqlalchemy_connection(tx: Connection, events: Sequence[Event]) -> Rows:
    dialect = _dialect(tx, tx.dialect.name)
    if not tx.in_transaction():
        tx.begin()  # as the first statement would; on SQLite a listener of the caller's may say BEGIN now
    if _is_sqlalchemy_autocommit(tx):
        raise NoTransactionOpen()
    # Straight to the driver, in its own style of parameters: naming them for SQLAlchemy costs as much again as the rest.
    sql, parameters = _statement(dialect, events, _PLACEHOLDERS[tx.dialect.paramstyle])
    result = tx.exec_driver_sql(sql, tuple(parameters), execution_options=_COUNTING)
    return _counted(events, result.rowcount) if _is_counted(events) else result.all()


def _is_sqlalchemy_autocommit(tx: Connection) -> bool:
    """Asked of the driver: the options of SQLAlchemy's connection do not tell what create_engine() was given."""
    if tx.dialect.name == SQLITE.name:
        return _is_sqlite_autocommit(tx.connection.driver_connection)
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

    # Which cursors and rows a connection makes is the caller's setting; these are psycopg's own and answer tuples.
    return Cursor, AsyncCursor, rows.tuple_row


def _check_psycopg(tx: Any) -> bool:
    """Whether it is in pipeline mode, where the count is not known yet when execute returns."""
    if tx.autocommit and tx.pgconn.transaction_status == 0:  # PQTRANS_IDLE
        raise NoTransactionOpen()
    return bool(tx.pgconn.pipeline_status)


def _psycopg(tx: Any, events: Sequence[Event]) -> Rows:
    is_piped = _check_psycopg(tx)
    kind, _, row_factory = _psycopg_parts()
    cursor = kind(tx, row_factory=row_factory)
    cursor.execute(*_statement(POSTGRES, events, _percent, returning=is_piped))
    rows: Rows = cursor.fetchall() if is_piped else _told(events, cursor)
    return rows


async def _psycopg_async(tx: Any, events: Sequence[Event]) -> Rows:
    is_piped = _check_psycopg(tx)
    _, kind, row_factory = _psycopg_parts()
    cursor = kind(tx, row_factory=row_factory)
    await cursor.execute(*_statement(POSTGRES, events, _percent, returning=is_piped))
    if _is_counted(events) and not is_piped:
        return _counted(events, cursor.rowcount)
    rows: Rows = await cursor.fetchall()
    return rows


async def _asyncpg(tx: Any, events: Sequence[Event]) -> Rows:
    if not tx.is_in_transaction():
        raise NoTransactionOpen()
    sql, parameters = _statement(POSTGRES, events, _dollar)
    if _is_counted(events):
        status = await tx.execute(sql, *parameters)  # "INSERT 0 1"
        return _counted(events, int(status.rpartition(" ")[2]))
    rows: Rows = await tx.fetch(sql, *parameters)
    return rows


def _is_sqlite_autocommit(tx: Any) -> bool:
    return not tx.in_transaction and (tx.isolation_level is None or _has_autocommit(tx))


def _has_autocommit(tx: Any) -> bool:
    return getattr(tx, "autocommit", None) is True


def _sqlite3(tx: sqlite3.Connection, events: Sequence[Event]) -> Rows:
    if _is_sqlite_autocommit(tx):
        raise NoTransactionOpen()
    cursor = tx.cursor()
    cursor.row_factory = None  # the caller's may answer dicts
    rows = _told(events, cursor.execute(*_statement(SQLITE, events, _question_mark)))
    cursor.close()
    return rows


async def _aiosqlite(tx: Any, events: Sequence[Event]) -> Rows:
    # Python 3.12's `autocommit` is not passed on by aiosqlite, and may be asked for in the connection's own thread only.
    if _is_sqlite_autocommit(tx) or (not tx.in_transaction and await tx._execute(_has_autocommit, tx._conn)):
        raise NoTransactionOpen()
    async with tx.cursor() as cursor:
        cursor.row_factory = None
        await cursor.execute(*_statement(SQLITE, events, _question_mark))
        if _is_counted(events):
            return _counted(events, cursor.rowcount)
        rows: Rows = await cursor.fetchall()
    return rows


def _django(tx: Any, events: Sequence[Event]) -> Rows:
    if tx.get_autocommit():
        raise NoTransactionOpen()
    with tx.cursor() as cursor:
        cursor.execute(*_statement(_dialect(tx, tx.vendor), events, _percent))
        return _told(events, cursor)


# (top-level package, class name) → (function, whether its answer is awaited)
_WAYS: dict[tuple[str, str], tuple[Callable[..., Any], bool]] = {
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
    ("django", "BaseDatabaseWrapper"): (_django, False),
    ("django", "ConnectionProxy"): (_django, False),  # what `from django.db import connection` is
}
