"""Statements of the outbox whose shape differs on SQLite. postgres.py has the same names."""

from bongsu.store.core.sqlite import SQLITE
from bongsu.store.outbox.rows import CLAIM, CLAIM_COLUMNS, ENDED_EVENT, EVENT_TYPE, SCHEDULED_EVENT, SUSPECT_AFTER

# Inserts the events whose id is not there yet and returns those ids. SQLite's parser needs the WHERE true.
INSERT = f"""
    INSERT INTO bongsu_events (event_id, event_type, occurred_at, actor_id, target_id, ref_id, payload, due)
    SELECT given.event_id, given.event_type, given.occurred_at, given.actor_id, given.target_id, given.ref_id,
           given.payload, coalesce(given.due, {SQLITE.now})
    FROM {SQLITE.table("given", SCHEDULED_EVENT, 1)} WHERE true
    ON CONFLICT (event_id) DO NOTHING
    RETURNING event_id"""

# Inserts events that have ended, and returns the ids that were not there before. As INSERT.
INSERT_ENDED = f"""
    INSERT INTO bongsu_events
        (event_id, event_type, actor_id, target_id, ref_id, payload, status, attempts, error, finished_at)
    SELECT given.event_id, given.event_type, given.actor_id, given.target_id, given.ref_id,
           given.payload, given.status, given.attempts, given.error, {SQLITE.now}
    FROM {SQLITE.table("given", ENDED_EVENT, 1)} WHERE true
    ON CONFLICT (event_id) DO NOTHING
    RETURNING event_id"""

# Returns which claims are open, so many new message ids, and the store's time. No locks: the one writer holds them all.
LOCK_CLAIMS = f"""
    WITH RECURSIVE numbers(number) AS (
        SELECT 1 WHERE $3 > 0 UNION ALL SELECT number + 1 FROM numbers WHERE number < $3)
    SELECT {SQLITE.now} AS now,
           (SELECT json_group_array(json_array(e.event_id, e.epoch))
            FROM {SQLITE.table("given", CLAIM, 2)}
            CROSS JOIN bongsu_events AS e
            WHERE e.event_id = given.event_id AND e.epoch = given.epoch AND e.leased_by IS NOT NULL) AS claims,
           (SELECT json_group_array(number + coalesce(
                (SELECT max(seq) FROM sqlite_sequence WHERE name = 'bongsu_messages'), 0))
            FROM numbers) AS message_ids"""

# Leases due events: of the types $1, which can be critical, the oldest $2; then the oldest of all types, $3 with the first;
# and $4 of the large ones, those types first. $5 is the lease in seconds, $6 the worker.
CLAIM_DUE = f"""
    WITH critical_types AS MATERIALIZED (SELECT * FROM {SQLITE.table("given", EVENT_TYPE, 1)}),
    critical AS MATERIALIZED (
        SELECT e.event_id FROM critical_types AS t
        CROSS JOIN bongsu_events AS e INDEXED BY sqlite_autoindex_bongsu_events_1
        WHERE e.event_id IN (
            SELECT x.event_id FROM bongsu_events AS x INDEXED BY bongsu_events_by_type
            WHERE x.status = 'PENDING' AND NOT x.is_large AND x.event_type = t.event_type AND x.due <= {SQLITE.now}
              AND x.claim_count < {SUSPECT_AFTER}
            ORDER BY x.due LIMIT $2)
        ORDER BY e.due LIMIT $2),
    others AS MATERIALIZED (
        SELECT x.event_id FROM bongsu_events AS x INDEXED BY bongsu_events_due
        WHERE x.status = 'PENDING' AND NOT x.is_large AND x.due <= {SQLITE.now} AND x.claim_count < {SUSPECT_AFTER}
          AND x.event_id NOT IN (SELECT event_id FROM critical)
        ORDER BY x.due LIMIT max(0, $3 - (SELECT count(*) FROM critical))),
    large AS MATERIALIZED (
        SELECT x.event_id FROM bongsu_events AS x INDEXED BY bongsu_events_large
        WHERE x.status = 'PENDING' AND x.is_large AND x.due <= {SQLITE.now} AND x.claim_count < {SUSPECT_AFTER}
        ORDER BY x.event_type IN (SELECT event_type FROM critical_types) DESC, x.due LIMIT $4),
    next AS MATERIALIZED (
        SELECT event_id FROM critical UNION ALL SELECT event_id FROM others UNION ALL SELECT event_id FROM large)
    UPDATE bongsu_events
    SET epoch = epoch + 1, claim_count = claim_count + 1, due = {SQLITE.after("$5")}, leased_by = $6
    FROM next WHERE bongsu_events.event_id = next.event_id
    RETURNING {CLAIM_COLUMNS}"""
