"""The claim of deliveries on SQLite: this finds them, and LEASE leases them in the same transaction.

postgres.py does both in one statement. On SQLite RETURNING cannot name the columns of joined tables.
"""

from bongsu.model.channels import Channel
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.deliveries.rows import CLAIMED_COLUMNS, MOST_CLAIMS, RANK
from bongsu.store.members.channel_bits import IS_BY_COLUMN, IS_OWN, MEMBER_ADDRESS
from bongsu.store.members.devices import USABLE_DEVICE

# Due deliveries of a channel ($1), rank by rank in the order given ($2), oldest first, up to a limit ($3), the
# abandoned ones too or not ($4), as they will be once they are claimed; none if it is later than $5. One row at least: each
# has the time. No locks: the one writer holds them all.
#
# CROSS JOIN keeps the order of the ranks, and within each the index is in the order of due times: nothing is sorted.
FIND_DUE = f"""
    WITH due AS (
        SELECT delivery_id, epoch + 1 AS epoch, status, attempts, claim_count + 1 AS claim_count, collapse_series,
               notification_id, member_id, message_id, device_id
        FROM {SQLITE.table("asked", RANK, 2)}
        CROSS JOIN bongsu_deliveries INDEXED BY bongsu_deliveries_due
        WHERE status IN ('READY', 'SENDING') AND channel = $1 AND bongsu_deliveries.rank = asked.rank AND due <= {SQLITE.now}
              AND (status = 'READY' OR leased_by IS NULL OR $4) AND {SQLITE.now} <= $5
        LIMIT $3),
    addressed AS (
        SELECT due.*, message.guarantee, coalesce(message.expires_at <= {SQLITE.now}, false) AS is_expired,
               CASE WHEN message.is_digest THEN (
                        SELECT g.size = 0 FROM bongsu_digests AS g WHERE g.notification_id = due.notification_id)
                    ELSE message.cancelled_at IS NOT NULL END AS is_cancelled, d.platform,
               CASE $1 WHEN '{Channel.PUSH}' THEN CASE WHEN {USABLE_DEVICE} THEN d.token END
                       {MEMBER_ADDRESS}ELSE own.address END AS address
        FROM due
        LEFT JOIN bongsu_messages AS message ON message.message_id = due.message_id
        LEFT JOIN bongsu_devices AS d ON d.member_id = due.member_id AND d.device_id = due.device_id
        LEFT JOIN bongsu_members AS member ON member.member_id = due.member_id AND {IS_BY_COLUMN}
        LEFT JOIN bongsu_addresses AS own ON own.member_id = due.member_id AND own.channel = $1 AND {IS_OWN}),
    claimed AS (
        SELECT *, guarantee IS NOT NULL AND address IS NOT NULL AND NOT is_expired AND NOT is_cancelled
                  AND claim_count <= {MOST_CLAIMS} AND NOT (status = 'SENDING' AND guarantee = 'at_most_once') AS can_go
        FROM addressed)
    SELECT {CLAIMED_COLUMNS}, {SQLITE.now} AS now FROM (SELECT 1) AS always LEFT JOIN claimed ON true"""
