"""Statements of deciding and applying on PostgreSQL. sqlite.py has the same decision; apply.py runs what follows from it."""

from collections.abc import Callable

from bongsu.model import Reason
from bongsu.model.channels import Channel
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import MESSAGE_ID
from bongsu.store.decisions.messages import add_messages, mark_used_again
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
from bongsu.store.outbox.claims import RESULT, record_results
from bongsu.store.outbox.progress import save_cursors

_PUSH, _IN_APP = BITS[Channel.PUSH], BITS[Channel.IN_APP]

# Recipients as one JSON object: member ids by notice index. The planner expects ten thousand rows of it: two full steps.
RECIPIENTS = """
        SELECT CAST(notice.key AS integer) AS notice_index, member.member_id
        FROM json_each(CAST($1 AS json)) AS notice(key, member_ids)
        CROSS JOIN LATERAL json_array_elements_text(notice.member_ids) AS member(member_id)"""

# --- decide -----------------------------------------------------------------------------------------------------------

# The steps of a decision up to the daily cap. LATERAL with a lock or OFFSET 0 looks up each row by its index; as an ordinary
# join the planner would read the whole table to find a few thousand of its rows.
_DECISION = f"""
    WITH recipients AS ({RECIPIENTS}),
    -- First the members' rows, locked: the daily cap is counted on them, and the notification ids drawn below are then in
    -- commit order for each member. In id order, byte by byte, so that two steps cannot deadlock.
    locked_members AS MATERIALIZED (
        SELECT r.notice_index, r.member_id, m.member_id IS NULL AS is_missing, m.is_enabled, m.capped_day, m.capped_count,
               coalesce(m.locale, '') AS locale, coalesce(m.timezone, '') AS timezone,
               coalesce(m.quiet_start, -1) AS quiet_start, coalesce(m.quiet_end, -1) AS quiet_end,
               {reachable("m")} AS reachable
        FROM (SELECT * FROM recipients ORDER BY member_id COLLATE "C", notice_index) AS r
        LEFT JOIN LATERAL (
            SELECT x.member_id, x.is_enabled, x.capped_day, x.capped_count, x.locale, x.timezone, x.quiet_start,
                   x.quiet_end, x.phone, x.email
            FROM bongsu_members AS x WHERE x.member_id = r.member_id FOR NO KEY UPDATE) AS m ON true),
    -- Then each notice with its message in each locale, computed once.
    notice_contents AS MATERIALIZED (
        SELECT notice.*, content.locale, content.message_id
        FROM {POSTGRES.table("notice", NOTICE, 2)} JOIN {POSTGRES.table("content", CONTENT, 4)} USING (notice_index)),
    -- Then the few messages that can make a notice a duplicate. The caller holds the lock of each dedup key, so none is
    -- added meanwhile.
    recent_messages AS MATERIALIZED (
        SELECT given.dedup, m.message_id, given.since,
               count(*) OVER (PARTITION BY given.dedup) > {MANY_MESSAGES} AS are_many
        FROM {POSTGRES.table("given", DEDUP_KEY, 5)}
        CROSS JOIN bongsu_messages AS m
        WHERE m.type = given.type AND m.subject = given.subject AND m.last_notified_at > given.since
          AND m.message_id NOT IN (SELECT own.message_id FROM {POSTGRES.table("own", MESSAGE_ID, 6)})),
    -- Where a dedup key has many of them: who was notified. A member is notified once per window, so that is one lookup for
    -- each message instead of one for each message and recipient.
    notified_before AS MATERIALIZED (
        SELECT r.dedup, n.member_id
        FROM recent_messages AS r
        CROSS JOIN LATERAL (
            SELECT x.member_id FROM bongsu_notifications AS x
            WHERE x.message_id = r.message_id AND x.created_at > r.since OFFSET 0) AS n
        WHERE r.are_many),
    -- The three together: what each member wants of the notice, what can reach them, how much of the cap is used. What
    -- follows from a profile is looked up, not joined to each notice: there may be many of each.
    options AS (
        SELECT l.notice_index, l.member_id, l.is_missing, f.dedup, f.message_id, f.rank, f.is_critical, f.is_capped,
               profile.day,
               CASE WHEN f.is_critical THEN CAST($7 AS timestamptz) ELSE profile.due END AS due,
               (f.is_critical OR l.is_enabled) AND coalesce(p.is_enabled, true) AS is_wanted,
               f.channels & coalesce(p.channels, {ALL_BITS}) AS wanted_channels,
               f.channels & coalesce(p.channels, {ALL_BITS}) & (l.reachable + {own_reachable("f.channels", "l.member_id")})
                   AS channels,
               CASE WHEN l.capped_day >= profile.day THEN l.capped_count ELSE 0 END AS counted
        FROM locked_members AS l
        LEFT JOIN notice_contents AS f ON f.notice_index = l.notice_index AND f.locale = l.locale
        LEFT JOIN {POSTGRES.table("profile", PROFILE, 3)}
               ON profile.locale = l.locale AND profile.timezone = l.timezone
                  AND profile.quiet_start = l.quiet_start AND profile.quiet_end = l.quiet_end
        LEFT JOIN LATERAL (
            SELECT x.is_enabled, x.channels FROM bongsu_preferences AS x
            WHERE x.member_id = l.member_id AND x.type = f.type OFFSET 0) AS p ON true),
    -- The decision: the first reason that applies. Scalar sub-selects with LIMIT, because EXISTS may read a whole table.
    decision AS (
        SELECT o.notice_index, o.member_id, o.dedup, o.message_id, o.channels, o.rank, o.due, o.day, o.is_critical,
               o.is_capped, o.counted,
               CASE -- Not decidable yet: the caller has to insert the member, or to learn the profile.
                    WHEN o.is_missing OR o.message_id IS NULL OR o.day IS NULL THEN '{MISSING}'
                    -- Opted out comes first: it holds whatever else does.
                    WHEN NOT o.is_wanted OR o.wanted_channels = 0 THEN '{Reason.USER_OPTED_OUT}'
                    -- No address before duplicate: what cannot be sent is no duplicate of what was.
                    WHEN o.channels = 0 OR (o.channels = {_PUSH} AND (
                         SELECT 1 FROM bongsu_devices AS d
                         WHERE d.member_id = o.member_id AND {USABLE_DEVICE} LIMIT 1) IS NULL) THEN '{Reason.NO_ADDRESS}'
                    -- Duplicate before the cap: what is not sent does not count.
                    WHEN (SELECT count(*) FROM recent_messages) > 0 AND (
                         (o.dedup, o.member_id) IN (SELECT dedup, member_id FROM notified_before)
                         OR (SELECT 1 FROM recent_messages AS r CROSS JOIN bongsu_notifications AS n
                             WHERE r.dedup = o.dedup AND NOT r.are_many AND n.message_id = r.message_id
                               AND n.member_id = o.member_id AND n.created_at > r.since LIMIT 1) IS NOT NULL)
                         THEN '{Reason.DUPLICATE}' END AS reason
        FROM options AS o)"""

