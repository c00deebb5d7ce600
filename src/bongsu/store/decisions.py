"""The statements of a decision: words, verdict on each member, inbox rows, ways out, and who got nothing and why.

A step goes through `bongsu_judged`, a table with a row for each member of the audience at hand. One statement locks the
members' rows in the order of their ids and decides. The others copy from it. So nothing is asked or written person by
person, and both databases do the same. It is a temporary table; PostgreSQL, where emptying one costs more than all that is
said to a few members, gets few of them back as it has told them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Channel, Reason
from bongsu.store.databases import dialect_named
from bongsu.store.dialect import Binder, Dialect, Statement

# Channels as bits, in an order that must never change: it is stored.
BITS = {Channel.PUSH: 1, Channel.SMS: 2, Channel.EMAIL: 4, Channel.IN_APP: 8}
ALL_BITS = sum(BITS.values())
_PUSH, _SMS, _EMAIL, _IN_APP = (BITS[one] for one in (Channel.PUSH, Channel.SMS, Channel.EMAIL, Channel.IN_APP))


async def rows_of(tx: AsyncConnection, statement: str, binder: Binder | None = None) -> Sequence[Sequence[Any]]:
    return await dialect_named(tx.dialect.name).rows(tx, statement, tuple(binder.parameters) if binder else ())


async def run(tx: AsyncConnection, statement: str, binder: Binder | None = None) -> int:
    """How many rows it has touched."""
    return await dialect_named(tx.dialect.name).run(tx, statement, tuple(binder.parameters) if binder else ())


def as_bits(channels: Iterable[Channel]) -> int:
    return sum(BITS[channel] for channel in set(channels))


# --- words ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """What one notice of one event says in one language, and what holds for all who are told."""

    message_id: int
    event_id: UUID
    notice: int
    locale: str
    type: str
    subject: str
    title: str
    body: str
    ref_id: str | None
    data: str
    channels: int
    lane: int
    guarantee: str
    is_critical: bool
    created_at: datetime
    expires_at: datetime | None = None
    # When somebody was told it last; None as long as nobody was.
    told_at: datetime | None = None


_MESSAGE = {
    "message_id": "bigint",
    "event_id": "uuid",
    "notice": "integer",
    "locale": "text",
    "type": "text",
    "subject": "text",
    "title": "text",
    "body": "text",
    "ref_id": "text",
    "data": "text",
    "channels": "integer",
    "lane": "integer",
    "guarantee": "text",
    "is_critical": "boolean",
    "created_at": "timestamptz",
    "expires_at": "timestamptz",
    "told_at": "timestamptz",
}


def adding(dialect: Dialect, messages: Sequence[Message]) -> Statement:
    binder = Binder(dialect)
    names = ", ".join(_MESSAGE)
    rows = [tuple(getattr(message, column) for column in _MESSAGE) for message in messages]
    insert = f"INSERT INTO bongsu_messages ({names}) SELECT {names} FROM {binder.table(_MESSAGE, rows)} WHERE true"
    return insert, tuple(binder.parameters)


def marking_told(dialect: Dialect, message_ids: Sequence[int], now: datetime) -> Statement:
    """Somebody was told these just now: who looks for a duplicate looks by that, however long ago the first was told."""
    binder = Binder(dialect)
    given = binder.table({"message_id": "bigint", "now": "timestamptz"}, [(one, now) for one in message_ids])
    # Never back: the clocks of two workers may differ.
    update = f"""
        UPDATE bongsu_messages SET told_at = given.now FROM {given} WHERE bongsu_messages.message_id = given.message_id
          AND (bongsu_messages.told_at IS NULL OR bongsu_messages.told_at < given.now)"""
    return update, tuple(binder.parameters)


async def product_names(tx: AsyncConnection, product_ids: Sequence[str]) -> dict[str, str]:
    binder = Binder(dialect_named(tx.dialect.name))
    given = binder.table({"product_id": "text"}, [(one,) for one in product_ids])
    found = await rows_of(
        tx, f"SELECT p.product_id, p.name FROM {given} JOIN bongsu_products p ON p.product_id = given.product_id", binder
    )
    return {row[0]: row[1] for row in found}


# --- the verdict ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """What makes a notice a duplicate of another, and since when."""

    place: int
    type: str
    subject: str
    since: datetime


_KEY = {"place": "integer", "type": "text", "subject": "text", "since": "timestamptz"}


def recent_messages(binder: Binder, keys: Sequence[Key], own: Sequence[int]) -> str:
    """A SELECT of messages that somebody was told about the same thing since then, other than the notices' own.

    The caller has the keys locked. Others may have heard it earlier: the notifications themselves decide.
    """
    given = binder.table(_KEY, [(one.place, one.type, one.subject, one.since) for one in keys])
    others = f"""
        SELECT given.place, r.message_id, given.since FROM {given}
        CROSS JOIN bongsu_messages r {binder.dialect.by_index("bongsu_messages_recent")}
        WHERE r.type = given.type AND r.subject = given.subject AND r.told_at > given.since"""
    if own:
        ids = binder.table({"message_id": "bigint"}, [(one,) for one in own], "own")
        others += f" AND r.message_id NOT IN (SELECT own.message_id FROM {ids})"
    return others


def beginning(dialect: Dialect) -> Sequence[str]:
    """What a step's transaction begins with."""
    return _STEPS_ON_POSTGRES if dialect.name == "postgresql" else _JUDGED_ON_SQLITE


