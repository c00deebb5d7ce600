"""The pages of the history on SQLite. $1 to $8 are described in filters.py.

CROSS JOIN keeps the order of the tables, INDEXED BY the key by which each is read.
"""

from __future__ import annotations

from bongsu.store.desk.history.filters import (
    DEAD,
    IS_OF_NOTIFICATIONS,
    IS_OF_SUPPRESSIONS,
    MESSAGE_FITS,
    NOTIFICATION,
    NOTIFICATION_FITS,
    OPEN,
    PAGE_ROW,
    SUPPRESSION,
    SUPPRESSION_FITS,
)

# One member's rows, newest first, by the member's index: sorted and filtered after they are read. $9 member, $10 the message
# id of the last row seen.
BY_MEMBER = f"""
    WITH notified AS (
        SELECT {NOTIFICATION}
        FROM bongsu_notifications t INDEXED BY bongsu_notifications_inbox
        CROSS JOIN bongsu_messages m ON m.message_id = t.message_id
        WHERE t.member_id = $9 AND t.message_id < $10 AND {IS_OF_NOTIFICATIONS}
          AND {MESSAGE_FITS}
          AND {NOTIFICATION_FITS}
        ORDER BY t.message_id DESC LIMIT $1
    ), suppressed AS (
        SELECT {SUPPRESSION}
        FROM bongsu_suppressions t INDEXED BY bongsu_suppressions_member
        CROSS JOIN bongsu_messages m ON m.message_id = t.message_id
        WHERE t.member_id = $9 AND t.message_id < $10 AND {IS_OF_SUPPRESSIONS}
          AND {MESSAGE_FITS}
          AND {SUPPRESSION_FITS}
        ORDER BY t.message_id DESC LIMIT $1
    ), page AS MATERIALIZED (
        SELECT * FROM notified UNION ALL SELECT * FROM suppressed ORDER BY message_id DESC, member_id DESC LIMIT $1)
    SELECT {PAGE_ROW}
    FROM page CROSS JOIN bongsu_messages m ON m.message_id = page.message_id
    ORDER BY page.message_id DESC, page.member_id DESC"""

# The messages from $10 down to $9, newest first, and the rows of each in the order of its members, by the primary key and
# the unique key. $11 message and $12 member of the last row seen: in its message the next rows begin below the member, in
# older messages below $13, which is larger than any member id. $14 message and $15 member of the last row to look at. The
# bounds are of the unique key, so that the index scan begins there. The plus sign keeps SQLite from applying the bounds of
# the messages to the rows and reading those by the range instead of one message.
BY_MESSAGES = f"""
    WITH notified AS (
        SELECT {NOTIFICATION}
        FROM bongsu_messages m NOT INDEXED
        CROSS JOIN bongsu_notifications t INDEXED BY sqlite_autoindex_bongsu_notifications_1
          ON t.message_id = +m.message_id AND t.member_id < CASE WHEN m.message_id = $11 THEN $12 ELSE $13 END
          AND t.member_id >= CASE WHEN m.message_id = $14 THEN $15 ELSE '' END
        WHERE m.message_id BETWEEN $9 AND $10 AND {IS_OF_NOTIFICATIONS}
          AND {MESSAGE_FITS}
          AND {NOTIFICATION_FITS}
        ORDER BY m.message_id DESC, t.member_id DESC LIMIT $1
    ), suppressed AS (
        SELECT {SUPPRESSION}
        FROM bongsu_messages m NOT INDEXED
        CROSS JOIN bongsu_suppressions t INDEXED BY sqlite_autoindex_bongsu_suppressions_1
          ON t.message_id = +m.message_id AND t.member_id < CASE WHEN m.message_id = $11 THEN $12 ELSE $13 END
          AND t.member_id >= CASE WHEN m.message_id = $14 THEN $15 ELSE '' END
        WHERE m.message_id BETWEEN $9 AND $10 AND {IS_OF_SUPPRESSIONS}
          AND {MESSAGE_FITS}
          AND {SUPPRESSION_FITS}
        ORDER BY m.message_id DESC, t.member_id DESC LIMIT $1
    ), page AS MATERIALIZED (
        SELECT * FROM notified UNION ALL SELECT * FROM suppressed ORDER BY message_id DESC, member_id DESC LIMIT $1)
    SELECT {PAGE_ROW}
    FROM page CROSS JOIN bongsu_messages m ON m.message_id = page.message_id
    ORDER BY page.message_id DESC, page.member_id DESC"""