# Last the daily cap, because only what is sent counts. Of one notice: what was counted before this step.
_ONE_NOTICE = f"""
    SELECT notice_index, member_id, message_id, nextval('bongsu_notifications_notification_id_seq') AS notification_id,
           channels, rank, due, day, is_critical, is_capped,
           coalesce(reason, CASE WHEN is_capped AND counted >= CAST($8 AS integer)
                                 THEN '{Reason.RATE_LIMITED}' END) AS reason
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
        FROM repeats),
    -- min(used) is that of the key's first. Over the cap it is not sent, and then nor is another a duplicate of it.
    decided AS (
        SELECT *, coalesce(reason, CASE
                      WHEN is_capped AND min(used) OVER (PARTITION BY member_id, dedup, reason IS NULL)
                           > CAST($8 AS integer) THEN '{Reason.RATE_LIMITED}'
                      WHEN nth > 1 THEN '{Reason.DUPLICATE}' END) AS final_reason
        FROM caps ORDER BY member_id, notice_index)
    SELECT notice_index, member_id, message_id, nextval('bongsu_notifications_notification_id_seq') AS notification_id,
           channels, rank, due, day, is_critical, is_capped, final_reason AS reason
    FROM decided"""

# Returns a decided row for each recipient. Locks the members' rows in id order.
DECIDE = f"{_DECISION}{_SEVERAL_NOTICES}"