# Steps are many, and their statements are written so that there is one good plan for each: to look for it anew every time
# would take as long as the statement itself.
_STEPS_ON_POSTGRES = ["SET LOCAL plan_cache_mode = force_generic_plan"]
_JUDGED_COLUMNS = """
    place integer, member_id text COLLATE "C", address tid, message_id bigint, notification_id bigint, channels integer,
    lane integer, due timestamptz, now timestamptz, day integer, is_critical boolean, reason text"""
# The temporary table is there, and is empty: it belongs to the connection. The rows of many members are read side by side
# more than one by one, which is what the planner's own default is made for.
_JUDGED_ON_POSTGRES = f"""
    SET LOCAL random_page_cost = 4;
    CREATE TEMPORARY TABLE IF NOT EXISTS bongsu_judged ({_JUDGED_COLUMNS}) ON COMMIT DELETE ROWS"""
_PLANNED_BY_VALUES = "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL random_page_cost = 1.1"
_JUDGED_ON_SQLITE = [
    """
    CREATE TEMPORARY TABLE IF NOT EXISTS bongsu_judged (
        place integer, member_id text, address integer, message_id integer, notification_id integer PRIMARY KEY,
        channels integer, lane integer, due integer, now integer, day integer, is_critical boolean, reason text)""",
    "DELETE FROM bongsu_judged",
    # New rows are numbered from the last one on: this one, which is nobody's, makes them notification ids.
    """
    INSERT INTO bongsu_judged (notification_id)
    SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'bongsu_notifications'""",
]
# When they have their numbers.
_WITHOUT_NOBODY = "DELETE FROM bongsu_judged WHERE notification_id = (SELECT min(notification_id) FROM bongsu_judged)"


@dataclass(frozen=True)
class Profile:
    """What of a member decides words, day and quiet hours."""

    locale: str = ""
    timezone: str = ""
    quiet_start: int = -1
    quiet_end: int = -1


@dataclass(frozen=True)
class Case:
    """All that a verdict depends on besides the members: tables of a few rows each, given with the statement."""

    # place, type, channels, is_critical, lane, now
    notices: Sequence[tuple[int, str, int, bool, int, datetime]]
    # the profile's four, the day it is for such members, and when what leaves the house may do so
    profiles: Sequence[tuple[str, str, int, int, int, datetime]]
    # place, the member's locale, message
    words: Sequence[tuple[int, str, int]]
    # what makes which of them a duplicate, and the messages that some have written already
    keys: Sequence[Key]
    own: Sequence[int]
    daily_limit: int


