"""Statements of deciding and applying on SQLite. The one writer holds all locks. postgres.py has the same names."""

from bongsu.model import Reason
from bongsu.model.channels import Channel
from bongsu.store.core.query import MESSAGE_ID
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.decisions.rows import (
    ACTIVE_TIME,
    CONTENT,
    DECIDED,
    DEDUP_KEY,
    DIGEST_NOTICE,
    MANY_MESSAGES,
    MISSING,
    NOTICE,
    PACED_NOTICE,
    PROFILE,
)
from bongsu.store.members.channel_bits import (
    ALL_BITS,
    BITS,
    SINGLE_ADDRESS_BITS,
    SINGLE_ADDRESS_CHANNELS,
    own_reachable,
    reachable,
)
from bongsu.store.members.devices import USABLE_DEVICE

_PUSH, _IN_APP = BITS[Channel.PUSH], BITS[Channel.IN_APP]
# SQLite's own name for the index of the primary key.
_MEMBERS_BY_ID = "sqlite_autoindex_bongsu_members_1"

# Recipients as one JSON object: member ids by notice index. The index as a sum: a CAST would have a type affinity, which
# keeps SQLite from using an index when it is compared.
RECIPIENTS = """
        SELECT notice.key + 0 AS notice_index, member.value AS member_id
        FROM json_each($1) AS notice, json_each(notice.value) AS member"""

# --- decide -----------------------------------------------------------------------------------------------------------

# The steps of a decision up to the daily cap.
_DECISION = f"""
    WITH recipients AS ({RECIPIENTS}),
    -- First the members' rows: the daily cap is counted on them.
    locked_members AS NOT MATERIALIZED (
        SELECT r.notice_index, r.member_id, m.member_id IS NULL AS is_missing, m.is_enabled, m.capped_day, m.capped_count,
               coalesce(m.locale, '') AS locale, coalesce(m.timezone, '') AS timezone,
               coalesce(m.quiet_start, -1) AS quiet_start, coalesce(m.quiet_end, -1) AS quiet_end,
               {reachable("m")} AS reachable
        FROM recipients AS r LEFT JOIN bongsu_members AS m ON m.member_id = r.member_id),
    -- Then each notice with its message in each locale, and what follows from each profile, computed once.
    notice AS MATERIALIZED (SELECT * FROM {SQLITE.table("given", NOTICE, 2)}),
    profile AS MATERIALIZED (SELECT * FROM {SQLITE.table("given", PROFILE, 3)}),
    content AS MATERIALIZED (SELECT * FROM {SQLITE.table("given", CONTENT, 4)}),
    notice_contents AS MATERIALIZED (
        SELECT notice.*, content.locale, content.message_id
        FROM notice JOIN content ON content.notice_index = notice.notice_index),
    -- Then the few messages that can make a notice a duplicate.
    recent_messages AS MATERIALIZED (
        SELECT given.dedup, m.message_id, given.since,
               count(*) OVER (PARTITION BY given.dedup) > {MANY_MESSAGES} AS are_many
        FROM {SQLITE.table("given", DEDUP_KEY, 5)}
        CROSS JOIN bongsu_messages AS m INDEXED BY bongsu_messages_recent
        WHERE m.type = given.type AND m.subject = given.subject AND m.last_notified_at > given.since
          AND m.message_id NOT IN (SELECT own.message_id FROM {SQLITE.table("own", MESSAGE_ID, 6)})),
    -- Where a dedup key has many of them: who was notified. A member is notified once per window, so that is one lookup for
    -- each message instead of one for each message and recipient.
    notified_before AS MATERIALIZED (
        SELECT r.dedup, n.member_id
        FROM recent_messages AS r CROSS JOIN bongsu_notifications AS n
        WHERE r.are_many AND n.message_id = r.message_id AND n.created_at > r.since),
    -- The three together: what each member wants of the notice, what can reach them, how much of the cap is used.
    options AS (
        SELECT l.notice_index, l.member_id, l.is_missing, f.dedup, f.message_id, f.rank, f.is_critical, f.is_capped,
               profile.day,
               CASE WHEN f.is_critical THEN $7 ELSE profile.due END AS due,
               (f.is_critical OR l.is_enabled) AND coalesce(p.is_enabled, true) AS is_wanted,
               f.channels & coalesce(p.channels, {ALL_BITS}) AS wanted_channels,
               f.channels & coalesce(p.channels, {ALL_BITS}) & (l.reachable + {own_reachable("f.channels", "l.member_id")})
                   AS channels,
               CASE WHEN l.capped_day >= profile.day THEN l.capped_count ELSE 0 END AS counted
        FROM locked_members AS l
        LEFT JOIN notice_contents AS f ON f.notice_index = l.notice_index AND f.locale = l.locale
        LEFT JOIN profile
               ON profile.locale = l.locale AND profile.timezone = l.timezone
                  AND profile.quiet_start = l.quiet_start AND profile.quiet_end = l.quiet_end
        LEFT JOIN bongsu_preferences AS p ON p.member_id = l.member_id AND p.type = f.type),
    -- The decision: the first reason that applies.
    decision AS (
        SELECT o.notice_index, o.member_id, o.dedup, o.message_id, o.channels, o.rank, o.due, o.day, o.is_critical,
               o.is_capped, o.counted,
               CASE -- Not decidable yet: the caller has to insert the member, or to learn the profile.
                    WHEN o.is_missing OR o.message_id IS NULL OR o.day IS NULL THEN '{MISSING}'
                    -- Opted out comes first: it holds whatever else does.
                    WHEN NOT o.is_wanted OR o.wanted_channels = 0 THEN '{Reason.USER_OPTED_OUT}'
                    -- No address before duplicate: what cannot be sent is no duplicate of what was.
                    WHEN o.channels = 0 OR (o.channels = {_PUSH} AND NOT EXISTS (
                         SELECT 1 FROM bongsu_devices AS d
                         WHERE d.member_id = o.member_id AND {USABLE_DEVICE})) THEN '{Reason.NO_ADDRESS}'
                    -- Duplicate before the cap: what is not sent does not count.
                    WHEN EXISTS (SELECT 1 FROM recent_messages) AND (
                         (o.dedup, o.member_id) IN (SELECT dedup, member_id FROM notified_before)
                         OR EXISTS (
                             SELECT 1 FROM recent_messages AS r CROSS JOIN bongsu_notifications AS n
                             WHERE r.dedup = o.dedup AND NOT r.are_many AND n.message_id = r.message_id
                               AND n.member_id = o.member_id AND n.created_at > r.since))
                         THEN '{Reason.DUPLICATE}' END AS reason
        FROM options AS o)"""

