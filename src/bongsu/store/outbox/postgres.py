"""Statements of the outbox whose shape differs on PostgreSQL. sqlite.py has the same names."""

from bongsu.store.core.locks import NAMES
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.outbox.rows import CLAIM, CLAIM_COLUMNS, ENDED_EVENT, EVENT_TYPE, SCHEDULED_EVENT, SUSPECT_AFTER

# Inserts the events whose id is not there yet and returns those ids. Waits for another transaction that inserts the same id.
INSERT = f"""
    INSERT INTO bongsu_events (event_id, event_type, occurred_at, actor_id, target_id, ref_id, payload, due)
    SELECT given.event_id, given.event_type, given.occurred_at, given.actor_id, given.target_id, given.ref_id,
           CAST(given.payload AS jsonb), coalesce(given.due, now())
    FROM {POSTGRES.table("given", SCHEDULED_EVENT, 1)}
    ON CONFLICT (event_id) DO NOTHING
    RETURNING event_id"""

# Inserts events that have ended, and returns the ids that were not there before. As INSERT.
INSERT_ENDED = f"""
    INSERT INTO bongsu_events
        (event_id, event_type, actor_id, target_id, ref_id, payload, status, attempts, error, finished_at)
    SELECT given.event_id, given.event_type, given.actor_id, given.target_id, given.ref_id,
           CAST(given.payload AS jsonb), given.status, given.attempts, given.error, {POSTGRES.now}
    FROM {POSTGRES.table("given", ENDED_EVENT, 1)}
    ON CONFLICT (event_id) DO NOTHING
    RETURNING event_id"""

# Returns which claims are open, so many new message ids, and the store's time. Locks the names, then the events in id order:
# `names.locked` makes the first a condition of the second, and rows are locked after they are sorted.
LOCK_CLAIMS = f"""
    WITH names AS MATERIALIZED (
        SELECT count(pg_advisory_xact_lock(name.number)) AS locked
        FROM {POSTGRES.table("name", NAMES, 1)}),
    held AS MATERIALIZED (
        SELECT e.event_id, e.epoch
        FROM names
        CROSS JOIN {POSTGRES.table("given", CLAIM, 2)}
        JOIN bongsu_events AS e ON e.event_id = given.event_id AND e.epoch = given.epoch
        WHERE names.locked >= 0 AND e.leased_by IS NOT NULL
        ORDER BY e.event_id
        FOR NO KEY UPDATE OF e)
    SELECT now() AS now,
           CAST((SELECT json_agg(json_build_array(held.event_id, held.epoch)) FROM held) AS text) AS claims,
           CAST((SELECT json_agg(nextval('bongsu_messages_message_id_seq'))
                 FROM generate_series(1, CAST($3 AS integer))) AS text) AS message_ids"""

# Leases due events: of the types $1, which can be critical, the oldest $2; then the oldest of all types, $3 with the first;
# and $4 of the large ones, those types first. $5 is the lease in seconds, $6 the worker. Locks their rows; skips rows that
# another worker is claiming right now. What is locked beyond the limits is not changed, and free when this is committed.
CLAIM_DUE = f"""
    WITH critical_types AS MATERIALIZED (SELECT * FROM {POSTGRES.table("given", EVENT_TYPE, 1)}),
    critical AS MATERIALIZED (
        SELECT e.event_id FROM critical_types AS t
        CROSS JOIN LATERAL (
            SELECT x.event_id, x.due FROM bongsu_events AS x
            WHERE x.status = 'PENDING' AND NOT x.is_large AND x.event_type = t.event_type AND x.due <= now()
              AND x.claim_count < {SUSPECT_AFTER}
            ORDER BY x.due LIMIT $2 FOR UPDATE SKIP LOCKED) AS e
        ORDER BY e.due LIMIT $2),
    others AS MATERIALIZED (
        SELECT x.event_id FROM bongsu_events AS x
        WHERE x.status = 'PENDING' AND NOT x.is_large AND x.due <= now() AND x.claim_count < {SUSPECT_AFTER}
          AND x.event_id NOT IN (SELECT event_id FROM critical)
        ORDER BY x.due LIMIT greatest(0, $3 - (SELECT count(*) FROM critical)) FOR UPDATE SKIP LOCKED),
    large AS MATERIALIZED (
        SELECT x.event_id FROM bongsu_events AS x
        WHERE x.status = 'PENDING' AND x.is_large AND x.due <= now() AND x.claim_count < {SUSPECT_AFTER}
        ORDER BY x.event_type IN (SELECT event_type FROM critical_types) DESC, x.due LIMIT $4 FOR UPDATE SKIP LOCKED)
    UPDATE bongsu_events
    SET epoch = epoch + 1, claim_count = claim_count + 1, due = {POSTGRES.after("$5")}, leased_by = $6
    -- As an array, of which the planner expects ten ids: it looks up each.
    WHERE bongsu_events.event_id = ANY (ARRAY(
        SELECT event_id FROM critical UNION ALL SELECT event_id FROM others UNION ALL SELECT event_id FROM large))
    RETURNING {CLAIM_COLUMNS}"""