# Returns, for each recipient of notices with digests ($8), the first reason against it so far, how much of the cap is used,
# and the digest that it can be merged into: of those of the member, type and key whose windows are open and that the member
# has not read, the one that ends last: the first in its index. `is_counted`: that digest has something of the same actor.
# The cap, and what earlier notices of the step do to later ones, are left to the caller (decide/digest.py). The caller
# has locked the members in a statement before: only so does this one see what others have committed under their locks.
DECIDE_DIGESTS = f"""{_DECISION}
    SELECT d.notice_index, d.member_id, d.dedup, d.message_id, d.channels, d.rank, d.due, d.day, d.is_capped, d.counted,
           coalesce(d.reason, CASE
               -- What was merged has no notification of its message: the dedup window looks at the entries of digests too.
               WHEN (SELECT 1 FROM recent_messages AS r CROSS JOIN bongsu_digest_entries AS e
                     WHERE r.dedup = d.dedup AND e.message_id = r.message_id AND e.member_id = d.member_id
                       AND e.created_at > r.since LIMIT 1) IS NOT NULL THEN '{Reason.DUPLICATE}' END) AS reason,
           g.notification_id AS digest_id, g.size, g.is_in_inbox,
           (SELECT 1 FROM bongsu_digest_entries AS e
            WHERE e.actor_id = given.actor_id AND e.notification_id = g.notification_id) IS NOT NULL AS is_counted
    FROM decision AS d JOIN {POSTGRES.table("given", DIGEST_NOTICE, 8)} ON given.notice_index = d.notice_index
    LEFT JOIN LATERAL (
        SELECT x.notification_id, x.size, n.channels & {_IN_APP} <> 0 AS is_in_inbox
        FROM bongsu_digests AS x
        JOIN bongsu_notifications AS n ON n.member_id = x.member_id AND n.notification_id = x.notification_id
        WHERE x.member_id = d.member_id AND x.type = given.type AND x.key = given.key AND x.ends_at > $7 AND x.size > 0
          AND n.read_at IS NULL AND n.archived_at IS NULL AND n.deleted_at IS NULL
        ORDER BY x.ends_at DESC, x.notification_id DESC LIMIT 1) AS g ON true
    ORDER BY d.member_id, d.notice_index"""

# The same into bongsu_decided. Many recipients of one notice need no windows over the whole step.
_INSERT_DECIDED = f"INSERT INTO bongsu_decided ({', '.join(DECIDED)})"
DECIDE_ONE_NOTICE_INTO_TABLE = f"{_INSERT_DECIDED}{_DECISION}{_ONE_NOTICE}"
DECIDE_INTO_TABLE = f"{_INSERT_DECIDED}{DECIDE}"

# The rows of one step. The table belongs to the connection; a commit empties it.
CREATE_DECIDED = """
    CREATE TEMPORARY TABLE IF NOT EXISTS bongsu_decided (
        notice_index integer, member_id text COLLATE "C", message_id bigint, notification_id bigint, channels integer,
        rank integer, due timestamptz, day integer, is_critical boolean, is_capped boolean, reason text)
    ON COMMIT DELETE ROWS"""
# Plans by the values: given the first and last of many members, the planner sees whether their rows lie so close together
# that reading them in a row is faster than looking up each.
PREPARE_DECIDED = "SET LOCAL plan_cache_mode = force_custom_plan"

# Spreads the due times of paced notices ($1): each member's comes so many seconds after the one before. In quiet hours the
# clock stands still: $2 has the times between them. So nothing is sent in them, and not everything at their end.
SPREAD_DUE = f"""
    UPDATE bongsu_decided AS d
    SET due = d.due + (n.wait + coalesce(active.quiet_before, 0)) * interval '1 microsecond'
    FROM (
        SELECT x.notice_index, x.member_id, x.is_critical, CAST(round(1000000 * paced.seconds * (
                   paced.before + row_number() OVER (PARTITION BY x.notice_index ORDER BY x.member_id) - 1)) AS bigint)
                   AS wait
        FROM bongsu_decided AS x JOIN {POSTGRES.table("paced", PACED_NOTICE, 1)} ON paced.notice_index = x.notice_index
        WHERE x.reason IS NULL) AS n
    JOIN bongsu_members AS m ON m.member_id = n.member_id
    LEFT JOIN {POSTGRES.table("active", ACTIVE_TIME, 2)}
           ON NOT n.is_critical AND active.timezone = coalesce(m.timezone, '')
              AND active.quiet_start = coalesce(m.quiet_start, -1) AND active.quiet_end = coalesce(m.quiet_end, -1)
              AND n.wait >= active.since AND n.wait < active.until
    WHERE d.notice_index = n.notice_index AND d.member_id = n.member_id"""

# Ids of recipients who are not members yet.
FIND_MISSING_MEMBERS = f"""
    WITH recipients AS ({RECIPIENTS})
    SELECT DISTINCT r.member_id FROM recipients AS r
    LEFT JOIN LATERAL (
        SELECT x.member_id FROM bongsu_members AS x WHERE x.member_id = r.member_id OFFSET 0) AS m ON true
    WHERE m.member_id IS NULL"""

# The profiles of those who are.
FIND_PROFILES = f"""
    WITH recipients AS ({RECIPIENTS})
    SELECT DISTINCT coalesce(m.locale, '') AS locale, coalesce(m.timezone, '') AS timezone,
           coalesce(m.quiet_start, -1) AS quiet_start, coalesce(m.quiet_end, -1) AS quiet_end
    FROM recipients AS r
    CROSS JOIN LATERAL (
        SELECT x.locale, x.timezone, x.quiet_start, x.quiet_end
        FROM bongsu_members AS x WHERE x.member_id = r.member_id OFFSET 0) AS m"""

