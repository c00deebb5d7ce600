"""The store's time, by which everything that is due, scheduled or expires is decided: processes' own clocks may be wrong."""

from __future__ import annotations

from datetime import datetime

from bongsu.store.core.query import Transaction, in_both

# The time at this moment.
_NOW = in_both(lambda d: f"SELECT {d.clock} AS now")


async def find_now(tx: Transaction) -> datetime:
    """The store's time at this moment."""
    (row,) = await tx.fetch(_NOW())
    return tx.dialect.time(row["now"])
