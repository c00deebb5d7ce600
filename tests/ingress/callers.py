"""Programs that hold a transaction: one small class for each library, in that library's own words.

`tx` is what publish is handed. Each can begin, insert an order, commit and roll back, so every test is written once.
A careless one holds the same object in autocommit mode, with no transaction open.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Self

import aiomysql
import aiosqlite
import asyncmy
import asyncpg
import django
import django.db
import psycopg
import pymysql
from django.conf import settings as django_settings
from django.db import transaction as django_transaction
from pymysql.constants import CLIENT
from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from bongsu import Event, Published, publish
from tests.ingress.databases import Place
from tests.support.mariadb import options_of

mysqlclient: Any = None
with suppress(ImportError):  # it has to be compiled against libmariadb-dev or libmysqlclient-dev
    import MySQLdb

    mysqlclient = MySQLdb


class Holder:
    """Open it with `async with`. The synchronous libraries are called as they are: nothing else runs meanwhile."""

    tx: Any

    def __init__(self, place: Place, driver: str, careless: str, options: Mapping[str, Any]) -> None:
        self.place = place
        self.driver = driver
        self.careless = careless
        self.options = options

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def publish(self, *events: Event) -> Published:
        published = publish(self.tx, *events)
        assert isinstance(published, Published)
        return published

    async def open(self) -> None:
        raise NotImplementedError

    async def begin(self) -> None:
        """Most libraries begin by themselves, with the first statement."""

    async def order(self, ref: str) -> None:
        raise NotImplementedError

    async def commit(self) -> None:
        self.tx.commit()

    async def rollback(self) -> None:
        self.tx.rollback()

    async def close(self) -> None:
        self.tx.close()


class AsyncHolder(Holder):
    async def publish(self, *events: Event) -> Published:
        published = await publish(self.tx, *events)
        assert isinstance(published, Published)
        return published

    async def commit(self) -> None:
        await self.tx.commit()

    async def rollback(self) -> None:
        await self.tx.rollback()

    async def close(self) -> None:
        await self.tx.close()


# --- SQLAlchemy -------------------------------------------------------------------------------------------------------

_ORDER = text("INSERT INTO orders VALUES (:ref)")


class _Sqlalchemy(Holder):
    engine: Engine

    async def open(self) -> None:
        autocommit = {"isolation_level": "AUTOCOMMIT"} if self.careless == "create_engine" else {}
        self.engine = create_engine(self.place.url(self.driver), poolclass=NullPool, **autocommit)
        if self.careless == "option":
            self.engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self.tx = self.hold()

    def hold(self) -> Any:
        raise NotImplementedError

    async def order(self, ref: str) -> None:
        self.tx.execute(_ORDER, {"ref": ref})


class SqlalchemyConnection(_Sqlalchemy):
    def hold(self) -> Connection:
        connection = self.engine.connect()
        return connection.execution_options(isolation_level="AUTOCOMMIT") if self.careless == "connection" else connection


class SqlalchemyBlock(SqlalchemyConnection):
    """begin() by hand, not by the first statement."""

    async def begin(self) -> None:
        self.tx.begin()


class SqlalchemyOwnBegin(SqlalchemyConnection):
    """SQLAlchemy's own recipe for savepoints on SQLite: the driver in autocommit mode, and a listener that says BEGIN."""

    def hold(self) -> Connection:
        event.listen(self.engine, "connect", self._say_no_begin)
        event.listen(self.engine, "begin", self._say_begin)
        return super().hold()

    @staticmethod
    def _say_no_begin(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @staticmethod
    def _say_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")


class SqlalchemySession(_Sqlalchemy):
    def hold(self) -> Session:
        return Session(self.engine)


class SqlalchemyScopedSession(_Sqlalchemy):
    def hold(self) -> scoped_session[Session]:
        return scoped_session(sessionmaker(self.engine))

    async def close(self) -> None:
        self.tx.remove()


class _SqlalchemyAsync(AsyncHolder):
    engine: AsyncEngine

    async def open(self) -> None:
        autocommit = {"isolation_level": "AUTOCOMMIT"} if self.careless == "create_engine" else {}
        self.engine = create_async_engine(self.place.url(self.driver), poolclass=NullPool, **autocommit)
        if self.careless == "option":
            self.engine = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self.tx = await self.hold()

    async def hold(self) -> Any:
        raise NotImplementedError

    async def order(self, ref: str) -> None:
        await self.tx.execute(_ORDER, {"ref": ref})


class SqlalchemyAsyncConnection(_SqlalchemyAsync):
    async def hold(self) -> Any:
        connection = await self.engine.connect()
        return (
            await connection.execution_options(isolation_level="AUTOCOMMIT") if self.careless == "connection" else connection
        )


class SqlalchemyAsyncSession(_SqlalchemyAsync):
    async def hold(self) -> Any:
        return AsyncSession(self.engine)


class SqlalchemyAsyncScopedSession(_SqlalchemyAsync):
    async def hold(self) -> Any:
        return async_scoped_session(async_sessionmaker(self.engine), scopefunc=lambda: "this test")

    async def close(self) -> None:
        await self.tx.remove()


# --- PostgreSQL's drivers ---------------------------------------------------------------------------------------------


class Psycopg(Holder):
    async def open(self) -> None:
        self.tx = psycopg.connect(self.place.where, autocommit=bool(self.careless), **self.options)

    async def order(self, ref: str) -> None:
        with psycopg.Cursor(self.tx) as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [ref])


