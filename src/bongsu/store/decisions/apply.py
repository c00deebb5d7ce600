"""Store what follows from a decision, in its transaction: everything or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from bongsu.model import EventStatus
from bongsu.store import outbox
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import Query, Row, Statement, Table, Transaction, in_both
from bongsu.store.decisions import postgres, sqlite
from bongsu.store.decisions.rows import DECIDED, MESSAGE, MESSAGE_ID, DecisionRows, Message
from bongsu.store.messages.counts import IN_INBOX, MADE, NOTIFIED, add_counts_query
from bongsu.store.outbox import EventResult
from bongsu.store.outbox.rows import CLAIM, CURSOR

APPLY_FEW = Statement(postgres.APPLY_FEW, sqlite="")  # only PostgreSQL has this path
COUNT_ONE_NOTICE = Statement(postgres.COUNT_ONE_NOTICE, sqlite.COUNT_ONE_NOTICE)
COUNT_SEVERAL_NOTICES = Statement(postgres.COUNT_SEVERAL_NOTICES, sqlite.COUNT_SEVERAL_NOTICES)
ADD_DELIVERIES = Statement(postgres.ADD_DELIVERIES, sqlite.ADD_DELIVERIES)
# On PostgreSQL this adds and counts. On SQLite it counts what ADD_DELIVERIES has just added.
ADD_COUNTED_DELIVERIES = Statement(postgres.ADD_COUNTED_DELIVERIES, sqlite.ADD_COUNTED_DELIVERIES)

# Inserts the inbox rows of those who are notified.
ADD_NOTIFICATIONS = Statement(
    postgres="""
        INSERT INTO bongsu_notifications (notification_id, member_id, message_id, channels, created_at)
        SELECT notification_id, member_id, message_id, channels, CAST($1 AS timestamptz)
        FROM bongsu_decided WHERE reason IS NULL""",
    sqlite="""
        INSERT INTO bongsu_notifications (notification_id, member_id, message_id, channels, created_at)
        SELECT notification_id, member_id, message_id, channels, $1
        FROM bongsu_decided WHERE reason IS NULL""",
)

# Inserts the reason for everyone else.
ADD_SUPPRESSIONS = Statement(
    postgres="""
        INSERT INTO bongsu_suppressions (message_id, member_id, reason, created_at)
        SELECT message_id, member_id, reason, CAST($1 AS timestamptz) FROM bongsu_decided WHERE reason IS NOT NULL""",
    sqlite="""
        INSERT INTO bongsu_suppressions (message_id, member_id, reason, created_at)
        SELECT message_id, member_id, reason, $1 FROM bongsu_decided WHERE reason IS NOT NULL""",
)

# Inserts the new messages of a step, with ids drawn before.
ADD_MESSAGES = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_messages ({", ".join(MESSAGE)})
    SELECT {", ".join(MESSAGE)} FROM {d.table("given", MESSAGE, 1)}"""
    )
)

# Sets when a member was last notified of these messages: the dedup window looks by that. Never goes back. Locks those rows.
MARK_USED_AGAIN = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_messages SET last_notified_at = $2
    FROM {d.table("given", MESSAGE_ID, 1)}
    WHERE bongsu_messages.message_id = given.message_id
      AND (bongsu_messages.last_notified_at IS NULL OR bongsu_messages.last_notified_at < $2)"""
    )
)


@dataclass(frozen=True)
class StepChanges:
    """What is stored with a step's decided rows. Claims are (event id, epoch); the transaction has them locked."""

    lease_seconds: float
    new_messages: Sequence[Message] = ()
    # Messages of earlier steps of which more members are notified.
    used_again: Sequence[int] = ()
    finished: Sequence[tuple[UUID, int]] = ()
    cursors: Mapping[tuple[UUID, int], str] = field(default_factory=dict)


