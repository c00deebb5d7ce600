"""The connections to the store, and the two ways to use one: `read` and `write`.

SQLite has one writer at a time. Within this process writers queue for it in order; between processes BEGIN IMMEDIATE asks
for it before anything is read, so a transaction that has begun never fails for being late.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from sqlalchemy import URL, ExceptionContext, event, exc, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from bongsu import telemetry
from bongsu.errors import (
    BadSettings,
    BongsuError,
    StoreBusy,
    StoreDamaged,
    StoreNotMigrated,
    StoreRefused,
    StoreTooSlow,
    StoreUnreachable,
)
from bongsu.settings import Settings
from bongsu.store import pulse
from bongsu.store.dialect import Dialect
from bongsu.store.pool import Limits, Pool
from bongsu.store.postgres import POSTGRES
from bongsu.store.sqlite import SQLITE
from bongsu.store.transactions import on_postgres, on_sqlite

# Two cores of database serve about this many busy connections well; more would queue there instead of here.
POOL_SIZE = 10
POOL_OVERFLOW = 10
# A request would rather hear "busy, come back" than hang with its client.
POOL_TIMEOUT_SECONDS = 10
# No statement of ours runs long: what does is stuck, and stuck transactions keep vacuum from the hot tables.
STATEMENT_TIMEOUT_SECONDS = 30
CONNECT_TIMEOUT_SECONDS = 5

# How long SQLite itself waits for another process that writes. When it has given up, it is asked again.
BUSY_TIMEOUT_MILLISECONDS = 5_000
SQLITE_READERS = 4
# For each connection, and only as far as it is used.
SQLITE_CACHE_KIB = 32_768

_log = telemetry.log("bongsu.store")


class Store:
    """The database behind everything. Open it once per process; close it last."""

    def __init__(self, writer: Pool, reader: Pool, dialect: Dialect, place: str) -> None:
        self.dialect = dialect
        self.place = place
        self._writer = writer
        self._reader = reader
        self._transaction = on_sqlite if dialect is SQLITE else on_postgres
        self._turn: contextlib.AbstractAsyncContextManager[Any] = (
            asyncio.Lock() if dialect is SQLITE else contextlib.nullcontext()
        )

    @classmethod
    def open(cls, settings: Settings, statement_seconds: float | None = None) -> Store:
        """Prepare the pools. Nothing is connected yet: the first use does that and tells if it cannot."""
        if settings.is_embedded:
            return _open_sqlite(sqlite_path(settings))
        return _open_postgres(settings.database_url, statement_seconds or STATEMENT_TIMEOUT_SECONDS)

    @contextlib.asynccontextmanager
    async def write(self, *first: str) -> AsyncIterator[AsyncConnection]:
        """A transaction: committed when the block ends, rolled back when it raises.

        The statements it is to begin with travel together with its BEGIN.
        """
        async with self._turn, self._connected(self._writer) as connection, self._transaction(connection, first):
            yield connection

    @contextlib.asynccontextmanager
    async def write_once(self) -> AsyncIterator[AsyncConnection]:
        """A transaction of one statement on PostgreSQL, where it need not be begun and committed; of some on SQLite."""
        async with self.single() if self.dialect is POSTGRES else self.write() as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def single(self) -> AsyncIterator[AsyncConnection]:
        """For one statement by `dialect.rows`, which is a transaction by itself on both. A second would be another."""
        async with self._turn, self._connected(self._writer) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection for looking: each statement sees what was committed when it began."""
        async with self._connected(self._reader) as connection:
            yield connection

    @contextlib.asynccontextmanager
    async def _connected(self, pool: Pool) -> AsyncIterator[AsyncConnection]:
        with translated(self.place):
            connection, is_spoilt = await pool.take(), False
            try:
                yield connection
            except asyncpg.InterfaceError as error:
                # All it says of a connection that was lost meanwhile is that one cannot use it.
                if POSTGRES.driver(connection).is_closed():
                    raise asyncpg.ConnectionDoesNotExistError(str(error)) from error
                raise
            except (asyncio.CancelledError, TimeoutError):
                # The server may not have been told yet that nobody waits for its answer. A file's thread keeps the order.
                is_spoilt = self.dialect is POSTGRES
                raise
            finally:
                await pool.give_back(connection, is_spoilt=is_spoilt)

    async def close(self) -> None:
        await self._writer.close()
        await self._reader.close()


def sqlite_path(settings: Settings) -> Path:
    if settings.database_url:
        return Path(make_url(settings.database_url).database or "bongsu.db")
    return settings.made_data_dir() / "bongsu.db"


def _open_postgres(url: str, statement_seconds: float) -> Store:
    engine = create_async_engine(
        _asyncpg_url(url),
        # SQLAlchemy would begin with the first statement, in a round trip of its own and four times the Python of ours.
        isolation_level="AUTOCOMMIT",
        poolclass=NullPool,
        connect_args={
            "timeout": CONNECT_TIMEOUT_SECONDS,
            # The server's own limit should speak first; this one is for a server that no longer speaks.
            "command_timeout": statement_seconds + 5,
            "server_settings": {
                "application_name": "bongsu",
                "statement_timeout": f"{int(statement_seconds * 1000)}ms",
                "idle_in_transaction_session_timeout": f"{int(statement_seconds * 2000)}ms",
                "timezone": "UTC",
                "jit": "off",
                # What is said when a working table is there already is for nobody.
                "client_min_messages": "warning",
                # Our statements look up many rows one by one, and nearly always in memory. With the default of four the
                # planner would rather read the whole of a table than a few hundred rows of it by their addresses.
                "random_page_cost": "1.1",
            },
        },
    )
    pool = Pool(engine, POSTGRES, Limits(POOL_SIZE + POOL_OVERFLOW, POOL_SIZE, POOL_TIMEOUT_SECONDS), pulse.lives)
    place = urlsplit(url)
    return Store(pool, pool, POSTGRES, f"PostgreSQL at {place.hostname or 'localhost'}:{place.port or 5432}")


