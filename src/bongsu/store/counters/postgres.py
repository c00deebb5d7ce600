"""Statements of counters whose shape differs on PostgreSQL. sqlite.py has the same names."""

from bongsu.model.counter import LARGEST, SMALLEST
from bongsu.store.core.locks import lock_number
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.counters import COUNTER_KEY, KEY_DELTA

# From one counter in so many on, a flush changes a large part of them.
LARGE_SHARE = 10
# The advisory lock that one flush at a time holds.
_FLUSH_LOCK = lock_number("counter flush")

# Inserts a row for each sum given ($1), and returns what each counter is then. Locks nothing that others wait for.
ADD = f"""
    WITH given AS MATERIALIZED (SELECT * FROM {POSTGRES.table("given", KEY_DELTA, 1)}),
    added AS (
        INSERT INTO bongsu_count_deltas (counter, key, delta)
        SELECT counter, key, delta FROM given WHERE delta <> 0)
    -- The look does not see the rows that are being added.
    SELECT given.counter, given.key, 0 AS high,
           coalesce((SELECT c.value FROM bongsu_counters AS c WHERE c.counter = given.counter AND c.key = given.key), 0)
           + coalesce((SELECT sum(d.delta) FROM bongsu_count_deltas AS d
                       WHERE d.counter = given.counter AND d.key = given.key), 0) + given.delta AS low
    FROM given"""

# What each of the counters given ($1) is: the value and what is pending, as one statement sees them. Locks nothing.
FIND_TOTALS = f"""
    SELECT given.counter, given.key, clock_timestamp() AS now, 0 AS high,
           coalesce((SELECT c.value FROM bongsu_counters AS c WHERE c.counter = given.counter AND c.key = given.key), 0)
           + coalesce((SELECT sum(d.delta) FROM bongsu_count_deltas AS d
                       WHERE d.counter = given.counter AND d.key = given.key), 0) AS low
    FROM {POSTGRES.table("given", COUNTER_KEY, 1)}"""

# What is pending of the next $3 counters behind counter $1, key $2, in their order. Locks nothing.
FIND_PENDING = """
    SELECT d.counter, d.key, 0 AS high, sum(d.delta) AS low
    FROM bongsu_count_deltas AS d WHERE (d.counter, d.key) > ($1, $2)
    GROUP BY d.counter, d.key ORDER BY d.counter, d.key LIMIT $3"""

# Which deltas a flush is for: without a counter ($2 is NULL) those of all counters but the ones given ($1); else those of
# the keys given ($3) of one counter.
_IN_SCOPE = f"""
    CASE WHEN CAST($2 AS text) IS NULL
         THEN d.counter NOT IN (SELECT x.counter FROM {POSTGRES.table("x", COUNTER_KEY, 1)})
         ELSE d.counter = $2 AND d.key IN (SELECT y.key FROM {POSTGRES.table("y", COUNTER_KEY, 3)}) END"""

# Locks out other flushes until the transaction ends, if there is none under way, and returns up to which id the next $4
# deltas of the scope reach, how many they are and how old. Rows with smaller ids that are committed later are taken later: a
# flush takes what it sees.
BEGIN_FLUSH = f"""
    SELECT pg_try_advisory_xact_lock({_FLUSH_LOCK}) AS is_held, n.until, n.count, n.oldest,
           n.count * {LARGE_SHARE} > (
               SELECT reltuples FROM pg_class WHERE oid = CAST('bongsu_counters' AS regclass)) AS is_large
    FROM (
        SELECT max(x.delta_id) AS until, count(*) AS count, min(x.created_at) AS oldest FROM (
            SELECT d.delta_id, d.created_at FROM bongsu_count_deltas AS d WHERE {_IN_SCOPE}
            ORDER BY d.delta_id LIMIT $4) AS x) AS n"""

# For a flush that changes a large part of all counters: reading them in a row is faster than looking up each, and the
# planner, which expects few, would look up each. The sums of 100,000 keys fit into this memory.
PREPARE_LARGE = (
    "SET LOCAL plan_cache_mode = force_custom_plan",
    "SET LOCAL enable_nestloop = off",
    "SET LOCAL work_mem = '64MB'",
)

# Sums are numeric. Where both sides are far from the limit, bigint is added to bigint, which takes a tenth of the time. What
# would lead beyond 64 bits is refused when it is added; two that reach it together are stopped here.
_FAR = 2**62
_NEW_VALUE = f"""
    CASE WHEN s.delta BETWEEN {-_FAR} AND {_FAR} AND c.value BETWEEN {-_FAR} AND {_FAR}
         THEN c.value + CAST(s.delta AS bigint)
         ELSE CAST(greatest({SMALLEST}, least({LARGEST}, c.value + s.delta)) AS bigint) END"""

# Applies the deltas of the scope up to id $4 to their counters and deletes them, and adds the batch. Returns how many
# counters it changed, and with $5 what as JSON. One flush runs at a time, so no other transaction inserts counters. Locks
# the rows of the deltas and the counters, for which no other transaction waits. Whether counters are missing is known from
# how many were updated: nearly always none, and then they are not looked for.
FLUSH = f"""
    WITH taken AS (
        DELETE FROM bongsu_count_deltas AS d WHERE d.delta_id <= $4 AND {_IN_SCOPE}
        RETURNING d.counter, d.key, d.delta),
    sums AS MATERIALIZED (
        SELECT t.counter, t.key, sum(t.delta) AS delta FROM taken AS t GROUP BY t.counter, t.key HAVING sum(t.delta) <> 0),
    updated AS (
        UPDATE bongsu_counters AS c SET value = {_NEW_VALUE}, changed_at = now()
        FROM sums AS s WHERE c.counter = s.counter AND c.key = s.key
        RETURNING c.counter, c.key, s.delta),
    added AS (
        INSERT INTO bongsu_counters (counter, key, value, changed_at)
        SELECT s.counter, s.key, CAST(greatest({SMALLEST}, least({LARGEST}, s.delta)) AS bigint), now()
        FROM sums AS s
        WHERE (SELECT count(*) FROM updated) < (SELECT count(*) FROM sums)
          AND NOT EXISTS (SELECT 1 FROM updated AS u WHERE u.counter = s.counter AND u.key = s.key)
        RETURNING value),
    batch AS (
        INSERT INTO bongsu_count_batches (processed_from, processed_to, keys, sum)
        SELECT least(clock_timestamp(), coalesce((
                   SELECT b.processed_to FROM bongsu_count_batches AS b ORDER BY b.batch_id DESC LIMIT 1), $6)),
               clock_timestamp(), count(*), coalesce(sum(s.delta), 0)
        FROM sums AS s
        RETURNING keys)
    SELECT batch.keys,
           CASE WHEN CAST($5 AS boolean) THEN (
               SELECT CAST(json_agg(json_build_array(counter, key, delta)) AS text) FROM sums) END AS applied
    FROM batch"""