_NOTICE = {"place": "integer", "type": "text", "channels": "integer", "is_critical": "boolean", "lane": "integer",
           "now": "timestamptz"}  # fmt: skip
_PROFILE = {"locale": "text", "timezone": "text", "quiet_start": "integer", "quiet_end": "integer", "day": "integer",
            "due": "timestamptz"}  # fmt: skip
_WORDS = {"place": "integer", "locale": "text", "message_id": "bigint"}

# What can be pushed to.
USABLE = "d.status = 'ACTIVE' AND d.has_consent"
# Judged in vain: the member, or a profile like the member's, was not known to who asked.
UNPREPARED = "?"
# So many members are worth a plan of their own.
MANY = 1_000


@dataclass(frozen=True)
class Count:
    """Of those a notice is about, so many had the same fate; and the first and last of them."""

    place: int
    message_id: int | None
    reason: str | None
    count: int
    first: str
    last: str


@dataclass(frozen=True)
class Judged:
    """What was decided: the counts, and the rows as the database has told them where they are not in the temporary table."""

    counts: Sequence[Count]
    told: str | None = None

    @property
    def table(self) -> Statement | None:
        """The part of a WITH by which other statements read those rows as they would read the temporary table's."""
        if self.told is None:
            return None
        rows = f"json_to_recordset(CAST($1 AS json)) AS told({_JUDGED_COLUMNS})"
        return f"bongsu_judged AS MATERIALIZED (SELECT * FROM {rows})", (self.told,)


async def judge(tx: AsyncConnection, audience: Callable[[Binder], str], case: Case, *, is_brief: bool) -> Judged:
    """Decide for each member of the audience, a SELECT of (place, member_id), and keep their rows locked from here on.

    Whoever does not want it, cannot be reached, has heard it, or has heard enough today gets nothing, for the first of these
    reasons that holds. A member may stand there for several notices; the earlier one is counted first. It is brief if there
    are few of them.
    """
    dialect = dialect_named(tx.dialect.name)
    binder = Binder(dialect)
    verdicts, verdict = _judge_statement(binder, audience, case)
    if dialect.writes_within and is_brief:
        [(told,)] = await rows_of(tx, f"{verdicts} SELECT CAST(json_agg(told) AS text) FROM ({verdict}) AS told", binder)
        return Judged(_count(orjson.loads(told)), told)
    judging: list[Statement] = [(f"{verdicts} INSERT INTO bongsu_judged {verdict}", tuple(binder.parameters))]
    if dialect.name == "sqlite":
        judging.append((_WITHOUT_NOBODY, ()))
    else:
        judging.insert(0, (_JUDGED_ON_POSTGRES, ()))
    if len(case.words) == 1:
        # One notice in one language: mostly all have the same fate, and to see that takes no sorting.
        seen = "SELECT count(*), count(reason), min(member_id), max(member_id) FROM bongsu_judged"
        [(count, reasons, first, last)] = await dialect.rows(tx, seen, (), after=judging)
        if count and not reasons:
            place, _, message_id = case.words[0]
            return Judged([Count(place, message_id, None, count, first, last)])
        judging = []
    by = "place, message_id, reason"
    counting = f"SELECT {by}, count(*), min(member_id), max(member_id) FROM bongsu_judged GROUP BY {by}"
    return Judged([Count(*row) for row in await dialect.rows(tx, counting, (), after=judging)])


def _count(rows: Iterable[Mapping[str, Any]]) -> list[Count]:
    """The same of rows in hand."""
    members: dict[tuple[int, int | None, str | None], list[str]] = {}
    for row in rows:
        members.setdefault((row["place"], row["message_id"], row["reason"]), []).append(row["member_id"])
    return [Count(*fate, len(ids), min(ids), max(ids)) for fate, ids in members.items()]


