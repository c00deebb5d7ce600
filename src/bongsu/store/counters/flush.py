"""A flush: take the deltas of the log that are visible, apply them to the values, delete them, and add the batch, all in one
transaction. A crash in it has changed nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson

from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import Statement, Table, Transaction, fetch_one, only_postgres, only_sqlite, same
from bongsu.store.counters import COUNTER_KEY, KeySum, postgres, sqlite

BEGIN_FLUSH = Statement(postgres.BEGIN_FLUSH, sqlite.BEGIN_FLUSH)
FLUSH = Statement(postgres.FLUSH, sqlite.FIND_APPLIED)
# See postgres.py.
PREPARE_LARGE = tuple(map(only_postgres, postgres.PREPARE_LARGE))
APPLY = only_sqlite(sqlite.APPLY)
ADD_BATCH = only_sqlite(sqlite.ADD_BATCH)
DELETE_APPLIED = only_sqlite(sqlite.DELETE_APPLIED)

# The next $2 keys of a counter ($1) that have deltas. Locks nothing.
_FIND_KEYS = same("""
    SELECT key FROM bongsu_count_deltas WHERE counter = $1 GROUP BY key ORDER BY key LIMIT $2""")

# When the last batch was applied; no row if there was none. Locks nothing.
_FIND_LAST = same("SELECT processed_to FROM bongsu_count_batches ORDER BY batch_id DESC LIMIT 1")


@dataclass(frozen=True)
class Scope:
    """Which deltas a flush is for: those of all counters but these, or those of these keys of one counter."""

    other_than: Sequence[str] = ()
    counter: str | None = None
    keys: Sequence[str] = ()

    @property
    def parameters(self) -> tuple[Table, str | None, Table]:
        others = Table(COUNTER_KEY, [(counter, "") for counter in self.other_than])
        return others, self.counter, Table(COUNTER_KEY, [("", key) for key in self.keys])


@dataclass(frozen=True)
class Batch:
    """What a flush has applied: how many counters were changed by how many deltas."""

    keys: int
    deltas: int
    # What it added to each counter, if that was asked for.
    applied: Sequence[KeySum] = ()


async def flush(tx: Transaction, scope: Scope, limit: int, *, with_applied: bool) -> Batch | None:
    """Apply up to about `limit` deltas. None if there are none, or if another flush is under way."""
    begun = await fetch_one(tx, BEGIN_FLUSH(*scope.parameters, limit))
    if begun is None or not begun["is_held"] or begun["until"] is None:
        return None
    parameters = (*scope.parameters, begun["until"], with_applied, tx.dialect.time(begun["oldest"]))
    if tx.dialect is POSTGRES:
        if begun["is_large"]:
            await tx.execute(*(statement() for statement in PREPARE_LARGE))
        (row,) = await tx.fetch(FLUSH(*parameters))
    else:
        (row,) = await tx.fetch(APPLY(*parameters), ADD_BATCH(*parameters), FLUSH(*parameters))
        await tx.execute(DELETE_APPLIED(*parameters))
    applied = [KeySum(*entry) for entry in orjson.loads(row["applied"] or "[]")]
    return Batch(int(row["keys"]), int(begun["count"]), applied)


async def find_keys(tx: Transaction, counter: str, limit: int) -> list[str]:
    """Keys of this counter that have deltas."""
    return [row["key"] for row in await tx.fetch(_FIND_KEYS(counter, limit))]


async def find_last_flush(tx: Transaction) -> datetime | None:
    """When the last batch was applied."""
    row = await fetch_one(tx, _FIND_LAST())
    return None if row is None else tx.dialect.time(row["processed_to"])
