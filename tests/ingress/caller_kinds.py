"""Every holder on every database it is for: the ways into publish that the tests go."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.ingress import callers as holders
from tests.ingress.callers import Holder
from tests.ingress.databases import Place


@dataclass(frozen=True)
class Way:
    """A kind of holder, and the driver below it. `careless` names how its autocommit mode was chosen."""

    kind: type[Holder]
    driver: str
    careless: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    # Whether its database has the outbox and not the store.
    is_elsewhere: bool = False

    def __str__(self) -> str:
        where = "outbox" if self.is_elsewhere else ""
        return "-".join(filter(None, (self.kind.__name__, self.driver, where, self.careless, *self.options)))

    @property
    def onlooker(self) -> str:
        return f"{self.database}_outbox_onlooker" if self.is_elsewhere else f"{self.database}_onlooker"

    @property
    def database(self) -> str:
        return self.driver.partition("+")[0]

    def at(self, place: Place) -> Holder:
        return self.kind(place, self.driver, self.careless, self.options)


_SQLITE, _POSTGRES, _MYSQL = "sqlite", "postgresql", "mysql"
_SYNC_ENGINES = ("sqlite", "postgresql+psycopg", "postgresql+psycopg2")
_ASYNC_ENGINES = ("sqlite+aiosqlite", "postgresql+asyncpg", "postgresql+psycopg")
_SYNC_KINDS = (holders.SqlalchemyConnection, holders.SqlalchemySession, holders.SqlalchemyScopedSession)
_ASYNC_KINDS = (holders.SqlalchemyAsyncConnection, holders.SqlalchemyAsyncSession, holders.SqlalchemyAsyncScopedSession)

# With mysqlclient where it is installed.
_HAS_MYSQLCLIENT = holders.mysqlclient is not None
_CAREFUL_MYSQL_KINDS = (holders.PyMysql, holders.Aiomysql, holders.Asyncmy) + (holders.Mysqlclient,) * _HAS_MYSQLCLIENT
_MYSQL_KINDS = (*_CAREFUL_MYSQL_KINDS, holders.PyMysqlBegin)
_MYSQL_ENGINES = ("mysql+pymysql",) + ("mysql+mysqldb",) * _HAS_MYSQLCLIENT

# Into bongsu_outbox. SQLAlchemy's are those with the drivers for MySQL, and one for each other database.
OUTBOX_WAYS = [
    *(Way(kind, _MYSQL, is_elsewhere=True) for kind in _MYSQL_KINDS),
    *(Way(kind, driver, is_elsewhere=True) for kind in (*_SYNC_KINDS, holders.SqlalchemyBlock) for driver in _MYSQL_ENGINES),
    *(
        Way(kind, driver, is_elsewhere=True)
        for kind in (holders.SqlalchemyAsyncConnection, holders.SqlalchemyAsyncSession)
        for driver in ("mysql+aiomysql", "mysql+asyncmy")
    ),
    *(Way(holders.Django, driver, is_elsewhere=True) for driver in (_MYSQL, _SQLITE, _POSTGRES)),
    *(Way(kind, _POSTGRES, is_elsewhere=True) for kind in (holders.Psycopg, holders.PsycopgAsync, holders.AsyncpgPooled)),
    *(Way(kind, _SQLITE, is_elsewhere=True) for kind in (holders.Sqlite3, holders.Aiosqlite)),
    *(Way(holders.SqlalchemySession, driver, is_elsewhere=True) for driver in ("sqlite", "postgresql+psycopg2")),
    Way(holders.SqlalchemyAsyncSession, "postgresql+asyncpg", is_elsewhere=True),
]

WAYS = [
    *(Way(kind, driver) for kind in (*_SYNC_KINDS, holders.SqlalchemyBlock) for driver in _SYNC_ENGINES),
    *(Way(kind, driver) for kind in _ASYNC_KINDS for driver in _ASYNC_ENGINES),
    Way(holders.SqlalchemyOwnBegin, _SQLITE),
    *(
        Way(kind, _POSTGRES)
        for kind in (holders.Psycopg, holders.PsycopgBlock, holders.PsycopgAsync, holders.Asyncpg, holders.AsyncpgPooled)
    ),
    *(Way(kind, _SQLITE) for kind in (holders.Sqlite3, holders.Sqlite3Begin, holders.Aiosqlite)),
    *(Way(kind, driver) for kind in (holders.Django, holders.DjangoWrapper) for driver in (_SQLITE, _POSTGRES)),
    *OUTBOX_WAYS,
]

_SQLITE_AUTOCOMMIT = ("isolation_level", "autocommit") if sys.version_info >= (3, 12) else ("isolation_level",)

CARELESS_WAYS = [
    *(Way(kind, driver, how) for kind in _SYNC_KINDS for driver in _SYNC_ENGINES for how in ("create_engine", "option")),
    *(Way(kind, driver, how) for kind in _ASYNC_KINDS for driver in _ASYNC_ENGINES for how in ("create_engine", "option")),
    *(Way(holders.SqlalchemyConnection, driver, "connection") for driver in _SYNC_ENGINES),
    *(Way(holders.SqlalchemyAsyncConnection, driver, "connection") for driver in _ASYNC_ENGINES),
    *(Way(kind, _POSTGRES, "autocommit") for kind in (holders.Psycopg, holders.PsycopgAsync)),
    *(Way(kind, _POSTGRES, "outside") for kind in (holders.Asyncpg, holders.AsyncpgPooled)),
    *(Way(kind, _SQLITE, how) for kind in (holders.Sqlite3, holders.Aiosqlite) for how in _SQLITE_AUTOCOMMIT),
    *(Way(kind, driver, "outside") for kind in (holders.Django, holders.DjangoWrapper) for driver in (_SQLITE, _POSTGRES)),
    *(Way(kind, _MYSQL, "autocommit", is_elsewhere=True) for kind in _CAREFUL_MYSQL_KINDS),
    *(
        Way(holders.SqlalchemyConnection, driver, how, is_elsewhere=True)
        for driver in _MYSQL_ENGINES
        for how in ("create_engine", "option")
    ),
    *(
        Way(holders.SqlalchemyAsyncConnection, driver, "create_engine", is_elsewhere=True)
        for driver in ("mysql+aiomysql", "mysql+asyncmy")
    ),
    Way(holders.Django, _MYSQL, "outside", is_elsewhere=True),
]


def dict_factory(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


OWN_ROWS = [
    *(Way(kind, _POSTGRES, options={"row_factory": dict_row}) for kind in (holders.Psycopg, holders.PsycopgAsync)),
    Way(holders.Psycopg, _POSTGRES, options={"cursor_factory": psycopg.RawCursor}),
    Way(holders.Psycopg, _POSTGRES, options={"cursor_factory": psycopg.ClientCursor}),
    Way(holders.PsycopgAsync, _POSTGRES, options={"cursor_factory": psycopg.AsyncRawCursor}),
    *(
        Way(kind, _SQLITE, options=options)
        for kind in (holders.Sqlite3, holders.Aiosqlite)
        for options in ({"row_factory": sqlite3.Row}, {"row_factory": dict_factory}, {"text_factory": bytes})
    ),
]