_IDS_BEFORE = "(SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'bongsu_notifications') AS ids_before"

# Last the daily cap, because only what is sent counts. Of one notice: what was counted before this step.
_ONE_NOTICE = f"""
    SELECT notice_index, member_id, message_id, {_IDS_BEFORE}, channels, rank, due, day, is_critical, is_capped,
           coalesce(reason, CASE WHEN is_capped AND counted >= $8 THEN '{Reason.RATE_LIMITED}' END) AS reason
    FROM decision"""

# Of several: as if they were decided one after the other.
_SEVERAL_NOTICES = f""",
    -- Of notices with the same dedup key a member gets the first that nothing is against.
    repeats AS (
        SELECT *, row_number() OVER (PARTITION BY member_id, dedup, reason IS NULL ORDER BY notice_index) AS nth
        FROM decision),
    -- The cap: what was counted before this step, and what its notices up to here add to it.
    caps AS (
        SELECT *, counted + count(*) FILTER (WHERE reason IS NULL AND nth = 1 AND is_capped)
                  OVER (PARTITION BY member_id ORDER BY notice_index ROWS UNBOUNDED PRECEDING) AS used
        FROM repeats)
    -- min(used) is that of the key's first. Over the cap it is not sent, and then nor is another a duplicate of it.
    SELECT notice_index, member_id, message_id, {_IDS_BEFORE}, channels, rank, due, day, is_critical, is_capped,
           coalesce(reason, CASE
               WHEN is_capped AND min(used) OVER (PARTITION BY member_id, dedup, reason IS NULL) > $8
                    THEN '{Reason.RATE_LIMITED}'
               WHEN nth > 1 THEN '{Reason.DUPLICATE}' END) AS reason
    FROM caps ORDER BY member_id, notice_index"""

