"""Statements of the retention job: delete what is older than it is kept, a bounded number of rows at a time.

No table has an index by age for this: it would cost every insert. Each part goes through its table by a key that follows
the order of time (messages, deliveries, events, runs have such ids), from the oldest row on, looks at a batch of rows and
deletes those that are too old. It stops at the first batch in which nothing is, and whose last row belongs to what is kept.

Locks in one order: the run; then events, or members by id, or those suppressions and deliveries that are not locked.
A notification goes with its finished deliveries. One that still has a delivery to be sent, or that another transaction has
locked, stays until the next run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from bongsu.model.channels import Channel
from bongsu.store.core.locks import lock_members
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import (
    DELIVERY_ID,
    EVENT_ID,
    MESSAGE_ID,
    NOTIFICATION_ID,
    Dialect,
    Row,
    Statement,
    Table,
    Transaction,
    as_uuid,
    in_both,
    same,
)
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.members.channel_bits import BITS

# JSON: where a part goes on from.
Cursor = Any

_IN_APP = BITS[Channel.IN_APP]
_FINISHED = "('SUCCESS', 'FAIL', 'UNKNOWN', 'CANCELLED')"
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Deleted:
    """What one batch deleted, by kind, and where the next begins. None: nothing is left to look at."""

    after: Cursor
    counts: Counter[str] = field(default_factory=Counter)


class NotificationKey(NamedTuple):
    member_id: str
    notification_id: int


# --- notifications ----------------------------------------------------------------------------------------------------

_KEY = {"member_id": "text", "notification_id": "bigint"}

# The next $3 notifications behind message $1, member $2, by the unique index of both, and whether each is older than $4.
# Locks nothing.
FIND_NOTIFICATIONS = same("""
    SELECT n.message_id, n.member_id, n.notification_id, n.created_at < $4 AS is_old
    FROM bongsu_notifications AS n
    WHERE (n.message_id, n.member_id) > ($1, $2) ORDER BY n.message_id, n.member_id LIMIT $3""")

# Whether message $1 is older than $2; no row if it was deleted. Notifications and suppressions are never older than theirs.
_IS_MESSAGE_OLD = same("SELECT created_at < $2 AS is_old FROM bongsu_messages WHERE message_id = $1")

# The deliveries of the notifications given; with $2 those that are finished, else all. Locks them; skips locked ones, so it
# never waits for a dispatcher.
LOCK_DELIVERIES = Statement(
    postgres=f"""
        SELECT one.delivery_id FROM {POSTGRES.table("given", NOTIFICATION_ID, 1)}
        CROSS JOIN LATERAL (
            SELECT d.delivery_id FROM bongsu_deliveries AS d
            WHERE d.notification_id = given.notification_id AND (NOT CAST($2 AS boolean) OR d.status IN {_FINISHED})
            FOR UPDATE SKIP LOCKED) AS one""",
    sqlite=f"""
        SELECT d.delivery_id FROM {SQLITE.table("given", NOTIFICATION_ID, 1)}
        CROSS JOIN bongsu_deliveries AS d INDEXED BY bongsu_deliveries_notification
            ON d.notification_id = given.notification_id
        WHERE NOT $2 OR d.status IN {_FINISHED}""",
)


def _delete(d: Dialect, table: str, ids: Mapping[str, str]) -> str:
    """Delete the rows of the ids given."""
    (column,) = ids
    return f"DELETE FROM {table} WHERE {column} IN (SELECT given.{column} FROM {d.table('given', ids, 1)})"


# Delete the attempts of the deliveries given, whose rows are locked.
DELETE_ATTEMPTS = in_both(lambda d: _delete(d, "bongsu_attempts", DELIVERY_ID))
# Delete the deliveries given. Their rows are locked.
DELETE_DELIVERIES = in_both(lambda d: _delete(d, "bongsu_deliveries", DELIVERY_ID))

# Delete those of the notifications given that have no delivery; return whose they were and what decides whether they were
# unread: SQLite 3.40 computes `read_at IS NULL` wrongly here. Run under the members' locks.
DELETE_NOTIFICATIONS = Statement(
    postgres=f"""
        DELETE FROM bongsu_notifications AS n USING {POSTGRES.table("given", _KEY, 1)}
        WHERE n.member_id = given.member_id AND n.notification_id = given.notification_id
          AND (SELECT 1 FROM bongsu_deliveries AS d WHERE d.notification_id = n.notification_id LIMIT 1) IS NULL
        RETURNING n.notification_id, n.member_id, n.message_id, n.read_at, n.channels""",
    sqlite=f"""
        DELETE FROM bongsu_notifications
        WHERE notification_id IN (SELECT given.notification_id FROM {SQLITE.table("given", _KEY, 1)})
          AND (SELECT 1 FROM bongsu_deliveries AS d INDEXED BY bongsu_deliveries_notification
               WHERE d.notification_id = bongsu_notifications.notification_id LIMIT 1) IS NULL
        RETURNING notification_id, member_id, message_id, read_at, channels""",
)

# Delete the digests of the notifications given. Run under the members' locks.
DELETE_DIGESTS = in_both(lambda d: _delete(d, "bongsu_digests", NOTIFICATION_ID))
# Delete what these digests have gathered. Run under the members' locks.
DELETE_ENTRIES = in_both(lambda d: _delete(d, "bongsu_digest_entries", NOTIFICATION_ID))

_UNREAD = {"member_id": "text", "unread": "integer"}

# Lower the unread counts of the members given by so many each. Run under their locks.
LOWER_UNREAD = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_members SET unread = bongsu_members.unread - given.unread
    FROM {d.table("given", _UNREAD, 1)} WHERE bongsu_members.member_id = given.member_id"""
    )
)


