"""Claimed events that are decided in several steps: lock them for a step, save how far they came, find it again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from bongsu.store.core import locks
from bongsu.store.core.query import EVENT_ID, Dialect, Query, Statement, Table, Transaction, as_uuid, in_both
from bongsu.store.messages.counts import NOTIFIED
from bongsu.store.outbox import postgres, sqlite
from bongsu.store.outbox.claims import EVENTS_BY_ID
from bongsu.store.outbox.rows import CLAIM, CURSOR

LOCK_CLAIMS = Statement(postgres.LOCK_CLAIMS, sqlite.LOCK_CLAIMS)


def save_cursors(d: Dialect, table: int, lease_seconds: str) -> str:
    """Saves how far open claims have come and extends their leases. Progress shows that no worker has crashed, so claims are
    counted from one again. Locks those rows.

    `table` is the number of the parameter with the cursors, `lease_seconds` an SQL expression.
    """
    return f"""
    UPDATE bongsu_events {d.index_hint(EVENTS_BY_ID)}
    SET fanout_cursor = given.cursor, claim_count = 1, due = {d.after(lease_seconds)}
    FROM {d.table("given", CURSOR, table)}
    WHERE bongsu_events.event_id = given.event_id AND bongsu_events.epoch = given.epoch AND leased_by IS NOT NULL"""


# See save_cursors.
SAVE_CURSORS = in_both(lambda d: save_cursors(d, 1, "$2"))

# Returns the saved cursors of those events that have one, each with every message it has written so far and how many members
# were notified of it, if that is counted.
FIND_BEGUN = in_both(
    lambda d: (
        f"""
    SELECT e.event_id, e.fanout_cursor, m.notice_index, m.locale, m.message_id, coalesce(c.count, 0) AS notified
    FROM {d.table("given", EVENT_ID, 1)}
    CROSS JOIN bongsu_events AS e
    LEFT JOIN bongsu_messages AS m ON m.event_id = e.event_id
    LEFT JOIN bongsu_message_counts AS c ON c.message_id = m.message_id AND c.channel = '' AND c.category = '{NOTIFIED}'
    WHERE e.event_id = given.event_id AND e.fanout_cursor IS NOT NULL"""
    )
)


class LockedClaims(NamedTuple):
    """The claims that are still open, ids for new messages (unused ones leave a gap), and the store's time of this step."""

    claims: set[tuple[UUID, int]]
    message_ids: list[int]
    now: datetime


async def lock_claims(
    tx: Transaction, claims: Sequence[tuple[UUID, int]], names: Iterable[str] = (), messages: int = 0
) -> LockedClaims:
    """Lock these names and claimed events until the transaction ends. A worker whose lease has expired finds out here."""
    (row,) = await tx.fetch(LOCK_CLAIMS(locks.as_table(names), Table(CLAIM, claims), messages))
    held = {(UUID(event_id), epoch) for event_id, epoch in json.loads(row["claims"] or "[]")}
    return LockedClaims(held, json.loads(row["message_ids"] or "[]"), tx.dialect.time(row["now"]))


def save_cursors_query(cursors: Mapping[tuple[UUID, int], str], lease_seconds: float) -> Query:
    return SAVE_CURSORS(cursors_table(cursors), float(lease_seconds))


def cursors_table(cursors: Mapping[tuple[UUID, int], str]) -> Table:
    return Table(CURSOR, [(event_id, epoch, cursor) for (event_id, epoch), cursor in cursors.items()])


@dataclass(frozen=True)
class Begun:
    """How far an event had come under an earlier claim, the messages it had written, by notice and locale, and how many
    members were notified, by notice."""

    cursor: str
    messages: dict[tuple[int, str], int]
    notified: Counter[int]


async def find_begun(tx: Transaction, event_ids: Sequence[UUID]) -> dict[UUID, Begun]:
    """Of these events, those for which an earlier claim has saved a cursor."""
    begun: dict[UUID, Begun] = {}
    for row in await tx.fetch(FIND_BEGUN(Table.of(EVENT_ID, event_ids))):
        event = begun.setdefault(as_uuid(row["event_id"]), Begun(row["fanout_cursor"], {}, Counter()))
        if row["message_id"] is not None:
            event.messages[row["notice_index"], row["locale"]] = row["message_id"]
            event.notified[row["notice_index"]] += row["notified"]
    return begun
