"""Statements of the outbox whose shape differs on SQLite. postgres.py has the same names."""

from bongsu.store.outbox.rows import CLAIM, NEW_EVENT
from bongsu.store.sqlite import SQLITE

# Inserts the events whose id is not there yet and returns those ids. WHERE true tells SQLite's parser where SELECT ends.
INSERT = f"""
    INSERT INTO bongsu_events (event_id, event_type, occurred_at, actor_id, target_id, ref_id, payload)
    SELECT given.event_id, given.event_type, given.occurred_at, given.actor_id, given.target_id, given.ref_id, given.payload
    FROM {SQLITE.table("given", NEW_EVENT, 1)} WHERE true
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