async def delete_notifications(tx: Transaction, after: Cursor, cutoff: datetime, limit: int) -> Deleted:
    """Look at the next notifications; delete the old ones with their finished deliveries."""
    rows = await tx.fetch(FIND_NOTIFICATIONS(*(after or (-1, "")), limit, cutoff))
    counts: Counter[str] = Counter()
    if old := [NotificationKey(row["member_id"], row["notification_id"]) for row in rows if row["is_old"]]:
        await tx.fetch(lock_members(key.member_id for key in old))
        counts["deliveries"] = await delete_deliveries_of(tx, old, only_finished=True)
        counts["notifications"] = len(await delete_without_deliveries(tx, old))
    return Deleted(await _go_on(tx, rows, cutoff, limit, is_any_old=bool(old)), counts)


async def delete_deliveries_of(tx: Transaction, keys: Sequence[NotificationKey], *, only_finished: bool) -> int:
    """Delete deliveries of these notifications, but none that another transaction has locked. Return how many."""
    given = Table.of(NOTIFICATION_ID, (key.notification_id for key in keys))
    rows = await tx.fetch(LOCK_DELIVERIES(given, only_finished))
    await _delete_locked(tx, rows)
    return len(rows)


async def delete_without_deliveries(tx: Transaction, keys: Sequence[NotificationKey]) -> Sequence[Row]:
    """Delete those of these notifications that have no delivery, under their members' locks. Return their rows."""
    deleted = await tx.fetch(DELETE_NOTIFICATIONS(Table(_KEY, keys)))
    if unread := Counter(row["member_id"] for row in deleted if row["read_at"] is None and row["channels"] & _IN_APP):
        await tx.execute(LOWER_UNREAD(Table(_UNREAD, sorted(unread.items()))))
    if deleted:
        deleted_ids = Table.of(NOTIFICATION_ID, (row["notification_id"] for row in deleted))
        await tx.execute(DELETE_DIGESTS(deleted_ids), DELETE_ENTRIES(deleted_ids))
    return deleted


async def _delete_locked(tx: Transaction, rows: Sequence[Row]) -> None:
    if rows:
        given = Table.of(DELIVERY_ID, (row["delivery_id"] for row in rows))
        await tx.execute(DELETE_ATTEMPTS(given), DELETE_DELIVERIES(given))


