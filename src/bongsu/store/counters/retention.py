"""Retention of what flushes leave behind: old batches, and items that were deleted long ago."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from bongsu.store.core.locks import lock_names
from bongsu.store.core.query import Table, Transaction, in_both, same
from bongsu.store.counters import COUNTER_KEY
from bongsu.store.counters.items import stripe_of
from bongsu.store.retention import Deleted

_NAME = {**COUNTER_KEY, "name": "text"}

# Deletes those of the first $2 batches that were applied before $1, but never the last one, where the next begins.
DELETE_BATCHES = same("""
    DELETE FROM bongsu_count_batches WHERE batch_id IN (
        SELECT b.batch_id FROM (
            SELECT batch_id, processed_to FROM bongsu_count_batches ORDER BY batch_id LIMIT $2) AS b
        WHERE b.processed_to < $1 AND b.batch_id < (SELECT max(x.batch_id) FROM bongsu_count_batches AS x))""")

# The first $2 items that were deleted before $1, by the index of these. Locks nothing.
FIND_DELETED = in_both(
    lambda d: (
        f"""
    SELECT counter, key, name FROM bongsu_counted_items {d.index_hint("bongsu_counted_items_deleted")}
    WHERE deleted_at IS NOT NULL AND deleted_at < $1 ORDER BY deleted_at LIMIT $2"""
    )
)

# Deletes the names that lead to the items given ($1). Run under the locks of their counters.
DELETE_NAMES = in_both(
    lambda d: (
        f"""
    DELETE FROM bongsu_counted_items WHERE root IS NOT NULL AND (counter, key, root) IN (
        SELECT given.counter, given.key, given.name FROM {d.table("given", _NAME, 1)})"""
    )
)

# Deletes the items given ($1). Run under the locks of their counters.
DELETE_ITEMS = in_both(
    lambda d: (
        f"""
    DELETE FROM bongsu_counted_items WHERE deleted_at IS NOT NULL AND (counter, key, name) IN (
        SELECT given.counter, given.key, given.name FROM {d.table("given", _NAME, 1)})"""
    )
)


async def delete_batches(tx: Transaction, cutoff: datetime, limit: int) -> Deleted:
    (deleted,) = await tx.execute(DELETE_BATCHES(cutoff, limit))
    return Deleted(None if deleted < limit else True, Counter({"count batches": deleted}))


async def delete_items(tx: Transaction, cutoff: datetime, limit: int) -> Deleted:
    """Delete items that were deleted long ago: what would count or delete them again was published as long ago."""
    rows = await tx.fetch(FIND_DELETED(cutoff, limit))
    if not rows:
        return Deleted(None)
    await tx.fetch(lock_names(stripe_of(row["counter"], row["key"]) for row in rows))
    given = Table(_NAME, [(row["counter"], row["key"], row["name"]) for row in rows])
    await tx.execute(DELETE_NAMES(given), DELETE_ITEMS(given))
    return Deleted(None if len(rows) < limit else True, Counter({"counted items": len(rows)}))