class PsycopgBlock(Psycopg):
    """A connection in autocommit mode, and in it a transaction block."""

    block: AbstractContextManager[Any]

    async def open(self) -> None:
        self.tx = psycopg.connect(self.place.where, autocommit=True)

    async def begin(self) -> None:
        self.block = self.tx.transaction()
        self.block.__enter__()

    async def commit(self) -> None:
        self.block.__exit__(None, None, None)

    async def rollback(self) -> None:
        self.block.__exit__(psycopg.Rollback, psycopg.Rollback(), None)


class PsycopgAsync(AsyncHolder):
    async def open(self) -> None:
        autocommit = bool(self.careless)
        self.tx = await psycopg.AsyncConnection.connect(self.place.where, autocommit=autocommit, **self.options)

    async def order(self, ref: str) -> None:
        async with psycopg.AsyncCursor(self.tx) as cursor:
            await cursor.execute("INSERT INTO orders VALUES (%s)", [ref])


class Asyncpg(AsyncHolder):
    transaction: Any

    async def open(self) -> None:
        self.tx = await asyncpg.connect(self.place.where, **self.options)

    async def begin(self) -> None:
        self.transaction = self.tx.transaction()
        await self.transaction.start()

    async def order(self, ref: str) -> None:
        await self.tx.execute("INSERT INTO orders VALUES ($1)", ref)

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()


class AsyncpgPooled(Asyncpg):
    pool: Any

    async def open(self) -> None:
        self.pool = await asyncpg.create_pool(self.place.where, min_size=1, max_size=1, **self.options)
        self.tx = await self.pool.acquire()

    async def close(self) -> None:
        await self.pool.release(self.tx)
        await self.pool.close()


# --- drivers for MySQL and MariaDB ------------------------------------------------------------------------------------


class PyMysql(Holder):
    async def open(self) -> None:
        self.tx = pymysql.connect(**options_of(self.place.where), autocommit=bool(self.careless), **self.options)

    async def order(self, ref: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [ref])


class PyMysqlBegin(PyMysql):
    """In autocommit mode, with a transaction begun by hand; it counts rows that were found, as Django's do."""

    async def open(self) -> None:
        self.tx = pymysql.connect(**options_of(self.place.where), autocommit=True, client_flag=CLIENT.FOUND_ROWS)

    async def begin(self) -> None:
        self.tx.begin()


