"""Claimed events on their way through audiences: kept, brought forward, and found again where they were left."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.store.databases import dialect_named
from bongsu.store.decisions import rows_of
from bongsu.store.dialect import Binder, Dialect, Statement
from bongsu.store.events import as_uuid

# SQLite's own name for the index of the primary key.
_EVENT_BY_ID = "sqlite_autoindex_bongsu_events_1"
# No limit, but where one is, PostgreSQL does not take the rows apart that it is about.
MOST_HELD = 1_000_000
_CLAIM = {"event_id": "uuid", "epoch": "integer"}


async def hold(
    tx: AsyncConnection, claims: Sequence[tuple[UUID, int]], names: Iterable[str] = (), messages: int = 0
) -> tuple[set[tuple[UUID, int]], list[int]]:
    """Keep those names and claimed events to ourselves until the transaction ends. A zombie waits here.

    Answers which claims still hold and, if any does, ids for so many messages: those that are not written leave a gap.
    """
    dialect = dialect_named(tx.dialect.name)
    binder = Binder(dialect)
    locks = dialect.locking(binder, names)
    places = binder.table({"place": "integer"}, [(place,) for place in range(messages)], "places")
    given = binder.table(_CLAIM, sorted(claims))
    # The names before the events, and those in the order they are given in: each is looked up from a row that has the names.
    held = await rows_of(
        tx,
        f"""
        SELECT e.event_id, e.epoch, e.status, named.locks,
               (SELECT {dialect.listed("id")} FROM (SELECT {dialect.next_message} AS id FROM {places}) AS drawn)
        FROM (SELECT given.event_id, given.epoch, {locks} AS locks FROM {given} LIMIT {MOST_HELD}) AS named
        {dialect.join_each("bongsu_events", "e", "named", list(_CLAIM), locked=True)}""",
        binder,
    )
    # Not asked for in the statement: to find the few that are given, PostgreSQL would go through all that wait.
    ours = {(as_uuid(row[0]), row[1]) for row in held if row[2] == "PENDING"}
    return ours, json.loads(held[0][4] or "[]") if ours else []


def advancing(dialect: Dialect, reached: Mapping[tuple[UUID, int], str], lease_seconds: float) -> Statement:
    """Keep how far claimed events have come, and the claims on them.

    A claim that has brought an event forward is no sign of a death.
    """
    binder = Binder(dialect)
    rows = [(event_id, epoch, cursor) for (event_id, epoch), cursor in reached.items()]
    given = binder.table({**_CLAIM, "cursor": "text"}, rows)
    update = f"""
        UPDATE bongsu_events {dialect.by_index(_EVENT_BY_ID)}
        SET fanout_cursor = given.cursor, claims = 1, due = {dialect.after(str(float(lease_seconds)))}
        {dialect.of_claims("bongsu_events", given, "event_id")} AND bongsu_events.status = 'PENDING'"""
    return update, tuple(binder.parameters)


async def renew(tx: AsyncConnection, claims: Sequence[tuple[UUID, int]], lease_seconds: float) -> set[UUID]:
    """Lengthen the leases on events in hand; answer which are still ours."""
    dialect = dialect_named(tx.dialect.name)
    binder = Binder(dialect)
    given = binder.table(_CLAIM, sorted(claims))
    ours = await rows_of(
        tx,
        f"""
        UPDATE bongsu_events {dialect.by_index(_EVENT_BY_ID)} SET due = {dialect.after(str(float(lease_seconds)))}
        {dialect.of_claims("bongsu_events", given, "event_id")} AND bongsu_events.status = 'PENDING'
        RETURNING bongsu_events.event_id""",
        binder,
    )
    return {as_uuid(row[0]) for row in ours}


@dataclass(frozen=True)
class Begun:
    """How far an event had come under an earlier claim, and what it had said: messages by notice and locale."""

    cursor: str
    messages: dict[tuple[int, str], int]


async def find_begun(tx: AsyncConnection, event_ids: Sequence[UUID]) -> dict[UUID, Begun]:
    """Of these events, those that an earlier claim has brought forward."""
    dialect = dialect_named(tx.dialect.name)
    binder = Binder(dialect)
    given = binder.table({"event_id": "uuid"}, [(one,) for one in event_ids])
    found = await rows_of(
        tx,
        f"""
        SELECT e.event_id, e.fanout_cursor, m.notice, m.locale, m.message_id
        FROM {given} CROSS JOIN bongsu_events e LEFT JOIN bongsu_messages m ON m.event_id = e.event_id
        WHERE e.event_id = given.event_id AND e.fanout_cursor IS NOT NULL""",
        binder,
    )
    begun: dict[UUID, Begun] = {}
    for event_id, cursor, notice, locale, message_id in found:
        one = begun.setdefault(as_uuid(event_id), Begun(cursor, {}))
        if message_id is not None:
            one.messages[notice, locale] = message_id
    return begun