async def _go_on(tx: Transaction, rows: Sequence[Row], cutoff: datetime, limit: int, *, is_any_old: bool) -> Cursor:
    """Behind the last row, unless everything behind it is kept: nothing of this batch was old, nor is the last message."""
    if len(rows) < limit:
        return None
    last = rows[-1]
    if not is_any_old:
        found = await tx.fetch(_IS_MESSAGE_OLD(last["message_id"], cutoff))
        if found and not found[0]["is_old"]:
            return None
    return [last["message_id"], last["member_id"]]


# --- suppressions -----------------------------------------------------------------------------------------------------

_SUPPRESSION = {"message_id": "bigint", "member_id": "text"}

# The next $3 suppressions behind message $1, member $2, by their key, and whether each is older than $4. Locks nothing.
FIND_SUPPRESSIONS = same("""
    SELECT s.message_id, s.member_id, s.created_at < $4 AS is_old
    FROM bongsu_suppressions AS s
    WHERE (s.message_id, s.member_id) > ($1, $2) ORDER BY s.message_id, s.member_id LIMIT $3""")

# Delete the suppressions given, each by its key. Locks them; skips locked ones: an erasure deletes them in another order.
DELETE_SUPPRESSIONS = Statement(
    postgres=f"""
        WITH free AS MATERIALIZED (
            SELECT one.message_id, one.member_id FROM {POSTGRES.table("given", _SUPPRESSION, 1)}
            CROSS JOIN LATERAL (
                SELECT s.message_id, s.member_id FROM bongsu_suppressions AS s
                WHERE s.message_id = given.message_id AND s.member_id = given.member_id FOR UPDATE SKIP LOCKED) AS one)
        DELETE FROM bongsu_suppressions AS s USING free
        WHERE s.message_id = free.message_id AND s.member_id = free.member_id""",
    sqlite=f"""
        DELETE FROM bongsu_suppressions
        WHERE (message_id, member_id) IN (
            SELECT given.message_id, given.member_id FROM {SQLITE.table("given", _SUPPRESSION, 1)})""",
)


async def delete_suppressions(tx: Transaction, after: Cursor, cutoff: datetime, limit: int) -> Deleted:
    rows = await tx.fetch(FIND_SUPPRESSIONS(*(after or (-1, "")), limit, cutoff))
    old = [(row["message_id"], row["member_id"]) for row in rows if row["is_old"]]
    deleted = sum(await tx.execute(DELETE_SUPPRESSIONS(Table(_SUPPRESSION, old)))) if old else 0
    return Deleted(await _go_on(tx, rows, cutoff, limit, is_any_old=bool(old)), Counter(suppressions=deleted))


# --- deliveries -------------------------------------------------------------------------------------------------------

# The next $2 deliveries behind $1, by id: whether each was finished before $3, and whether it was made after that. Locks
# nothing.
FIND_DELIVERIES = same(f"""
    SELECT d.delivery_id, d.status IN {_FINISHED} AND d.finished_at < $3 AS is_old, d.created_at >= $3 AS is_new
    FROM bongsu_deliveries AS d WHERE d.delivery_id > $1 ORDER BY d.delivery_id LIMIT $2""")

# Those of the deliveries given that are finished since before $2. Locks them; skips locked ones.
LOCK_FINISHED = Statement(
    postgres=f"""
        SELECT one.delivery_id FROM {POSTGRES.table("given", DELIVERY_ID, 1)}
        CROSS JOIN LATERAL (
            SELECT d.delivery_id FROM bongsu_deliveries AS d
            WHERE d.delivery_id = given.delivery_id AND d.status IN {_FINISHED} AND d.finished_at < $2
            FOR UPDATE SKIP LOCKED) AS one""",
    sqlite=f"""
        SELECT d.delivery_id FROM {SQLITE.table("given", DELIVERY_ID, 1)}
        CROSS JOIN bongsu_deliveries AS d ON d.delivery_id = given.delivery_id
        WHERE d.status IN {_FINISHED} AND d.finished_at < $2""",
)


