"""Claims on events: lease them, renew, give back, record results. Each names a claim by event id and epoch.

A claim is open while its epoch is the newest and `leased_by` is set: claiming sets it, recording, giving back and cancelling
clear it. Statements test this instead of the status, so that PostgreSQL finds the rows by their ids and not by the index of
all waiting events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import itemgetter
from uuid import UUID

from bongsu.store.core.locks import open_claims
from bongsu.store.core.query import Columns, Dialect, Query, Statement, Table, Transaction, as_uuid, in_both
from bongsu.store.outbox import postgres, sqlite
from bongsu.store.outbox.rows import (
    CLAIM,
    CLAIM_COLUMNS,
    EVENT_TYPE,
    SUSPECT_AFTER,
    ClaimedEvent,
    EventResult,
    read_event,
)

RESULT = {**CLAIM, "status": "text", "error": "text", "after_seconds": "double precision"}
# SQLite's own name for the index of the primary key. Without the hint it reads the whole table to find a few rows of it.
EVENTS_BY_ID = "sqlite_autoindex_bongsu_events_1"

CLAIM_DUE = Statement(postgres.CLAIM_DUE, sqlite.CLAIM_DUE)

# Leases one due event with which several workers have crashed. Locks its row; skips those being claimed right now.
CLAIM_SUSPECT = in_both(
    lambda d: (
        f"""
    WITH next AS MATERIALIZED (
        SELECT event_id FROM bongsu_events {d.index_hint("bongsu_events_suspect")}
        WHERE status = 'PENDING' AND due <= {d.now} AND claim_count >= {SUSPECT_AFTER}
        ORDER BY due LIMIT 1 {d.skip_locked})
    UPDATE bongsu_events
    SET epoch = epoch + 1, claim_count = claim_count + 1, due = {d.after("$1")}, leased_by = $2
    FROM next WHERE bongsu_events.event_id = next.event_id
    RETURNING {CLAIM_COLUMNS}"""
    )
)


def _open_claims(d: Dialect, columns: Columns) -> str:
    return open_claims(d, "bongsu_events", "event_id", columns)


def record_results(d: Dialect, results: str) -> str:
    """Writes the results of claims that are open and returns their events; a stale claim changes nothing. Locks those rows.

    `results` is a table expression `given`.
    """
    return f"""
    UPDATE bongsu_events {d.index_hint(EVENTS_BY_ID)}
    SET status = given.status,
        attempts = attempts + CASE WHEN given.error IS NULL THEN 0 ELSE 1 END,
        claim_count = 0, leased_by = NULL, error = given.error,
        -- It has a member's id in it and is not needed again.
        fanout_cursor = CASE WHEN given.status = 'DONE' THEN NULL ELSE fanout_cursor END,
        due = CASE WHEN given.status = 'PENDING' THEN {d.after("given.after_seconds")} ELSE due END,
        finished_at = CASE WHEN given.status = 'PENDING' THEN NULL ELSE {d.now} END
    FROM {results}
    WHERE bongsu_events.event_id = given.event_id AND bongsu_events.epoch = given.epoch AND leased_by IS NOT NULL
    RETURNING bongsu_events.event_id"""


# See record_results. Locks the rows in the order of ids.
RECORD = in_both(lambda d: record_results(d, _open_claims(d, RESULT)))

# Ends open claims as if they had never been made; their events are due again after so many seconds. Locks those rows in
# the order of ids.
GIVE_BACK = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_events {d.index_hint(EVENTS_BY_ID)}
    SET claim_count = claim_count - 1, leased_by = NULL, due = {d.after("$2")}
    FROM {_open_claims(d, CLAIM)}
    WHERE bongsu_events.event_id = given.event_id AND bongsu_events.epoch = given.epoch AND leased_by IS NOT NULL"""
    )
)

# Extends the leases of open claims to so many seconds from now and returns their events. Locks those rows in the order
# of ids.
RENEW = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_events {d.index_hint(EVENTS_BY_ID)}
    SET due = {d.after("$2")}
    FROM {_open_claims(d, CLAIM)}
    WHERE bongsu_events.event_id = given.event_id AND bongsu_events.epoch = given.epoch AND leased_by IS NOT NULL
    RETURNING bongsu_events.event_id"""
    )
)


async def claim(
    tx: Transaction, limit: int, lease_seconds: float, worker: str, critical_types: Sequence[str] = (), large: int = 1
) -> list[ClaimedEvent]:
    """The oldest due events, those of critical types before others; besides, up to `large` events with a large payload.

    A fifth of them are the oldest of all types, so that no event waits for ever behind critical ones.
    """
    types = Table.of(EVENT_TYPE, critical_types)
    return await _claim(tx, CLAIM_DUE(types, limit - limit // 5, limit, large, float(lease_seconds), worker))


async def claim_critical(
    tx: Transaction, limit: int, lease_seconds: float, worker: str, critical_types: Sequence[str]
) -> list[ClaimedEvent]:
    """The oldest due events of these types only, without large ones."""
    types = Table.of(EVENT_TYPE, critical_types)
    return await _claim(tx, CLAIM_DUE(types, limit, 0, 0, float(lease_seconds), worker))


async def claim_suspect(tx: Transaction, lease_seconds: float, worker: str) -> list[ClaimedEvent]:
    """At most one event with which several workers have crashed: alone, so that it takes no others with it."""
    return await _claim(tx, CLAIM_SUSPECT(float(lease_seconds), worker))


async def _claim(tx: Transaction, query: Query) -> list[ClaimedEvent]:
    claimed = []
    # RETURNING has no order. Ids begin with the time they were made, so this puts the oldest first again.
    for row in sorted(await tx.fetch(query), key=itemgetter("event_id")):
        is_large = bool(row["is_large"])
        if is_large:
            # Decoded in a thread: the event loop has others to serve.
            event, unreadable = await asyncio.to_thread(read_event, tx.dialect, row)
        else:
            event, unreadable = read_event(tx.dialect, row)
        claimed.append(ClaimedEvent(event, row["epoch"], row["attempts"], row["claim_count"], unreadable, is_large))
    return claimed


def results_table(results: Sequence[EventResult]) -> Table:
    rows = [(result.event_id, result.epoch, result.status, result.error, float(result.after_seconds)) for result in results]
    return Table(RESULT, rows)


def record_query(results: Sequence[EventResult]) -> Query:
    return RECORD(results_table(results))


async def record(tx: Transaction, results: Sequence[EventResult]) -> set[UUID]:
    """Store what became of claimed events; return those whose claim was still open."""
    rows = await tx.fetch(record_query(results))
    # Nearly always all of them, and then their ids need not be read.
    if len(rows) == len(results):
        return {result.event_id for result in results}
    return {as_uuid(row["event_id"]) for row in rows}


async def give_back(tx: Transaction, claimed: Sequence[ClaimedEvent], after_seconds: float) -> None:
    """End claims that came to nothing for a reason outside the events: they do not count against them."""
    rows = [(claim.event.event_id, claim.epoch) for claim in claimed]
    await tx.execute(GIVE_BACK(Table(CLAIM, rows), float(after_seconds)))


async def renew(tx: Transaction, claims: Sequence[tuple[UUID, int]], lease_seconds: float) -> set[UUID]:
    """Extend the leases of these claims; return the events of those that are still open."""
    rows = await tx.fetch(RENEW(Table(CLAIM, claims), float(lease_seconds)))
    return {as_uuid(row["event_id"]) for row in rows}
