"""Statements of deciding and applying on SQLite. The one writer holds all locks. postgres.py has the same names."""

from bongsu.model import Channel, Reason
from bongsu.store.channel_bits import ALL_BITS, BITS
from bongsu.store.decisions.rows import CONTENT, DEDUP_KEY, MESSAGE_ID, MISSING, NOTICE, PROFILE
from bongsu.store.devices import USABLE_DEVICE
from bongsu.store.sqlite import SQLITE

_PUSH, _SMS, _EMAIL, _IN_APP = (BITS[one] for one in (Channel.PUSH, Channel.SMS, Channel.EMAIL, Channel.IN_APP))
# SQLite's own name for the index of the primary key.
_MEMBERS_BY_ID = "sqlite_autoindex_bongsu_members_1"

# Recipients as one JSON object of member ids by place. The place as a sum: a CAST would have a type affinity, and that keeps
# SQLite from an index when it is compared.
RECIPIENTS = """
        SELECT notice.key + 0 AS place, member.value AS member_id
        FROM json_each($1) AS notice, json_each(notice.value) AS member"""

# --- decide -----------------------------------------------------------------------------------------------------------

# The steps of a decision up to the daily cap.
_DECISION = f"""
    WITH recipients AS ({RECIPIENTS}),
    -- First the members' rows: the daily cap is counted on them.
    locked_members AS NOT MATERIALIZED (
        SELECT r.place, r.member_id, m.member_id IS NULL AS is_missing, m.is_enabled, m.capped_day, m.capped_count,
               coalesce(m.locale, '') AS locale, coalesce(m.timezone, '') AS timezone,
               coalesce(m.quiet_start, -1) AS quiet_start, coalesce(m.quiet_end, -1) AS quiet_end,
               {_PUSH + _IN_APP} + CASE WHEN m.phone IS NULL THEN 0 ELSE {_SMS} END
                                 + CASE WHEN m.email IS NULL THEN 0 ELSE {_EMAIL} END AS reachable
        FROM recipients AS r LEFT JOIN bongsu_members AS m ON m.member_id = r.member_id),
    -- Then what holds for all members of one profile, computed once: the message, the day, the due time.
    notice AS MATERIALIZED (SELECT * FROM {SQLITE.table("given", NOTICE, 2)}),
    profile AS MATERIALIZED (SELECT * FROM {SQLITE.table("given", PROFILE, 7)}),
    content AS MATERIALIZED (SELECT * FROM {SQLITE.table("given", CONTENT, 13)}),
    notice_facts AS MATERIALIZED (
        SELECT notice.place, notice.type, notice.channels, notice.is_critical, notice.lane,
               profile.locale, profile.timezone, profile.quiet_start, profile.quiet_end, profile.day,
               CASE WHEN notice.is_critical THEN $21 ELSE profile.due END AS due, content.message_id
        FROM notice CROSS JOIN profile
        LEFT JOIN content ON content.place = notice.place AND content.locale = profile.locale),
    -- Then the few messages that can make a notice a duplicate.
    recent_messages AS MATERIALIZED (
        SELECT dedup.place, m.message_id, dedup.since
        FROM {SQLITE.table("dedup", DEDUP_KEY, 16)}
        CROSS JOIN bongsu_messages AS m INDEXED BY bongsu_messages_recent
        WHERE m.type = dedup.type AND m.subject = dedup.subject AND m.told_at > dedup.since
          AND m.message_id NOT IN (SELECT own.message_id FROM {SQLITE.table("own", MESSAGE_ID, 20)})),
    -- The three together: what each member wants of the notice, what can reach them, how much of the cap is used.
    options AS (
        SELECT l.place, l.member_id, l.is_missing, f.message_id, f.lane, f.due, f.day, f.is_critical,
               (f.is_critical OR l.is_enabled) AND coalesce(p.is_enabled, true) AS is_wanted,
               f.channels & coalesce(p.channels, {ALL_BITS}) AS wanted_channels,
               f.channels & coalesce(p.channels, {ALL_BITS}) & l.reachable AS channels,
               CASE WHEN l.capped_day >= f.day THEN l.capped_count ELSE 0 END AS counted
        FROM locked_members AS l
        LEFT JOIN notice_facts AS f
               ON f.place = l.place AND f.locale = l.locale AND f.timezone = l.timezone
                  AND f.quiet_start = l.quiet_start AND f.quiet_end = l.quiet_end
        LEFT JOIN bongsu_preferences AS p ON p.member_id = l.member_id AND p.type = f.type),
    -- The decision: the first reason that applies.
    decision AS (
        SELECT o.place, o.member_id, o.message_id, o.channels, o.lane, o.due, o.day, o.is_critical, o.counted,
               CASE WHEN o.is_missing OR o.message_id IS NULL THEN '{MISSING}'
                    WHEN NOT o.is_wanted OR o.wanted_channels = 0 THEN '{Reason.USER_OPTED_OUT}'
                    WHEN o.channels = 0 OR (o.channels = {_PUSH} AND NOT EXISTS (
                         SELECT 1 FROM bongsu_devices AS d
                         WHERE d.member_id = o.member_id AND {USABLE_DEVICE})) THEN '{Reason.NO_ADDRESS}'
                    WHEN EXISTS (SELECT 1 FROM recent_messages) AND EXISTS (
                         SELECT 1 FROM recent_messages AS r CROSS JOIN bongsu_notifications AS n
                         WHERE r.place = o.place AND n.message_id = r.message_id AND n.member_id = o.member_id
                           AND n.created_at > r.since) THEN '{Reason.DUPLICATE}' END AS reason
        FROM options AS o)"""

_IDS_BEFORE = "(SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'bongsu_notifications') AS ids_before"