async def delete_deliveries(tx: Transaction, after: Cursor, cutoff: datetime, limit: int) -> Deleted:
    """Look at the next deliveries; delete those that are finished and old, with their attempts."""
    rows = await tx.fetch(FIND_DELIVERIES(-1 if after is None else after, limit, cutoff))
    old = [row["delivery_id"] for row in rows if row["is_old"]]
    locked = await tx.fetch(LOCK_FINISHED(Table.of(DELIVERY_ID, old), cutoff)) if old else []
    await _delete_locked(tx, locked)
    is_end = len(rows) < limit or (not old and rows[-1]["is_new"])
    return Deleted(None if is_end else rows[-1]["delivery_id"], Counter(deliveries=len(locked)))


# --- events and their messages ----------------------------------------------------------------------------------------


# The next $3 events behind time $1, event $2, that were made before $4, and whether each was finished before it. By the
# index of that order. Locks nothing.
FIND_EVENTS = in_both(
    lambda d: (
        f"""
    SELECT e.event_id, e.created_at, e.status <> 'PENDING' AND coalesce(e.finished_at < $4, true) AS is_old
    FROM bongsu_events AS e {d.index_hint("bongsu_events_created")}
    WHERE (e.created_at, e.event_id) > ($1, $2) AND e.created_at < $4 ORDER BY e.created_at, e.event_id LIMIT $3"""
    )
)

# Those of the events given that are finished. Locks them; skips locked ones, which are being replayed or cancelled.
LOCK_EVENTS = Statement(
    postgres=f"""
        SELECT one.event_id FROM {POSTGRES.table("given", EVENT_ID, 1)}
        CROSS JOIN LATERAL (
            SELECT e.event_id FROM bongsu_events AS e
            WHERE e.event_id = given.event_id AND e.status <> 'PENDING' FOR UPDATE SKIP LOCKED) AS one""",
    sqlite=f"""
        SELECT e.event_id FROM {SQLITE.table("given", EVENT_ID, 1)}
        CROSS JOIN bongsu_events AS e ON e.event_id = given.event_id WHERE e.status <> 'PENDING'""",
)

# Delete the messages of the events given that have no notification or suppression; return their ids. The events
# are finished and locked, so that no member is notified of them meanwhile.
DELETE_MESSAGES = Statement(
    postgres=f"""
        DELETE FROM bongsu_messages AS m USING {POSTGRES.table("given", EVENT_ID, 1)}
        WHERE m.event_id = given.event_id
          AND (SELECT 1 FROM bongsu_notifications AS n WHERE n.message_id = m.message_id LIMIT 1) IS NULL
          AND (SELECT 1 FROM bongsu_suppressions AS s WHERE s.message_id = m.message_id LIMIT 1) IS NULL
        RETURNING m.message_id""",
    sqlite=f"""
        DELETE FROM bongsu_messages
        WHERE event_id IN (SELECT given.event_id FROM {SQLITE.table("given", EVENT_ID, 1)})
          AND (SELECT 1 FROM bongsu_notifications AS n WHERE n.message_id = bongsu_messages.message_id LIMIT 1) IS NULL
          AND (SELECT 1 FROM bongsu_suppressions AS s WHERE s.message_id = bongsu_messages.message_id LIMIT 1) IS NULL
        RETURNING message_id""",
)

# Delete the counts of the messages given.
DELETE_COUNTS = in_both(lambda d: _delete(d, "bongsu_message_counts", MESSAGE_ID))

# Delete those of the events given that have no message. Their rows are locked.
DELETE_EVENTS = in_both(
    lambda d: (
        f"""
    DELETE FROM bongsu_events
    WHERE event_id IN (SELECT given.event_id FROM {d.table("given", EVENT_ID, 1)})
      AND (SELECT 1 FROM bongsu_messages AS m WHERE m.event_id = bongsu_events.event_id LIMIT 1) IS NULL"""
    )
)


