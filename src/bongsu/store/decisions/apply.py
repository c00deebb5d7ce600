"""Store what follows from a decision, in its transaction: everything or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from bongsu.model import EventStatus
from bongsu.store import outbox
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import MESSAGE_ID, Query, Row, Table, Transaction, only_postgres, only_sqlite
from bongsu.store.decisions import postgres, sqlite
from bongsu.store.decisions.decide import CREATE_DECIDED, PREPARE_DECIDED
from bongsu.store.decisions.messages import add_messages_query, mark_used_again_query
from bongsu.store.decisions.rows import DECIDED, MESSAGE, DecisionRows, Message
from bongsu.store.messages.counts import IN_INBOX, MADE, NOTIFIED, add_counts_query
from bongsu.store.outbox import EventResult
from bongsu.store.outbox.claims import results_table
from bongsu.store.outbox.progress import cursors_table

# On PostgreSQL all is one statement, over decided rows that are given or that are in bongsu_decided.
APPLY_GIVEN = only_postgres(postgres.APPLY_GIVEN)
APPLY_TABLE = only_postgres(postgres.APPLY_TABLE)

# On SQLite a statement changes one table.
GIVE_DECIDED = only_sqlite(sqlite.GIVE_DECIDED)
ADD_NOTIFICATIONS = only_sqlite(sqlite.ADD_NOTIFICATIONS)
ADD_SUPPRESSIONS = only_sqlite(sqlite.ADD_SUPPRESSIONS)
COUNT_FOR_MEMBERS = only_sqlite(sqlite.COUNT_FOR_MEMBERS)
ADD_DELIVERIES = only_sqlite(sqlite.ADD_DELIVERIES)
COUNT_ADDED_DELIVERIES = only_sqlite(sqlite.COUNT_ADDED_DELIVERIES)

# How many deliveries of a message and channel.
_Made = Mapping[tuple[int, str], int]


@dataclass(frozen=True)
class StepChanges:
    """What is stored with a step's decided rows. Claims are (event id, epoch); the transaction has them locked."""

    lease_seconds: float
    new_messages: Sequence[Message] = ()
    # Messages of earlier steps of which more members are notified.
    used_again: Sequence[int] = ()
    finished: Sequence[tuple[UUID, int]] = ()
    cursors: Mapping[tuple[UUID, int], str] = field(default_factory=dict)

    @property
    def results(self) -> list[EventResult]:
        return [EventResult(*claim, EventStatus.DONE) for claim in self.finished]


class StepEffect(Protocol):
    """Something else that events do, such as counting, in the transaction of the step that makes them DONE."""

    async def apply(self, tx: Transaction) -> None:
        """Run last: the step holds its locks until the commit, and waits for no member or event after this."""


async def apply_effects(tx: Transaction, effects: Sequence[StepEffect]) -> None:
    """In the order given, which is the same in every step."""
    for effect in effects:
        await effect.apply(tx)


async def apply_decision(tx: Transaction, decided: DecisionRows | None, changes: StepChanges) -> int:
    """Store it all: members' counts, inbox, deliveries, suppressions, messages, events. Returns how many deliveries.

    Without decided rows only the events' progress is stored.
    """
    if decided is None:
        if queries := _progress(changes):
            await tx.execute(*queries)
        return 0
    apply = _apply_on_postgres if tx.dialect is POSTGRES else _apply_on_sqlite
    made = {(row["message_id"], row["channel"]): row["count"] for row in await apply(tx, decided, changes)}
    if decided.inputs.bulk:
        await tx.execute(add_counts_query(_counts(decided, made)))
    return sum(made.values())


async def _apply_on_postgres(tx: Transaction, decided: DecisionRows, changes: StepChanges) -> Sequence[Row]:
    parameters = (
        Table(MESSAGE, changes.new_messages),
        Table.of(MESSAGE_ID, changes.used_again),
        results_table(changes.results),
        cursors_table(changes.cursors),
        decided.inputs.now,
        float(changes.lease_seconds),
    )
    if decided.rows is not None:
        return await tx.fetch(APPLY_GIVEN(*parameters, Table(DECIDED, [tuple(row) for row in decided.rows])))
    first = min(ids[0] for ids in decided.recipients.values() if ids)
    last = max(ids[-1] for ids in decided.recipients.values() if ids)
    return await tx.fetch(APPLY_TABLE(*parameters, first, last))


async def _apply_on_sqlite(tx: Transaction, decided: DecisionRows, changes: StepChanges) -> Sequence[Row]:
    now = decided.inputs.now
    given = []
    if decided.rows is not None:
        rows = [tuple(row) for row in decided.rows]
        given = [CREATE_DECIDED(), PREPARE_DECIDED(), GIVE_DECIDED(Table(DECIDED, rows))]
    return await tx.fetch(
        *given,
        ADD_NOTIFICATIONS(now),
        ADD_SUPPRESSIONS(now),
        COUNT_FOR_MEMBERS(),
        *([add_messages_query(changes.new_messages)] if changes.new_messages else []),
        *([mark_used_again_query(changes.used_again, now)] if changes.used_again else []),
        *_progress(changes),
        ADD_DELIVERIES(now),
        COUNT_ADDED_DELIVERIES(),
    )


def _counts(decided: DecisionRows, made: _Made) -> Counter[tuple[int, str, str]]:
    """What the step adds to the counts of its messages. Those that are not counted are left out when they are stored."""
    counts = Counter({(message_id, channel, MADE): number for (message_id, channel), number in made.items()})
    for count in decided.counts:
        if count.message_id is not None:
            counts[count.message_id, "", count.reason or NOTIFIED] += count.recipients
            counts[count.message_id, "", IN_INBOX] += count.in_inbox
    return counts


def _progress(changes: StepChanges) -> list[Query]:
    queries = []
    if changes.finished:
        queries.append(outbox.record_query(changes.results))
    if changes.cursors:
        queries.append(outbox.save_cursors_query(changes.cursors, changes.lease_seconds))
    return queries
