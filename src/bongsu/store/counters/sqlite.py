"""Statements of counters whose shape differs on SQLite. postgres.py has the same names; a flush is several statements here,
because one changes one table.

Sums are taken in two halves of 32 bits: sum() fails beyond 64 bits, and what is larger would become a floating-point number.
"""

from bongsu.model.counter import LARGEST
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.counters import COUNTER_KEY, KEY_DELTA

# The lower half of an integer.
_LOW = "& 4294967295"

# Inserts a row for each sum given ($1).
ADD = f"""
    INSERT INTO bongsu_count_deltas (counter, key, delta)
    SELECT counter, key, delta FROM {SQLITE.table("given", KEY_DELTA, 1)} WHERE delta <> 0"""

# What each of the counters given ($1) is: the value and what is pending, as one statement sees them. Locks nothing.
FIND_TOTALS = f"""
    SELECT given.counter, given.key, {SQLITE.now} AS now,
           coalesce(c.value >> 32, 0) + coalesce((
               SELECT sum(d.delta >> 32) FROM bongsu_count_deltas AS d
               WHERE d.counter = given.counter AND d.key = given.key), 0) AS high,
           coalesce(c.value {_LOW}, 0) + coalesce((
               SELECT sum(d.delta {_LOW}) FROM bongsu_count_deltas AS d
               WHERE d.counter = given.counter AND d.key = given.key), 0) AS low
    FROM {SQLITE.table("given", COUNTER_KEY, 1)}
    LEFT JOIN bongsu_counters AS c ON c.counter = given.counter AND c.key = given.key"""

# What is pending of the next $3 counters behind counter $1, key $2, in their order. Locks nothing.
FIND_PENDING = f"""
    SELECT d.counter, d.key, sum(d.delta >> 32) AS high, sum(d.delta {_LOW}) AS low
    FROM bongsu_count_deltas AS d WHERE (d.counter, d.key) > ($1, $2)
    GROUP BY d.counter, d.key ORDER BY d.counter, d.key LIMIT $3"""

# Which deltas a flush is for: without a counter ($2 is NULL) those of all counters but the ones given ($1); else those of
# the keys given ($3) of one counter.
_IN_SCOPE = f"""
    CASE WHEN $2 IS NULL
         THEN d.counter NOT IN (SELECT x.counter FROM {SQLITE.table("x", COUNTER_KEY, 1)})
         ELSE d.counter = $2 AND d.key IN (SELECT y.key FROM {SQLITE.table("y", COUNTER_KEY, 3)}) END"""

# Up to which id the next $4 deltas of the scope reach, how many they are and how old. The transaction is the only one that
# writes.
BEGIN_FLUSH = f"""
    SELECT 1 AS is_held, 0 AS is_large, n.until, n.count, n.oldest
    FROM (
        SELECT max(x.delta_id) AS until, count(*) AS count, min(x.created_at) AS oldest FROM (
            SELECT d.delta_id, d.created_at FROM bongsu_count_deltas AS d WHERE {_IN_SCOPE}
            ORDER BY d.delta_id LIMIT $4) AS x) AS n"""

# The sums by counter of the deltas of the scope up to id $4.
_SUMS = f"""(
    SELECT d.counter, d.key, sum(d.delta >> 32) + (sum(d.delta {_LOW}) >> 32) AS high,
           sum(d.delta {_LOW}) {_LOW} AS low
    FROM bongsu_count_deltas AS d WHERE d.delta_id <= $4 AND {_IN_SCOPE} GROUP BY d.counter, d.key)"""


def _joined(high: str, low: str) -> str:
    """Within 64 bits. What would lead beyond them is refused when it is added."""
    smallest = f"(-{LARGEST} - 1)"
    carried = f"({high}) + (({low}) >> 32)"
    return f"""CASE WHEN {carried} > 2147483647 THEN {LARGEST} WHEN {carried} < -2147483648 THEN {smallest}
                    ELSE (({carried}) << 32) | (({low}) {_LOW}) END"""


# Applies the deltas of the scope up to id $4 to their counters.
APPLY = f"""
    INSERT INTO bongsu_counters (counter, key, value, changed_at)
    SELECT s.counter, s.key,
           {_joined("s.high + coalesce(c.value >> 32, 0)", f"s.low + coalesce(c.value {_LOW}, 0)")}, {SQLITE.now}
    FROM {_SUMS} AS s LEFT JOIN bongsu_counters AS c ON c.counter = s.counter AND c.key = s.key
    WHERE s.high <> 0 OR s.low <> 0
    ON CONFLICT (counter, key) DO UPDATE SET value = excluded.value, changed_at = excluded.changed_at"""

# Adds the batch of the same deltas, of which the oldest is from $6.
ADD_BATCH = f"""
    INSERT INTO bongsu_count_batches (processed_from, processed_to, keys, sum)
    SELECT min({SQLITE.now}, coalesce(
               (SELECT b.processed_to FROM bongsu_count_batches AS b ORDER BY b.batch_id DESC LIMIT 1), $6)),
           {SQLITE.now}, coalesce(sum(s.high <> 0 OR s.low <> 0), 0),
           {_joined("coalesce(sum(s.high), 0)", "coalesce(sum(s.low), 0)")}
    FROM {_SUMS} AS s"""

# The newest batch, and with $5 what the same deltas change as JSON.
FIND_APPLIED = f"""
    SELECT b.keys,
           CASE WHEN $5 THEN (
               SELECT json_group_array(json_array(s.counter, s.key, {_joined("s.high", "s.low")})) FROM {_SUMS} AS s
               WHERE s.high <> 0 OR s.low <> 0) END AS applied
    FROM bongsu_count_batches AS b ORDER BY b.batch_id DESC LIMIT 1"""

# Deletes the deltas of the scope up to id $4, which are applied.
DELETE_APPLIED = f"DELETE FROM bongsu_count_deltas AS d WHERE d.delta_id <= $4 AND {_IN_SCOPE}"
