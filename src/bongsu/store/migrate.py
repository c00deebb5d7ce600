"""Bringing the schema up to date, and refusing to run on one that is not."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.errors import StoreNotMigrated, StoreTooNew
from bongsu.store.engine import Store
from bongsu.store.postgres import POSTGRES

# The newest migration. Revisions are numbers with leading zeros, so that older and newer can be told without loading them.
HEAD = "0005"

# Building an index on a large table may take long, and so may waiting for another process that does.
MIGRATION_SECONDS = 6 * 3600

# Any number will do, as long as every Bongsu takes the same: "bongsu" on a phone's keys.
_MIGRATION_LOCK = 266478


async def migrate(store: Store) -> tuple[str | None, str]:
    """Apply what is missing in one transaction; return the revisions before and after. Safe from many processes at once."""
    async with store.write() as tx:
        if store.dialect is POSTGRES:
            await tx.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        before = await _revision(tx)
        if before is not None and before > HEAD:
            raise StoreTooNew(f"{store.place} is at revision {before}, this Bongsu knows {HEAD}")
        if before != HEAD:
            if not tx.in_transaction():
                raise AssertionError("Alembic would commit by itself")
            await tx.run_sync(_upgrade)
        return before, HEAD


async def check(store: Store) -> None:
    """Raise unless the schema is exactly the one this code was written for."""
    async with store.read() as connection:
        found = await _revision(connection)
    if found is None or found < HEAD:
        raise StoreNotMigrated(f"{store.place} is at revision {found or 'none'}, this Bongsu needs {HEAD}")
    if found > HEAD:
        raise StoreTooNew(f"{store.place} is at revision {found}, this Bongsu knows {HEAD}")


async def _revision(connection: AsyncConnection) -> str | None:
    exists = (
        "SELECT to_regclass('bongsu_version')"
        if connection.dialect.name == "postgresql"
        else "SELECT name FROM sqlite_master WHERE name = 'bongsu_version'"
    )
    if (await connection.exec_driver_sql(exists)).scalar() is None:
        return None
    revision: str | None = (await connection.exec_driver_sql("SELECT max(version_num) FROM bongsu_version")).scalar()
    return revision


def _upgrade(connection: Connection) -> None:
    # Imported here because a start that finds everything in place need not pay for it.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