# Last the daily cap, because only what is sent counts. Of one notice: what was counted before this step.
_ONE_NOTICE = f"""
    SELECT place, member_id, message_id, {_IDS_BEFORE}, channels, lane, due, day, is_critical,
           coalesce(reason, CASE WHEN NOT is_critical AND counted >= $22 THEN '{Reason.RATE_LIMITED}' END) AS reason
    FROM decision"""

# Of several: also what the step's earlier notices to the same member add to it.
_SEVERAL_NOTICES = f"""
    SELECT place, member_id, message_id, {_IDS_BEFORE}, channels, lane, due, day, is_critical,
           coalesce(reason, CASE WHEN NOT is_critical
                                      AND counted + count(*) FILTER (WHERE reason IS NULL AND NOT is_critical)
                                      OVER up_to_here > $22 THEN '{Reason.RATE_LIMITED}' END) AS reason
    FROM decision
    WINDOW up_to_here AS (PARTITION BY member_id ORDER BY place ROWS UNBOUNDED PRECEDING)"""

# Inserts a decided row for each recipient into bongsu_decided.
_INSERT_DECIDED = """
    INSERT INTO bongsu_decided (place, member_id, message_id, ids_before, channels, lane, due, day, is_critical, reason)"""
DECIDE_MANY_OF_ONE_NOTICE = f"{_INSERT_DECIDED}{_DECISION}{_ONE_NOTICE}"
DECIDE_MANY_OF_SEVERAL_NOTICES = f"{_INSERT_DECIDED}{_DECISION}{_SEVERAL_NOTICES}"

# The rows of one step, in a table of the connection. Numbered as they come: behind the last notification's id.
CREATE_DECIDED = """
    CREATE TEMPORARY TABLE IF NOT EXISTS bongsu_decided (
        number integer PRIMARY KEY, ids_before integer, notification_id integer AS (ids_before + number),
        place integer, member_id text, message_id integer, channels integer, lane integer, due integer, day integer,
        is_critical boolean, reason text)"""
# Empties it. It still has the rows of the step before.
PREPARE_MANY = "DELETE FROM bongsu_decided"

# Ids of recipients who are not members yet.
FIND_MISSING_MEMBERS = f"""
    WITH recipients AS ({RECIPIENTS})
    SELECT DISTINCT r.member_id FROM recipients AS r
    LEFT JOIN bongsu_members AS m ON m.member_id = r.member_id
    WHERE m.member_id IS NULL"""

# The profiles of those who are.
FIND_PROFILES = f"""
    WITH recipients AS ({RECIPIENTS})
    SELECT DISTINCT coalesce(m.locale, '') AS locale, coalesce(m.timezone, '') AS timezone,
           coalesce(m.quiet_start, -1) AS quiet_start, coalesce(m.quiet_end, -1) AS quiet_end
    FROM recipients AS r CROSS JOIN bongsu_members AS m WHERE m.member_id = r.member_id"""

# --- apply ------------------------------------------------------------------------------------------------------------

# Counts one more unread and, unless critical, one more of the member's day; never goes back to an earlier day.
COUNT_ONE_NOTICE = f"""
    UPDATE bongsu_members AS m INDEXED BY {_MEMBERS_BY_ID}
    SET unread = m.unread + 1,
        capped_count = CASE WHEN n.is_critical THEN m.capped_count WHEN m.capped_day >= n.day THEN m.capped_count + 1
                            ELSE 1 END,
        capped_day = CASE WHEN n.is_critical OR m.capped_day >= n.day THEN m.capped_day ELSE n.day END
    FROM bongsu_decided AS n
    WHERE n.reason IS NULL AND m.member_id = n.member_id"""

# The same where a member may be notified several times.
COUNT_SEVERAL_NOTICES = f"""
    UPDATE bongsu_members AS m INDEXED BY {_MEMBERS_BY_ID}
    SET unread = m.unread + given.notified,
        capped_count = given.counted + CASE WHEN given.counted = 0 OR m.capped_day >= given.day THEN m.capped_count
                                            ELSE 0 END,
        capped_day = CASE WHEN given.counted = 0 OR m.capped_day >= given.day THEN m.capped_day ELSE given.day END
    FROM (SELECT n.member_id, count(*) AS notified, count(*) FILTER (WHERE NOT n.is_critical) AS counted, max(n.day) AS day
          FROM bongsu_decided AS n WHERE n.reason IS NULL GROUP BY n.member_id) AS given
    WHERE m.member_id = given.member_id"""

# Inserts a delivery for each usable device and each other address of the notified. $1 now, $2 all channels of the step's
# notices. Addresses are looked up when it is sent: they may have changed by then.
ADD_DELIVERIES = f"""
    INSERT INTO bongsu_deliveries (notification_id, member_id, message_id, channel, device_id, lane, due, created_at)
    SELECT n.notification_id, n.member_id, n.message_id, '{Channel.PUSH}', d.device_id, n.lane, n.due, $1
    FROM bongsu_decided AS n CROSS JOIN bongsu_devices AS d
    WHERE n.reason IS NULL AND n.channels & {_PUSH} <> 0 AND d.member_id = n.member_id AND {USABLE_DEVICE}
    UNION ALL
    SELECT n.notification_id, n.member_id, n.message_id, '{Channel.SMS}', NULL, n.lane, n.due, $1
    FROM bongsu_decided AS n WHERE $2 & {_SMS} <> 0 AND n.reason IS NULL AND n.channels & {_SMS} <> 0
    UNION ALL
    SELECT n.notification_id, n.member_id, n.message_id, '{Channel.EMAIL}', NULL, n.lane, n.due, $1
    FROM bongsu_decided AS n WHERE $2 & {_EMAIL} <> 0 AND n.reason IS NULL AND n.channels & {_EMAIL} <> 0"""
