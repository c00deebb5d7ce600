"""Quotas that processes share: a token bucket in a row, which fills by the store's clock and from which processes draw."""

from __future__ import annotations

from bongsu.store.core.query import Statement, Transaction, in_both
from bongsu.store.core.sqlite import SQLITE

# Adds to a bucket ($1) what flowed in since the last draw (at $5 a second) and what is given back ($3), up to its capacity
# ($4), and takes what is asked for ($2) or what there is; returns how much. A new bucket is full. Locks the bucket's row.
#
# A draw that waited for the row has an earlier time than the draw before it: then nothing flowed in between.
DRAW = Statement(
    postgres="""
    INSERT INTO bongsu_quotas AS q (name, tokens, granted, drawn_at)
    VALUES ($1, CAST($4 AS double precision) - least(CAST($2 AS double precision), $4), least($2, $4), now())
    ON CONFLICT (name) DO UPDATE
    SET granted = least($2, $4, q.tokens + CAST($3 AS double precision)
                                + CAST($5 AS double precision) * greatest(0, extract(epoch FROM now() - q.drawn_at))),
        tokens = greatest(0, least($4, q.tokens + $3 + $5 * greatest(0, extract(epoch FROM now() - q.drawn_at))) - $2),
        drawn_at = greatest(q.drawn_at, now())
    RETURNING granted""",
    sqlite=f"""
    INSERT INTO bongsu_quotas AS q (name, tokens, granted, drawn_at)
    VALUES ($1, $4 - min($2, $4), min($2, $4), {SQLITE.now})
    ON CONFLICT (name) DO UPDATE
    SET granted = min($2, $4, q.tokens + $3 + $5 * max(0, {SQLITE.seconds_since("q.drawn_at")})),
        tokens = max(0, min($4, q.tokens + $3 + $5 * max(0, {SQLITE.seconds_since("q.drawn_at")})) - $2),
        drawn_at = max(q.drawn_at, {SQLITE.now})
    RETURNING granted""",
)


async def draw(tx: Transaction, name: str, asked: float, back: float, capacity: float, flow: float) -> float:
    """Return how many of those asked for may be used: all, some or none, and not always a whole number.

    From the beginning to this moment no more are granted and not given back than `capacity` and `flow` for every second.
    """
    (row,) = await tx.fetch(DRAW(name, float(asked), float(back), float(capacity), float(flow)))
    return float(row["granted"])


# Delete the buckets that were not drawn from for $1 seconds. Locks them; skips locked ones.
_REMOVE_UNUSED = in_both(
    lambda d: (
        f"""
    DELETE FROM bongsu_quotas WHERE name IN (
        SELECT name FROM bongsu_quotas WHERE {d.seconds_since("drawn_at")} > $1 {d.skip_locked})"""
    )
)


async def remove_unused(tx: Transaction, seconds: float) -> int:
    """Remove buckets that are not used any more; return how many. A new one is full, as these are by then."""
    (removed,) = await tx.execute(_REMOVE_UNUSED(seconds))
    return removed
