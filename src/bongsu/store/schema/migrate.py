"""Bringing the schema up to date, and refusing to run on one that is not."""

from __future__ import annotations

from bongsu.errors import StoreNotMigrated, StoreTooNew, StoreTooOld
from bongsu.store.core.query import Statement, Transaction, fetch_one, same
from bongsu.store.core.store import Store

# The first migration and the newest. Revisions compare as texts, so that older and newer are known without loading them.
# Before the first there were others, "0001" to "0011", which were never released: letters sort after digits.
FIRST = "r0001"
HEAD = "r0006"


async def migrate(store: Store) -> tuple[str | None, str]:
    """Apply what is missing in one transaction; return the revisions before and after. Safe from many processes at once."""
    async with store.read() as tx:
        before = await _revision(tx)
    _refuse_others(store, before)
    if before != HEAD:
        # Imported here because a start that finds everything in place need not load SQLAlchemy and Alembic.
        from bongsu.store.schema.upgrade import upgrade  # noqa: PLC0415

        await upgrade(store)
    return before, HEAD


async def check(store: Store) -> None:
    """Raise unless the schema is exactly the one this code was written for."""
    async with store.read() as tx:
        found = await _revision(tx)
    _refuse_others(store, found)
    if found is None or found < HEAD:
        raise StoreNotMigrated(f"{store.location} is at revision {found or 'none'}, this Bongsu needs {HEAD}")


def _refuse_others(store: Store, revision: str | None) -> None:
    """Raise if the schema is newer than this code, or older than the first one that is upgraded."""
    if revision is not None and revision > HEAD:
        raise StoreTooNew(f"{store.location} is at revision {revision}, this Bongsu knows {HEAD}")
    if revision is not None and revision < FIRST:
        raise StoreTooOld(f"{store.location} is at revision {revision}, this Bongsu knows {FIRST} and later")


# Whether any migration was ever applied, and up to which.
_TABLE_EXISTS = Statement(
    postgres="SELECT to_regclass('bongsu_version') IS NOT NULL AS exists",
    sqlite="SELECT count(*) AS \"exists\" FROM sqlite_master WHERE name = 'bongsu_version'",
)
_REVISION = same("SELECT max(version_num) AS revision FROM bongsu_version")


async def _revision(tx: Transaction) -> str | None:
    exists = await fetch_one(tx, _TABLE_EXISTS())
    if exists is None or not exists["exists"]:
        return None
    found = await fetch_one(tx, _REVISION())
    return None if found is None else found["revision"]
