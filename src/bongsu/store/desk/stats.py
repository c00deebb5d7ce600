"""Counts of deliveries that are waiting, being sent or dead. Sent ones are not counted: no index holds their number."""

from __future__ import annotations

from bongsu.store.core.query import Transaction, in_both

COUNTED_STATUSES = ("READY", "SENDING", "FAIL", "UNKNOWN")

# Count what is to be sent, by the partial index of it.
COUNT_OPEN = in_both(
    lambda d: (
        f"""
    SELECT status, count(*) AS count FROM bongsu_deliveries {d.index_hint("bongsu_deliveries_due")}
    WHERE status IN ('READY', 'SENDING') GROUP BY status"""
    )
)
# Count what has failed, by the partial index of it.
COUNT_DEAD = in_both(
    lambda d: (
        f"""
    SELECT status, count(*) AS count FROM bongsu_deliveries {d.index_hint("bongsu_deliveries_dead")}
    WHERE status IN ('FAIL', 'UNKNOWN') GROUP BY status"""
    )
)


async def count_deliveries(tx: Transaction) -> dict[str, int]:
    counts = dict.fromkeys(COUNTED_STATUSES, 0)
    for statement in (COUNT_OPEN, COUNT_DEAD):
        counts |= {row["status"]: row["count"] for row in await tx.fetch(statement())}
    return counts