# Inserts a decided row for each recipient into bongsu_decided.
_INSERT_DECIDED = """
    INSERT INTO bongsu_decided
        (notice_index, member_id, message_id, ids_before, channels, rank, due, day, is_critical, is_capped, reason)"""
DECIDE_ONE_NOTICE_INTO_TABLE = f"{_INSERT_DECIDED}{_DECISION}{_ONE_NOTICE}"
DECIDE_INTO_TABLE = f"{_INSERT_DECIDED}{_DECISION}{_SEVERAL_NOTICES}"

# Returns, for each recipient of notices with digests ($8), the first reason against it so far, how much of the cap is used,
# and the digest that it can be merged into: of those of the member, type and key whose windows are open and that the member
# has not read, the one that ends last: the first in its index. `is_counted`: that digest has something of the same actor.
# The cap, and what earlier notices of the step do to later ones, are left to the caller (decide/digest.py).
DECIDE_DIGESTS = f"""{_DECISION},
    gathered AS MATERIALIZED (SELECT * FROM {SQLITE.table("given", DIGEST_NOTICE, 8)}),
    candidates AS MATERIALIZED (
        SELECT d.*, given.actor_id, (
            SELECT x.notification_id
            FROM bongsu_digests AS x INDEXED BY bongsu_digests_key
            CROSS JOIN bongsu_notifications AS n ON n.notification_id = x.notification_id
            WHERE x.member_id = d.member_id AND x.type = given.type AND x.key = given.key AND x.ends_at > $7 AND x.size > 0
              AND n.read_at IS NULL AND n.archived_at IS NULL AND n.deleted_at IS NULL
            ORDER BY x.ends_at DESC, x.notification_id DESC LIMIT 1) AS digest_id
        FROM decision AS d JOIN gathered AS given ON given.notice_index = d.notice_index)
    SELECT c.notice_index, c.member_id, c.dedup, c.message_id, c.channels, c.rank, c.due, c.day, c.is_capped, c.counted,
           coalesce(c.reason, CASE
               -- What was merged has no notification of its message: the dedup window looks at the entries of digests too.
               WHEN EXISTS (SELECT 1 FROM recent_messages AS r CROSS JOIN bongsu_digest_entries AS e
                            WHERE r.dedup = c.dedup AND e.message_id = r.message_id AND e.member_id = c.member_id
                              AND e.created_at > r.since) THEN '{Reason.DUPLICATE}' END) AS reason,
           c.digest_id, (SELECT x.size FROM bongsu_digests AS x WHERE x.notification_id = c.digest_id) AS size,
           (SELECT n.channels & {_IN_APP} <> 0 FROM bongsu_notifications AS n WHERE n.notification_id = c.digest_id)
               AS is_in_inbox,
           EXISTS (SELECT 1 FROM bongsu_digest_entries AS e
                   WHERE e.actor_id = c.actor_id AND e.notification_id = c.digest_id) AS is_counted
    FROM candidates AS c ORDER BY c.member_id, c.notice_index"""

# The rows of one step, in a table of the connection. Numbered as they come: behind the last notification's id.
CREATE_DECIDED = """
    CREATE TEMPORARY TABLE IF NOT EXISTS bongsu_decided (
        number integer PRIMARY KEY, ids_before integer, notification_id integer AS (ids_before + number),
        notice_index integer, member_id text, message_id integer, channels integer, rank integer, due integer, day integer,
        is_critical boolean, is_capped boolean, reason text)"""
# Empties it. It still has the rows of the step before.
PREPARE_DECIDED = "DELETE FROM bongsu_decided"

# Inserts decided rows that are given ($1), each with an id drawn before.
GIVE_DECIDED = f"""
    INSERT INTO bongsu_decided
        (number, ids_before, notice_index, member_id, message_id, channels, rank, due, day, is_critical, is_capped, reason)
    SELECT
        notification_id, 0, notice_index, member_id, message_id, channels, rank, due, day, is_critical, is_capped, reason
    FROM {SQLITE.table("given", DECIDED, 1)}"""