async def apply_decision(tx: Transaction, decided: DecisionRows | None, changes: StepChanges) -> int:
    """Store it all: members' counts, inbox, deliveries, suppressions, messages, events. Returns how many deliveries.

    Without decided rows only the events' progress is stored.
    """
    if decided is None:
        if queries := _progress(changes):
            await tx.execute(*queries)
        return 0
    if decided.rows is not None:
        return await _apply_few(tx, decided.rows, decided.inputs.now, changes)
    return await _apply_many(tx, decided, changes)


async def _apply_few(tx: Transaction, rows: Sequence[Row], now: datetime, changes: StepChanges) -> int:
    (applied,) = await tx.fetch(
        APPLY_FEW(
            Table(DECIDED, [tuple(row) for row in rows]),
            Table(MESSAGE, changes.new_messages),
            Table(MESSAGE_ID, [(one,) for one in changes.used_again]),
            Table(CLAIM, changes.finished),
            Table(CURSOR, [(*claim, cursor) for claim, cursor in changes.cursors.items()]),
            now,
            float(changes.lease_seconds),
        )
    )
    return int(applied["deliveries"])


async def _apply_many(tx: Transaction, decided: DecisionRows, changes: StepChanges) -> int:
    notices, now = decided.inputs.notices, decided.inputs.now
    first = min(ids[0] for ids in decided.recipients.values() if ids)
    last = max(ids[-1] for ids in decided.recipients.values() if ids)
    count_members = COUNT_ONE_NOTICE if len(notices) == 1 else COUNT_SEVERAL_NOTICES
    deliveries = (now, reduce(or_, (one.channels for one in notices)), first, last)
    others = [
        ADD_NOTIFICATIONS(now),
        ADD_SUPPRESSIONS(now),
        count_members(first, last),
        *([add_messages_query(changes.new_messages)] if changes.new_messages else []),
        *([_mark_used_again(changes.used_again, now)] if changes.used_again else []),
        *_progress(changes),
    ]
    if not decided.inputs.bulk:
        added, *_ = await tx.execute(ADD_DELIVERIES(*deliveries), *others)
        return added
    made = await _add_counted_deliveries(tx, deliveries)
    await tx.execute(*others, add_counts_query(_counts(decided, made)))
    return sum(made.values())


async def _add_counted_deliveries(tx: Transaction, deliveries: tuple[Any, ...]) -> dict[tuple[int, str], int]:
    """Returns how many by message and channel."""
    if tx.dialect is POSTGRES:
        rows = await tx.fetch(ADD_COUNTED_DELIVERIES(*deliveries))
    else:
        rows = await tx.fetch(ADD_DELIVERIES(*deliveries), ADD_COUNTED_DELIVERIES())
    return {(row["message_id"], row["channel"]): row["count"] for row in rows}


def _counts(decided: DecisionRows, made: Mapping[tuple[int, str], int]) -> Counter[tuple[int, str, str]]:
    """What the step adds to the counts of its messages. Those that are not counted are left out when they are stored."""
    counts = Counter({(message_id, channel, MADE): count for (message_id, channel), count in made.items()})
    for one in decided.counts:
        if one.message_id is not None:
            counts[one.message_id, "", one.reason or NOTIFIED] += one.recipients
            counts[one.message_id, "", IN_INBOX] += one.in_inbox
    return counts


def _progress(changes: StepChanges) -> list[Query]:
    queries = []
    if changes.finished:
        queries.append(outbox.record_query([EventResult(*claim, EventStatus.DONE) for claim in changes.finished]))
    if changes.cursors:
        queries.append(outbox.save_cursors_query(changes.cursors, changes.lease_seconds))
    return queries


def add_messages_query(messages: Sequence[Message]) -> Query:
    return ADD_MESSAGES(Table(MESSAGE, messages))


def _mark_used_again(message_ids: Sequence[int], now: datetime) -> Query:
    return MARK_USED_AGAIN(Table(MESSAGE_ID, [(one,) for one in message_ids]), now)