def _judge_statement(binder: Binder, audience: Callable[[Binder], str], case: Case) -> tuple[str, str]:
    """What a statement begins with that judges, and the SELECT of the verdicts behind it."""
    dialect = binder.dialect
    # In the order of the parameters, which SQLite counts as they come.
    select = audience(binder)
    notice = binder.table(_NOTICE, case.notices)
    profile = binder.table(_PROFILE, case.profiles)
    words = binder.table(_WORDS, case.words)
    recent = f"recent AS MATERIALIZED ({recent_messages(binder, case.keys, case.own)})," if case.keys else ""
    # Sub-selects with a LIMIT, so that PostgreSQL looks by the index for each row instead of reading the other table whole.
    heard = """(SELECT count(*) FROM recent) > 0 AND (
        SELECT 1 FROM recent CROSS JOIN bongsu_notifications n
        WHERE recent.place = l.place AND n.message_id = recent.message_id AND n.member_id = l.member_id
          AND n.created_at > recent.since LIMIT 1) IS NOT NULL"""
    device = f"(SELECT 1 FROM bongsu_devices d WHERE d.member_id = l.member_id AND {USABLE} LIMIT 1) IS NOT NULL"
    wanted = f"l.channels & coalesce(p.channels, {ALL_BITS})"
    ways = f"{wanted} & l.addresses"
    columns = (dialect.address, "is_enabled", "capped_day", "capped_count", "locale", "timezone", "quiet_start", "quiet_end",
               "phone", "email")  # fmt: skip
    member = dialect.look_up("bongsu_members", "m", "a", ["member_id"], columns, locked=True)
    wish = dialect.look_up("bongsu_preferences", "p", "l", ["member_id", "type"], ["is_enabled", "channels"])
    counted = "CASE WHEN l.capped_day >= l.day THEN l.capped_count ELSE 0 END"
    # One notice says it to a member once; several count one after the other, those that nothing else speaks against.
    enough, reason = f"NOT l.is_critical AND {counted} >= {case.daily_limit}", "reason"
    if len(case.notices) > 1:
        rank = "row_number() OVER (PARTITION BY member_id, reason IS NULL AND NOT is_critical ORDER BY place)"
        enough, reason = (
            "false",
            f"""CASE WHEN reason IS NULL AND NOT is_critical AND counted + {rank} > {case.daily_limit}
                    THEN '{Reason.RATE_LIMITED}' ELSE reason END""",
        )
    # Whatever the plan, members are locked in the order of `a`: the look-up of each depends on it.
    order = dialect.in_lock_order + (", place" if dialect.in_lock_order and len(case.notices) > 1 else "")
    verdicts = f"""
        WITH locked AS {dialect.at_once} (
            SELECT a.place, a.member_id, m.{dialect.address} AS address, m.is_enabled, m.capped_day, m.capped_count,
                   coalesce(m.locale, '') AS locale, coalesce(m.timezone, '') AS timezone,
                   coalesce(m.quiet_start, -1) AS quiet_start, coalesce(m.quiet_end, -1) AS quiet_end,
                   {_PUSH + _IN_APP} + CASE WHEN m.phone IS NULL THEN 0 ELSE {_SMS} END
                                     + CASE WHEN m.email IS NULL THEN 0 ELSE {_EMAIL} END AS addresses
            FROM (SELECT * FROM ({select}) AS whom {order}) AS a
            {member}),
        notice AS MATERIALIZED (SELECT * FROM {notice}),
        profile AS MATERIALIZED (SELECT * FROM {profile}),
        words AS MATERIALIZED (SELECT * FROM {words}),
        {recent}
        situation AS MATERIALIZED (
            SELECT notice.*, profile.locale, profile.timezone, profile.quiet_start, profile.quiet_end, profile.day,
                   CASE WHEN notice.is_critical THEN notice.now ELSE profile.due END AS due, words.message_id
            FROM notice CROSS JOIN profile LEFT JOIN words ON words.place = notice.place AND words.locale = profile.locale),
        known AS (
            SELECT l.*, s.type, s.channels, s.is_critical, s.lane, s.now, s.day, s.due, s.message_id
            FROM locked l LEFT JOIN situation s
            ON s.place = l.place AND s.locale = l.locale AND s.timezone = l.timezone
               AND s.quiet_start = l.quiet_start AND s.quiet_end = l.quiet_end),
        weighed AS (
            SELECT l.place, l.member_id, l.address, l.message_id, {ways} AS channels, l.lane, l.due,
                   l.now, l.day, l.is_critical, {counted} AS counted,
                   CASE WHEN l.address IS NULL OR l.message_id IS NULL THEN '{UNPREPARED}'
                        WHEN NOT (l.is_critical OR l.is_enabled) OR NOT coalesce(p.is_enabled, true)
                             THEN '{Reason.USER_OPTED_OUT}'
                        WHEN {ways} <= {_PUSH} AND ({ways} = 0 OR NOT ({device}))
                             THEN CASE WHEN {wanted} = 0 THEN '{Reason.USER_OPTED_OUT}' ELSE '{Reason.NO_ADDRESS}' END
                        WHEN {heard if case.keys else "false"} THEN '{Reason.DUPLICATE}'
                        WHEN {enough} THEN '{Reason.RATE_LIMITED}' END AS reason
            FROM known l {wish})"""
    verdict = f"""
        SELECT place, member_id, address, message_id, {dialect.next_notification} AS notification_id, channels, lane, due,
               now, day, is_critical, {reason} AS reason
        FROM weighed"""
    return verdicts, verdict