# --- apply ------------------------------------------------------------------------------------------------------------


def _apply(decided: str, is_notified: str, bounds: Callable[[str], str], materialized: str) -> str:
    """All of a step in one statement: stores new messages ($1), when known messages were used again ($2), the results of
    events ($3) and how far others came ($4), and what follows from the decided rows. $5 is now, $6 the lease in seconds. The
    rows of members and events are locked already. Returns how many deliveries there are of each message and channel.

    `decided` is the table expression of the decided rows, `is_notified` the condition on row `n` of it, `bounds` one on the
    member ids of an alias. `materialized`: rows that are given are parsed once; those of a table are read in place.
    """
    return f"""
    WITH decided AS {materialized} (SELECT * FROM {decided}),
    notified AS {materialized} (SELECT * FROM decided AS n WHERE {is_notified}),
    -- Counts the unread in the inbox, and towards the cap of the member's day what is capped. Never goes back a day.
    -- All rows of a member have the same day. To group by it as well tells the planner of more than the 200 groups that it
    -- expects of one column without statistics: with so few it would look up each member instead of reading a range.
    members AS (
        UPDATE bongsu_members AS m
        SET unread = m.unread + given.unread,
            capped_count = given.counted + CASE WHEN given.counted = 0 OR m.capped_day >= given.day THEN m.capped_count
                                                ELSE 0 END,
            capped_day = CASE WHEN given.counted = 0 OR m.capped_day >= given.day THEN m.capped_day ELSE given.day END
        FROM (SELECT n.member_id, count(*) FILTER (WHERE n.channels & {_IN_APP} <> 0) AS unread,
                     count(*) FILTER (WHERE n.is_capped) AS counted, n.day
              FROM notified AS n GROUP BY n.member_id, n.day) AS given
        WHERE m.member_id = given.member_id{bounds("m")}),
    notifications AS (
        INSERT INTO bongsu_notifications (notification_id, member_id, message_id, channels, created_at)
        SELECT notification_id, member_id, message_id, channels, CAST($5 AS timestamptz) FROM notified),
    -- One for each usable device and each other channel. Addresses are looked up when it is sent: they may have changed.
    deliveries AS (
        INSERT INTO bongsu_deliveries (notification_id, member_id, message_id, channel, device_id, rank, due, created_at)
        SELECT n.notification_id, n.member_id, n.message_id, '{Channel.PUSH}', d.device_id, n.rank, n.due, $5
        FROM notified AS n JOIN bongsu_devices AS d ON d.member_id = n.member_id{bounds("d")} AND {USABLE_DEVICE}
        WHERE n.channels & {_PUSH} <> 0
        UNION ALL
        SELECT n.notification_id, n.member_id, n.message_id, c.name, NULL, n.rank, n.due, $5
        FROM notified AS n
        CROSS JOIN LATERAL (
            SELECT name FROM ({SINGLE_ADDRESS_CHANNELS}) AS x WHERE n.channels & x.bit <> 0 OFFSET 0) AS c
        WHERE n.channels & {SINGLE_ADDRESS_BITS} <> 0
        RETURNING message_id, channel),
    suppressions AS (
        INSERT INTO bongsu_suppressions (message_id, member_id, reason, created_at)
        SELECT message_id, member_id, reason, $5 FROM decided WHERE reason IS NOT NULL),
    new_messages AS ({add_messages(POSTGRES, 1)}),
    used_again AS ({mark_used_again(POSTGRES, 2, "$5")}),
    finished AS ({record_results(POSTGRES, POSTGRES.table("given", RESULT, 3))}),
    continued AS ({save_cursors(POSTGRES, 4, "$6")})
    SELECT message_id, channel, count(*) AS count FROM deliveries GROUP BY message_id, channel"""


# Applies the decided rows that are given ($7). The planner expects few of them.
APPLY_GIVEN = _apply(POSTGRES.table("given", DECIDED, 7), "n.reason IS NULL", lambda _alias: "", "MATERIALIZED")

# Applies the rows of bongsu_decided. $7 and $8 are the first and last member. Of a table without statistics the planner
# would expect "reason IS NULL" of one row in two hundred; of an expression it expects it of every second.
APPLY_TABLE = _apply(
    "bongsu_decided",
    "CASE WHEN n.reason IS NULL THEN true END",
    lambda alias: f" AND {alias}.member_id >= $7 AND {alias}.member_id <= $8",
    "NOT MATERIALIZED",
)