# What may follow the question mark: libpq's name, and asyncpg's for it.
_URL_OPTIONS = {"sslmode": "ssl", "host": "host"}
_SSL_MODES = {"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}


def _asyncpg_url(url: str) -> URL:
    parsed = make_url(url).set(drivername="postgresql+asyncpg")
    if unknown := set(parsed.query) - set(_URL_OPTIONS):
        raise BadSettings(f"BONGSU_DATABASE_URL has ?{min(unknown)}=, and only {' and '.join(_URL_OPTIONS)} may stand there")
    if parsed.query.get("sslmode", "prefer") not in _SSL_MODES:
        raise BadSettings(f"BONGSU_DATABASE_URL has an sslmode that is none of {', '.join(sorted(_SSL_MODES))}")
    return parsed.set(query={_URL_OPTIONS[name]: value for name, value in parsed.query.items()})


def _open_sqlite(path: Path) -> Store:
    url = URL.create("sqlite+aiosqlite", database=str(path))
    writer, reader = create_async_engine(url, poolclass=NullPool), create_async_engine(url, poolclass=NullPool)
    event.listen(writer.sync_engine, "connect", _prepare_writer)
    event.listen(reader.sync_engine, "connect", _prepare_reader)
    for engine in (writer, reader):
        event.listen(engine.sync_engine, "handle_error", _keep_when_cancelled)
    return Store(_kept(writer, 1), _kept(reader, SQLITE_READERS), SQLITE, f"SQLite at {path}")


def _kept(engine: AsyncEngine, count: int) -> Pool:
    return Pool(engine, SQLITE, Limits(count, count, POOL_TIMEOUT_SECONDS), _always)


def _keep_when_cancelled(context: ExceptionContext) -> None:
    """SQLAlchemy would close the file within a transaction, which then lasts as long as somebody knows a cursor of it."""
    if isinstance(context.original_exception, asyncio.CancelledError):
        context.is_disconnect = False


async def _always(_connection: AsyncConnection, _rested_seconds: float) -> bool:
    """A file does not hang up."""
    return True


def _prepare_writer(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves; the module's own would be a deferred one
    # SQLite keeps whatever bytes a writer calls text. One such row must not make a whole batch unreadable.
    connection.driver_connection.text_factory = _as_text
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MILLISECONDS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    # FULL: an answer of "accepted" survives a power cut. NORMAL, the usual choice with WAL, would lose the last moments.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    # A step of the fan-out touches thousands of rows: what it goes through stays in memory, and the log is folded back into
    # the file every 40 MB instead of after every step.
    cursor.execute("PRAGMA temp_store = MEMORY")
    cursor.execute(f"PRAGMA cache_size = -{SQLITE_CACHE_KIB}")
    cursor.execute("PRAGMA wal_autocheckpoint = 10000")
    # SQLite's own default; some builds wipe every byte that is freed, also of the working tables.
    cursor.execute("PRAGMA secure_delete = OFF")
    cursor.close()


def _as_text(stored: bytes) -> str:
    return stored.decode(errors="replace")


def _prepare_reader(connection: Any, record: object) -> None:
    _prepare_writer(connection, record)
    cursor = connection.cursor()
    cursor.execute("PRAGMA query_only = ON")
    cursor.close()


@contextlib.contextmanager
def translated(place: str) -> Iterator[None]:
    """Foreign errors that speak of the store become ours; those about a statement are the bugs they look like."""
    try:
        yield
    except (exc.DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if ours := _translation(error):
            cause = error.orig if isinstance(error, exc.DBAPIError) else error
            raise ours(f"{place}: {_first_line(cause)}") from error
        raise
    except OSError as error:
        # Refused, unreachable, a name that does not resolve, a pool with nothing free.
        raise StoreUnreachable(f"{place}: {_first_line(error)}") from error


# By the beginning of SQLSTATE, the first that fits.
_BY_STATE: dict[str, type[BongsuError]] = {
    "42501": StoreRefused,  # insufficient privilege
    "25006": StoreRefused,  # read-only transaction
    "40": StoreBusy,  # deadlock, serialisation
    "55P03": StoreBusy,  # lock not available
    "57014": StoreTooSlow,  # cancelled by statement_timeout
    "08": StoreUnreachable,
    "53": StoreUnreachable,  # out of connections, memory, disk
    "57P": StoreUnreachable,  # shutting down or starting
    "28": StoreUnreachable,  # refused at the door
    "3D": StoreUnreachable,  # no such database
}
_BY_SQLITE_CODE: dict[int, type[BongsuError]] = {
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_CANTOPEN: StoreUnreachable,
    sqlite3.SQLITE_FULL: StoreDamaged,
    sqlite3.SQLITE_IOERR: StoreDamaged,
    sqlite3.SQLITE_READONLY: StoreDamaged,
    sqlite3.SQLITE_NOTADB: StoreDamaged,
    sqlite3.SQLITE_CORRUPT: StoreDamaged,
}


def _translation(error: Exception) -> type[BongsuError] | None:
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return StoreUnreachable
    if isinstance(cause, sqlite3.Error):
        # The low byte is the kind, the rest its finer points.
        return _BY_SQLITE_CODE.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF)
    state = str(getattr(cause, "sqlstate", None) or "")
    if state == "42P01" and '"bongsu_' in str(cause):
        return StoreNotMigrated  # a table of ours is missing, not one of somebody's statement
    return next((ours for beginning, ours in _BY_STATE.items() if state.startswith(beginning)), None)


def _first_line(error: BaseException | None) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