async def find_unprepared(tx: AsyncConnection, judged: Judged) -> tuple[list[str], list[Profile]]:
    """Members of the audience who are not known yet, and the profiles of those who are."""
    dialect = dialect_named(tx.dialect.name)
    table, parameters = judged.table or ("", ())
    reading = f"WITH {table}" if table else ""
    missing = f"{reading} SELECT DISTINCT member_id FROM bongsu_judged WHERE address IS NULL"
    unknown = await dialect.rows(tx, missing, parameters)
    profiles = await dialect.rows(
        tx,
        f"""
        {reading}
        SELECT DISTINCT coalesce(m.locale, ''), coalesce(m.timezone, ''), coalesce(m.quiet_start, -1),
               coalesce(m.quiet_end, -1)
        FROM bongsu_judged j JOIN bongsu_members m ON m.member_id = j.member_id""",
        parameters,
    )
    return [row[0] for row in unknown], [Profile(*row) for row in profiles]


# --- what follows from it ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """What was judged in which case; all channels that any of its notices has; and what writes down the words."""

    case: Case
    judged: Judged
    channels: int
    words: Sequence[Statement]


async def carry_out(tx: AsyncConnection, step: Step | None, others: Sequence[Statement]) -> int:
    """Write what was judged: the members' counts, the inbox, the ways out, words; who got nothing, and why. Others with it.

    Answers how many deliveries there are to be.
    """
    dialect = dialect_named(tx.dialect.name)
    if step is None:
        await dialect.run_together(tx, others)
        return 0
    case, counts = step.case, step.judged.counts
    # One notice has each member once, and then there is nothing to add up.
    counting = [_count_once(dialect, case.notices[0][3], day) for day in sorted({profile[4] for profile in case.profiles})]
    if len(case.notices) > 1:
        counting = [_count_several(dialect)]
    statements: list[Statement] = []
    place_of_deliveries = 0
    if told := sum(one.count for one in counts if one.reason is None):
        between = min(one.first for one in counts), max(one.last for one in counts)
        statements += [(one, ()) for one in (*counting, _ADD_NOTIFICATIONS)]
        statements += _delivery_statements(dialect, step.channels, between if told >= MANY else None)
        place_of_deliveries = len(statements) - 1
    if any(one.reason is not None for one in counts):
        statements.append((_ADD_SUPPRESSIONS, ()))
    statements += (*step.words, *others)
    if sum(one.count for one in counts) < MANY:
        touched = await dialect.run_together(tx, statements, step.judged.table)
    else:
        touched = await dialect.run_all(tx, statements)
    if told and len(case.notices) == 1 and (counted := sum(touched[: len(counting)])) != told:
        raise AssertionError(f"{told} members were to be counted, {counted} were")
    return touched[place_of_deliveries] if told else 0