class Mysqlclient(Holder):
    async def open(self) -> None:
        self.tx = mysqlclient.connect(**options_of(self.place.where), autocommit=bool(self.careless), charset="utf8mb4")

    async def order(self, ref: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [ref])


class Aiomysql(AsyncHolder):
    async def open(self) -> None:
        given = options_of(self.place.where)
        given["db"] = given.pop("database")
        self.tx = await aiomysql.connect(**given, autocommit=bool(self.careless), charset="utf8mb4")

    async def order(self, ref: str) -> None:
        async with self.tx.cursor() as cursor:
            await cursor.execute("INSERT INTO orders VALUES (%s)", [ref])

    async def close(self) -> None:
        await self.tx.ensure_closed()


class Asyncmy(Aiomysql):
    async def open(self) -> None:
        given = options_of(self.place.where)
        given["db"] = given.pop("database")
        self.tx = await asyncmy.connect(**given, autocommit=bool(self.careless), charset="utf8mb4")


# --- SQLite's drivers -------------------------------------------------------------------------------------------------


_AUTOCOMMIT: dict[str, Any] = {"": {}, "isolation_level": {"isolation_level": None}, "autocommit": {"autocommit": True}}


class Sqlite3(Holder):
    async def open(self) -> None:
        self.tx = sqlite3.connect(self.place.where, **_AUTOCOMMIT[self.careless])
        for name, value in self.options.items():
            setattr(self.tx, name, value)

    async def order(self, ref: str) -> None:
        self.tx.execute("INSERT INTO orders VALUES (?)", [ref])


class Sqlite3Begin(Sqlite3):
    """A connection that leaves BEGIN to its program."""

    async def open(self) -> None:
        self.tx = sqlite3.connect(self.place.where, isolation_level=None)

    async def begin(self) -> None:
        self.tx.execute("BEGIN IMMEDIATE")


class Aiosqlite(AsyncHolder):
    async def open(self) -> None:
        self.tx = await aiosqlite.connect(self.place.where, **_AUTOCOMMIT[self.careless])
        for name, value in self.options.items():
            setattr(self.tx, name, value)

    async def order(self, ref: str) -> None:
        await self.tx.execute("INSERT INTO orders VALUES (?)", [ref])


# --- Django -----------------------------------------------------------------------------------------------------------


class Django(Holder):
    """Django's `connection`, inside atomic(). It wants to be told that the loop it sees is only the test's own."""

    block: AbstractContextManager[Any]

    async def open(self) -> None:
        if not django_settings.configured:
            django_settings.configure(LOGGING_CONFIG=None)  # the log is not Django's to arrange
            django.setup()
        described = django.db.connections.configure_settings({"default": self._description()})
        django.db.connections.settings["default"] = described["default"]
        self.tx = self.hold()

    def hold(self) -> Any:
        return django.db.connection

    def _description(self) -> dict[str, Any]:
        if self.place.database == "sqlite":
            return {"ENGINE": "django.db.backends.sqlite3", "NAME": self.place.where}
        if self.place.database == "mysql" and mysqlclient is None:
            pymysql.install_as_MySQLdb()  # as a project without mysqlclient does
        url = make_url(self.place.where)
        return {
            "ENGINE": f"django.db.backends.{self.place.database}",
            "NAME": url.database,
            "USER": url.username,
            "PASSWORD": url.password or "",
            "HOST": url.host,
            "PORT": url.port,
        }

    async def begin(self) -> None:
        self.block = django_transaction.atomic()
        self.block.__enter__()

    async def order(self, ref: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [ref])

    async def commit(self) -> None:
        self.block.__exit__(None, None, None)

    async def rollback(self) -> None:
        self.block.__exit__(RuntimeError, RuntimeError("the view raised"), None)

    async def close(self) -> None:
        self.tx.close()
        del django.db.connections["default"]


class DjangoWrapper(Django):
    """What `connections["default"]` is, behind `connection`."""

    def hold(self) -> Any:
        return django.db.connections["default"]
