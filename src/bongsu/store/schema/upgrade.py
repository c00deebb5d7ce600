"""Running Alembic's migrations, on a connection of SQLAlchemy's own."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from sqlalchemy import URL, Connection, create_engine, event, exc, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from bongsu.store.core.failures import translated
from bongsu.store.core.postgres import CONNECT_SECONDS, PostgresDatabase
from bongsu.store.core.private_files import create_private
from bongsu.store.core.sqlite import SqliteDatabase
from bongsu.store.core.store import Store

# Building an index on a large table may take long, and so may waiting for another process that does.
UPGRADE_SECONDS = 6 * 3600
# SQLite's own wait for another process that writes, which may be one that migrates. A start can be stopped meanwhile.
BUSY_MILLISECONDS = 10_000
# Any number will do, as long as every Bongsu takes the same: "bongsu" on a phone's keys.
_ADVISORY_LOCK = 266478


async def upgrade(store: Store) -> None:
    """All that is missing, in one transaction, under a lock: of several processes the first does it, the others wait."""
    with translated(store.location):
        try:
            if isinstance(store.database, PostgresDatabase):
                await _upgrade_postgres(store.database)
            else:
                await asyncio.to_thread(_upgrade_sqlite, store.database)
        except exc.DBAPIError as error:
            # As the driver raised it, so that it is translated like all others.
            cause = error.orig and (error.orig.__cause__ or error.orig)
            raise (cause or error) from error


async def _upgrade_postgres(database: PostgresDatabase) -> None:
    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(
            database.url,
            timeout=CONNECT_SECONDS,
            command_timeout=UPGRADE_SECONDS + 5,
            server_settings={
                "application_name": "bongsu migrate",
                "statement_timeout": f"{UPGRADE_SECONDS}s",
                "timezone": "UTC",
            },
        )

    # By a connection of our own making, so that the URL means the same here as everywhere else.
    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool, async_creator=connect)
    try:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
            await connection.run_sync(_run_alembic)
    finally:
        await engine.dispose()


def _upgrade_sqlite(database: SqliteDatabase) -> None:
    create_private(database.path)
    engine = create_engine(URL.create("sqlite", database=str(database.path)), poolclass=NullPool)
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.begin() as connection:
            _run_alembic(connection)
    finally:
        engine.dispose()


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the module's own BEGIN would be a deferred one
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA foreign_keys = ON")


def _run_alembic(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