# Spreads the due times of paced notices ($1): each member's comes so many seconds after the one before. In quiet hours the
# clock stands still: $2 has the times between them. So nothing is sent in them, and not everything at their end.
SPREAD_DUE = f"""
    UPDATE bongsu_decided AS d
    SET due = d.due + n.wait + n.quiet_before
    FROM (
        SELECT w.number, w.wait, coalesce(active.quiet_before, 0) AS quiet_before
        FROM (
            SELECT x.number, x.member_id, x.is_critical, CAST(round(1000000 * paced.seconds * (
                       paced.before + row_number() OVER (PARTITION BY x.notice_index ORDER BY x.member_id) - 1)) AS integer)
                       AS wait
            FROM bongsu_decided AS x JOIN {SQLITE.table("paced", PACED_NOTICE, 1)} ON paced.notice_index = x.notice_index
            WHERE x.reason IS NULL) AS w
        JOIN bongsu_members AS m ON m.member_id = w.member_id
        LEFT JOIN {SQLITE.table("active", ACTIVE_TIME, 2)}
               ON NOT w.is_critical AND active.timezone = coalesce(m.timezone, '')
                  AND active.quiet_start = coalesce(m.quiet_start, -1) AND active.quiet_end = coalesce(m.quiet_end, -1)
                  AND w.wait >= active.since AND w.wait < active.until) AS n
    WHERE d.number = n.number"""

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

# Counts the unread in the inbox, and towards the cap of the member's day what is capped. Never goes back a day.
COUNT_FOR_MEMBERS = f"""
    UPDATE bongsu_members AS m INDEXED BY {_MEMBERS_BY_ID}
    SET unread = m.unread + given.unread,
        capped_count = given.counted + CASE WHEN given.counted = 0 OR m.capped_day >= given.day THEN m.capped_count
                                            ELSE 0 END,
        capped_day = CASE WHEN given.counted = 0 OR m.capped_day >= given.day THEN m.capped_day ELSE given.day END
    FROM (SELECT n.member_id, count(*) FILTER (WHERE n.channels & {_IN_APP} <> 0) AS unread,
                 count(*) FILTER (WHERE n.is_capped) AS counted, max(n.day) AS day
          FROM bongsu_decided AS n WHERE n.reason IS NULL GROUP BY n.member_id) AS given
    WHERE m.member_id = given.member_id"""

# Inserts the inbox rows of those who are notified.
ADD_NOTIFICATIONS = """
    INSERT INTO bongsu_notifications (notification_id, member_id, message_id, channels, created_at)
    SELECT notification_id, member_id, message_id, channels, $1
    FROM bongsu_decided WHERE reason IS NULL"""

# Inserts the reason for everyone else.
ADD_SUPPRESSIONS = """
    INSERT INTO bongsu_suppressions (message_id, member_id, reason, created_at)
    SELECT message_id, member_id, reason, $1 FROM bongsu_decided WHERE reason IS NOT NULL"""

# Inserts a delivery for each usable device and each other channel of the notified. Addresses are looked up when it is sent:
# they may have changed by then.
ADD_DELIVERIES = f"""
    INSERT INTO bongsu_deliveries (notification_id, member_id, message_id, channel, device_id, rank, due, created_at)
    SELECT n.notification_id, n.member_id, n.message_id, '{Channel.PUSH}', d.device_id, n.rank, n.due, $1
    FROM bongsu_decided AS n CROSS JOIN bongsu_devices AS d
    WHERE n.reason IS NULL AND n.channels & {_PUSH} <> 0 AND d.member_id = n.member_id AND {USABLE_DEVICE}
    UNION ALL
    SELECT n.notification_id, n.member_id, n.message_id, c.name, NULL, n.rank, n.due, $1
    FROM bongsu_decided AS n CROSS JOIN ({SINGLE_ADDRESS_CHANNELS}) AS c
    WHERE n.reason IS NULL AND n.channels & {SINGLE_ADDRESS_BITS} <> 0 AND n.channels & c.bit <> 0"""

# Returns how many of each message and channel ADD_DELIVERIES has inserted. Run it right after: SQLite has given them ids in
# a row, the last of which it remembers.
COUNT_ADDED_DELIVERIES = """
    SELECT message_id, channel, count(*) AS count FROM bongsu_deliveries
    WHERE changes() > 0 AND delivery_id > last_insert_rowid() - changes() GROUP BY message_id, channel"""