async def delete_events(tx: Transaction, after: Cursor, cutoff: datetime, limit: int) -> Deleted:
    """Look at the next old events: delete the messages that no member has, and the events that have no message. An event
    stays as long as its messages: their key is the event's id."""
    begin = (_FIRST, UUID(int=0)) if after is None else (datetime.fromisoformat(after[0]), UUID(after[1]))
    rows = await tx.fetch(FIND_EVENTS(*begin, limit, cutoff))
    counts: Counter[str] = Counter()
    if old := [as_uuid(row["event_id"]) for row in rows if row["is_old"]]:
        locked = await lock_finished_events(tx, old)
        counts["messages"] = await delete_unused_messages(tx, locked)
        (counts["events"],) = await tx.execute(DELETE_EVENTS(Table.of(EVENT_ID, locked)))
    if len(rows) < limit:
        return Deleted(None, counts)
    last = tx.dialect.time(rows[-1]["created_at"])
    return Deleted([last.isoformat(), str(rows[-1]["event_id"])], counts)


async def lock_finished_events(tx: Transaction, event_ids: Sequence[UUID]) -> list[UUID]:
    """Lock those of these events that are finished and that no other transaction has locked."""
    return [as_uuid(row["event_id"]) for row in await tx.fetch(LOCK_EVENTS(Table.of(EVENT_ID, event_ids)))]


async def delete_unused_messages(tx: Transaction, event_ids: Sequence[UUID]) -> int:
    """Delete the messages of these locked events that no member has; return how many."""
    deleted = await tx.fetch(DELETE_MESSAGES(Table.of(EVENT_ID, event_ids)))
    await tx.execute(DELETE_COUNTS(Table.of(MESSAGE_ID, (row["message_id"] for row in deleted))))
    return len(deleted)


# --- runs and the audit trail -----------------------------------------------------------------------------------------

_RUN_ID = {"run_id": "bigint"}

# The next $2 runs behind $1, by id, and whether each is old: finished before $3 if the clock began it, else before $4, and
# not the newest of its job, from which the clock knows which slots it has missed. Locks nothing.
FIND_RUNS = same("""
    SELECT r.run_id, coalesce(r.finished_at < CASE WHEN r.slot IS NULL THEN CAST($4 AS timestamptz) ELSE $3 END, false)
        AND r.run_id < (SELECT max(x.run_id) FROM bongsu_runs AS x WHERE x.job = r.job) AS is_old
    FROM bongsu_runs AS r WHERE r.run_id > $1 ORDER BY r.run_id LIMIT $2""")

# Delete the runs given. They are finished, and so not locked.
DELETE_RUNS = in_both(lambda d: _delete(d, "bongsu_runs", _RUN_ID))

# Delete up to $2 cancellations that were finished before $1 and whose events were deleted. Locks them; skips locked ones.
DELETE_CANCELLATIONS = in_both(
    lambda d: (
        f"""
    DELETE FROM bongsu_cancellations WHERE event_id IN (
        SELECT c.event_id FROM bongsu_cancellations AS c
        WHERE c.finished_at < $1 AND (SELECT 1 FROM bongsu_events AS e WHERE e.event_id = c.event_id) IS NULL
        LIMIT $2 {d.skip_locked})"""
    )
)


async def delete_runs(tx: Transaction, after: Cursor, cutoff: datetime, audit_cutoff: datetime, limit: int) -> Deleted:
    """Look at the next runs: those of slots are kept since `cutoff`, those that were requested since `audit_cutoff`."""
    rows = await tx.fetch(FIND_RUNS(-1 if after is None else after, limit, cutoff, audit_cutoff))
    old = [row["run_id"] for row in rows if row["is_old"]]
    deleted = sum(await tx.execute(DELETE_RUNS(Table.of(_RUN_ID, old)))) if old else 0
    return Deleted(None if len(rows) < limit else rows[-1]["run_id"], Counter(runs=deleted))


async def delete_cancellations(tx: Transaction, cutoff: datetime, limit: int) -> Deleted:
    (deleted,) = await tx.execute(DELETE_CANCELLATIONS(cutoff, limit))
    return Deleted(None if deleted < limit else True, Counter(cancellations=deleted))