_ADD_NOTIFICATIONS = """
    INSERT INTO bongsu_notifications (notification_id, member_id, message_id, channels, created_at)
    SELECT notification_id, member_id, message_id, channels, now FROM bongsu_judged WHERE reason IS NULL"""
_ADD_SUPPRESSIONS = """
    INSERT INTO bongsu_suppressions (message_id, member_id, reason, created_at)
    SELECT message_id, member_id, reason, now FROM bongsu_judged WHERE reason IS NOT NULL"""


def _count_once(dialect: Dialect, is_critical: bool, day: int) -> str:
    """One more unread, and one more that day unless it is critical, for those whose day it is.

    Like the next one it is about rows that are ours, and never leaves a day for an earlier one.
    """
    told = f"SELECT address FROM bongsu_judged WHERE reason IS NULL AND day = {day}"
    capped = f"""
        , capped_count = CASE WHEN m.capped_day >= {day} THEN m.capped_count + 1 ELSE 1 END
        , capped_day = CASE WHEN m.capped_day >= {day} THEN m.capped_day ELSE {day} END"""
    return f"UPDATE bongsu_members AS m SET unread = m.unread + 1 {'' if is_critical else capped} {dialect.at_address(told)}"


def _count_several(dialect: Dialect) -> str:
    counted = "CASE WHEN is_critical THEN 0 ELSE 1 END"
    return f"""
        UPDATE bongsu_members AS m
        SET unread = m.unread + told.told,
            capped_count = told.counted + CASE WHEN told.counted = 0 OR m.capped_day >= told.day
                                               THEN m.capped_count ELSE 0 END,
            capped_day = CASE WHEN told.counted = 0 OR m.capped_day >= told.day THEN m.capped_day ELSE told.day END
        FROM (SELECT address, count(*) AS told, sum({counted}) AS counted, max(day) AS day
              FROM bongsu_judged WHERE reason IS NULL GROUP BY address) AS told
        WHERE m.{dialect.address} = told.address"""


def _delivery_statements(dialect: Dialect, channels: int, between: tuple[str, str] | None) -> list[Statement]:
    """One for each way out of the house. The address itself is looked up when it is sent: it may have changed by then.

    Given the first and last of many members, PostgreSQL sees whether their devices lie so close together that reading them
    in a row is quicker than looking each up.
    """
    statements: list[Statement] = []
    binder = Binder(dialect)
    is_told = "j.reason IS NULL"
    if between is not None and dialect.name == "postgresql":
        statements.append((_PLANNED_BY_VALUES, ()))
        # Of a table without statistics it expects one row in two hundred to be NULL, but every other to be true.
        is_told = (
            f"CASE WHEN j.reason IS NULL THEN true END "
            f"AND d.member_id >= {binder.value(between[0])} AND d.member_id <= {binder.value(between[1])}"
        )
    columns = "j.notification_id, j.member_id, j.message_id, {channel}, {device}, j.lane, j.due, j.now"
    push = columns.format(channel=f"'{Channel.PUSH}'", device="d.device_id")
    parts = [
        f"""
        SELECT {push} FROM bongsu_judged j CROSS JOIN bongsu_devices d
        WHERE d.member_id = j.member_id AND {USABLE} AND {is_told} AND j.channels & {_PUSH} <> 0"""
    ]
    for channel, bit in ((Channel.SMS, _SMS), (Channel.EMAIL, _EMAIL)):
        if channels & bit:
            one = columns.format(channel=f"'{channel}'", device="NULL")
            parts.append(f"SELECT {one} FROM bongsu_judged j WHERE j.reason IS NULL AND j.channels & {bit} <> 0")
    insert = f"""
        INSERT INTO bongsu_deliveries
            (notification_id, member_id, message_id, channel, device_id, lane, due, created_at)
        {" UNION ALL ".join(parts)}"""
    return [*statements, (insert, tuple(binder.parameters))]
