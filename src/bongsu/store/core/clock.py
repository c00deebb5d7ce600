"""The store's time, by which everything that is due, scheduled or expires is decided: processes' own clocks may be wrong."""

from __future__ import annotations

from datetime import datetime

from bongsu.store.core.query import Statement, Transaction
from bongsu.store.core.sqlite import SQLITE

# The time at this moment. Not now(), which on PostgreSQL is when the transaction began.
_NOW = Statement(postgres="SELECT clock_timestamp() AS now", sqlite=f"SELECT {SQLITE.now} AS now")


async def find_now(tx: Transaction) -> datetime:
    """The store's time at this moment."""
    (row,) = await tx.fetch(_NOW())
    return tx.dialect.time(row["now"])
