"""publish: an event, written in the caller's own transaction, through the object the caller hands over.

It never commits. What the caller rolls back was never said; what the caller commits is never lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
from bongsu.store.dialect import POSTGRES, SQLITE, Dialect, dialect_named

Rows = Iterable[Sequence[Any]]


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
    answers = statements.told_apart(events, {_id(row[0]) for row in rows})
    ids = [event.event_id for event in events]
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


def _statement(dialect: Dialect, events: Sequence[Event], placeholder: Callable[[int], str]) -> tuple[str, list[Any]]:
    return statements.insert_statement(dialect, len(events), placeholder), statements.insert_parameters(dialect, events)


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


def _sqlalchemy_connection(tx: Connection, events: Sequence[Event]) -> Rows:
    dialect = _dialect(tx, tx.dialect.name)
    if not tx.in_transaction():
        tx.begin()  # as the first statement would; on SQLite a listener of the caller's may say BEGIN now
    if _is_sqlalchemy_autocommit(tx):
        raise NoTransactionOpen()
    # Straight to the driver, in its own style of parameters: naming them for SQLAlchemy costs as much again as the rest.
    sql, parameters = _statement(dialect, events, _PLACEHOLDERS[tx.dialect.paramstyle])
    return tx.exec_driver_sql(sql, tuple(parameters)).all()


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


def _check_psycopg(tx: Any) -> None:
    from psycopg.pq import TransactionStatus  # noqa: PLC0415

    if tx.autocommit and tx.info.transaction_status == TransactionStatus.IDLE:
        raise NoTransactionOpen()


# Which cursors and rows a psycopg connection makes is the caller's setting; these are psycopg's own and answer tuples.


def _psycopg(tx: Any, events: Sequence[Event]) -> Rows:
    from psycopg import Cursor, rows  # noqa: PLC0415

    _check_psycopg(tx)
    with Cursor(tx, row_factory=rows.tuple_row) as cursor:
        return cursor.execute(*_statement(POSTGRES, events, _percent)).fetchall()


async def _psycopg_async(tx: Any, events: Sequence[Event]) -> Rows:
    from psycopg import AsyncCursor, rows  # noqa: PLC0415

    _check_psycopg(tx)
    async with AsyncCursor(tx, row_factory=rows.tuple_row) as cursor:
        await cursor.execute(*_statement(POSTGRES, events, _percent))
        return await cursor.fetchall()


async def _asyncpg(tx: Any, events: Sequence[Event]) -> Rows:
    if not tx.is_in_transaction():
        raise NoTransactionOpen()
    sql, parameters = _statement(POSTGRES, events, _dollar)
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
    rows: Rows = cursor.execute(*_statement(SQLITE, events, _question_mark)).fetchall()
    cursor.close()
    return rows


async def _aiosqlite(tx: Any, events: Sequence[Event]) -> Rows:
    # Python 3.12's `autocommit` is not passed on by aiosqlite, and may be asked for in the connection's own thread only.
    if _is_sqlite_autocommit(tx) or (not tx.in_transaction and await tx._execute(_has_autocommit, tx._conn)):
        raise NoTransactionOpen()
    async with tx.cursor() as cursor:
        cursor.row_factory = None
        await cursor.execute(*_statement(SQLITE, events, _question_mark))
        rows: Rows = await cursor.fetchall()
    return rows


def _django(tx: Any, events: Sequence[Event]) -> Rows:
    if tx.get_autocommit():
        raise NoTransactionOpen()
    with tx.cursor() as cursor:
        cursor.execute(*_statement(_dialect(tx, tx.vendor), events, _percent))
        rows: Rows = cursor.fetchall()
    return rows


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