# The row that $1 - 1 others come before, in the order of BY_MESSAGES, in its table: the later of the two. Only the index is
# read. $7 lowest and $8 highest message id; $9, $10 and $11 as $11, $12 and $13 of BY_MESSAGES.
ROWS_FLOOR = f"""
    SELECT message_id, member_id FROM (
        SELECT * FROM (
            SELECT m.message_id, t.member_id
            FROM bongsu_messages m NOT INDEXED
            CROSS JOIN bongsu_notifications t INDEXED BY sqlite_autoindex_bongsu_notifications_1
              ON t.message_id = +m.message_id AND t.member_id < CASE WHEN m.message_id = $9 THEN $10 ELSE $11 END
            WHERE m.message_id BETWEEN $7 AND $8 AND {IS_OF_NOTIFICATIONS}
              AND {MESSAGE_FITS}
            ORDER BY m.message_id DESC, t.member_id DESC LIMIT 1 OFFSET $1 - 1)
        UNION ALL
        SELECT * FROM (
            SELECT m.message_id, t.member_id
            FROM bongsu_messages m NOT INDEXED
            CROSS JOIN bongsu_suppressions t INDEXED BY sqlite_autoindex_bongsu_suppressions_1
              ON t.message_id = +m.message_id AND t.member_id < CASE WHEN m.message_id = $9 THEN $10 ELSE $11 END
            WHERE m.message_id BETWEEN $7 AND $8 AND {IS_OF_SUPPRESSIONS}
              AND {MESSAGE_FITS}
            ORDER BY m.message_id DESC, t.member_id DESC LIMIT 1 OFFSET $1 - 1))
    ORDER BY message_id DESC, member_id DESC LIMIT 1"""


def _by_deliveries(statuses: str, index: str) -> str:
    return f"""
    WITH page AS MATERIALIZED (
        SELECT {NOTIFICATION}
        FROM bongsu_deliveries one INDEXED BY {index}
        CROSS JOIN bongsu_messages m ON m.message_id = one.message_id
        CROSS JOIN bongsu_notifications t ON t.message_id = one.message_id AND t.member_id = one.member_id
        WHERE one.status IN {statuses} AND one.message_id BETWEEN $9 AND $10
          AND (one.message_id, one.member_id) < ($11, $12) AND (one.message_id, one.member_id) >= ($13, $14)
          AND (SELECT 1 FROM bongsu_deliveries d
               WHERE d.notification_id = one.notification_id AND d.status IN {statuses}
                 AND d.delivery_id < one.delivery_id LIMIT 1) IS NULL
          AND {MESSAGE_FITS}
          AND {NOTIFICATION_FITS}
        ORDER BY one.message_id DESC, one.member_id DESC LIMIT $1)
    SELECT {PAGE_ROW}
    FROM page CROSS JOIN bongsu_messages m ON m.message_id = page.message_id
    ORDER BY page.message_id DESC, page.member_id DESC"""


# The notifications that have such a delivery, each once (by its first one), newest first, by the partial index of those
# deliveries. $9 lowest and $10 highest message id, $11 message and $12 member of the last row seen, $13 and $14 of the last
# row to look at.
BY_DEAD_DELIVERIES = _by_deliveries(DEAD, "bongsu_deliveries_dead_by_message")
BY_OPEN_DELIVERIES = _by_deliveries(OPEN, "bongsu_deliveries_due")
