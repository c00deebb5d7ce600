"""The claim of deliveries on PostgreSQL: one statement. On SQLite it takes two: see sqlite.py."""

from bongsu.model.channels import Channel
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.deliveries.rows import CLAIMED_COLUMNS, MOST_CLAIMS, RANK
from bongsu.store.members.channel_bits import IS_BY_COLUMN, IS_OWN, MEMBER_ADDRESS
from bongsu.store.members.devices import USABLE_DEVICE

# Leases due deliveries of a channel ($1), rank by rank in the order given ($2), oldest first, up to a limit ($3), the
# abandoned ones too or not ($4), for some seconds ($5) and an owner ($6); makes SENDING what can go. Begun later than $7, it
# leases nothing. It returns one row at least: each has the time when it was begun. Locks the rows it leases; skips those
# being claimed right now. Locks their messages against being cancelled at this moment: what a cancellation counts as not
# sent is not being claimed. Skips those of messages being cancelled right now, so that it never waits for a lock: a claim
# locks messages in the order of its deliveries, a cancellation in that of their ids.
#
# About speed only: LATERAL with OFFSET 0 and ANY(ARRAY(…)) look the rows up by their keys. How many a LIMIT leaves is not
# known when the statement is planned, and for the thousands that the planner expects it would read whole tables.
CLAIM = f"""
    WITH due AS MATERIALIZED (
        SELECT next.*
        FROM {POSTGRES.table("asked", RANK, 2)}
        CROSS JOIN LATERAL (
            SELECT delivery_id, epoch + 1 AS epoch, status, attempts, claim_count + 1 AS claim_count, collapse_series,
                   notification_id, member_id, message_id, device_id
            FROM bongsu_deliveries
            WHERE status IN ('READY', 'SENDING') AND channel = $1 AND rank = asked.rank AND due <= now()
                  AND (status = 'READY' OR leased_by IS NULL OR $4) AND now() <= $7
            ORDER BY due LIMIT $3
            FOR UPDATE SKIP LOCKED) AS next
        LIMIT $3),
    addressed AS (
        SELECT due.*, message.guarantee, coalesce(message.expires_at <= now(), false) AS is_expired,
               CASE WHEN message.is_digest THEN (
                        SELECT g.size = 0 FROM bongsu_digests AS g WHERE g.notification_id = due.notification_id)
                    ELSE message.cancelled_at IS NOT NULL END AS is_cancelled, device.platform,
               CASE $1 WHEN '{Channel.PUSH}' THEN device.token {MEMBER_ADDRESS}ELSE own.address END AS address
        FROM due
        LEFT JOIN LATERAL (
            SELECT guarantee, expires_at, cancelled_at, is_digest FROM bongsu_messages
            WHERE message_id = due.message_id FOR KEY SHARE SKIP LOCKED) AS message ON true
        LEFT JOIN LATERAL (
            SELECT d.platform, CASE WHEN {USABLE_DEVICE} THEN d.token END AS token FROM bongsu_devices AS d
            WHERE d.member_id = due.member_id AND d.device_id = due.device_id OFFSET 0) AS device ON true
        LEFT JOIN LATERAL (
            SELECT email, phone FROM bongsu_members
            WHERE member_id = due.member_id AND {IS_BY_COLUMN} OFFSET 0) AS member ON true
        LEFT JOIN LATERAL (
            SELECT address FROM bongsu_addresses
            WHERE member_id = due.member_id AND channel = $1 AND {IS_OWN} OFFSET 0) AS own ON true
        -- Its message is locked by this statement, or was deleted.
        WHERE message.guarantee IS NOT NULL
           OR (SELECT 1 FROM bongsu_messages AS m WHERE m.message_id = due.message_id) IS NULL),
    claimed AS MATERIALIZED (
        SELECT *, guarantee IS NOT NULL AND address IS NOT NULL AND NOT is_expired AND NOT is_cancelled
                  AND claim_count <= {MOST_CLAIMS} AND NOT (status = 'SENDING' AND guarantee = 'at_most_once') AS can_go
        FROM addressed),
    updated AS (
        UPDATE bongsu_deliveries
        SET epoch = epoch + 1, claim_count = claim_count + 1, leased_by = $6, due = now() + make_interval(secs => $5),
            status = CASE WHEN delivery_id IN (SELECT delivery_id FROM claimed WHERE can_go) THEN 'SENDING' ELSE status END
        WHERE delivery_id = ANY(ARRAY(SELECT delivery_id FROM claimed)))
    SELECT {CLAIMED_COLUMNS}, now() AS now FROM (SELECT 1) AS always LEFT JOIN claimed ON true"""
