"""Statements of the outbox whose shape differs on PostgreSQL. sqlite.py has the same names."""

from bongsu.store.locks import NAMES
from bongsu.store.outbox.rows import CLAIM, NEW_EVENT
from bongsu.store.postgres import POSTGRES

# Inserts the events whose id is not there yet and returns those ids. Waits for another transaction that inserts the same id.
INSERT = f"""
    INSERT INTO bongsu_events (event_id, event_type, occurred_at, actor_id, target_id, ref_id, payload)
    SELECT given.event_id, given.event_type, given.occurred_at, given.actor_id, given.target_id, given.ref_id,
           CAST(given.payload AS jsonb)
    FROM {POSTGRES.table("given", NEW_EVENT, 1)}
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
