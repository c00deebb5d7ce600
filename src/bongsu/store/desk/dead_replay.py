"""Replay dead letters: events are PENDING again, deliveries READY."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from bongsu.store.core.locks import lock_names
from bongsu.store.core.query import DELIVERY_ID, EVENT_ID, MESSAGE_ID, Table, Transaction, in_both
from bongsu.store.desk.dead_letters import DEAD_DELIVERY, DEAD_EVENT, DeadRow, Kind
from bongsu.store.messages.counts import count_ended
from bongsu.store.ranks import BULK

# Locks those of these events that are dead, in the order of their ids. $1 ids.
_LOCK_EVENTS = in_both(
    lambda d: (
        f"""
    SELECT e.event_id FROM bongsu_events AS e
    WHERE e.event_id IN (SELECT given.event_id FROM {d.table("given", EVENT_ID, 1)}) AND {DEAD_EVENT}
    ORDER BY e.event_id {d.lock_row}"""
    )
)
# Make dead events PENDING again. The epoch stays, so an earlier claim still cannot record a result; the fan-out's cursor
# stays too, so members already decided are not decided again. The rows are locked. $1 ids.
_REPLAY_EVENTS = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_events AS e {d.index_hint("sqlite_autoindex_bongsu_events_1")}
    SET status = 'PENDING', due = {d.now}, attempts = 0, claim_count = 0, error = NULL, leased_by = NULL, finished_at = NULL
    FROM {d.table("given", EVENT_ID, 1)} WHERE e.event_id = given.event_id AND {DEAD_EVENT}"""
    )
)
# Locks those of these deliveries that are dead, in the order of their ids, and returns them as they are then. $1 ids.
_LOCK_DELIVERIES = in_both(
    lambda d: (
        f"""
    SELECT d.delivery_id, d.message_id, d.channel, d.status FROM bongsu_deliveries AS d
    WHERE d.delivery_id IN (SELECT given.delivery_id FROM {d.table("given", DELIVERY_ID, 1)}) AND {DEAD_DELIVERY}
    ORDER BY d.delivery_id {d.lock_row}"""
    )
)
# Make deliveries READY again, as new but for the epoch. The rows are locked. $1 ids, $2 what to add to the series, which is
# part of the collapse id, $3 whether they are bulk from now on; critical ones never are.
_REPLAY_DELIVERIES = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_deliveries
    SET status = 'READY', due = {d.now}, attempts = 0, recovery_rounds = 0, claim_count = 0, code = NULL, detail = NULL,
        is_retryable = false, leased_by = NULL, finished_at = NULL, collapse_series = collapse_series + $2,
        rank = coalesce((
            SELECT {BULK} + m.priority FROM bongsu_messages AS m
            WHERE m.message_id = bongsu_deliveries.message_id AND NOT m.is_critical AND CAST($3 AS boolean)), rank)
    FROM {d.table("given", DELIVERY_ID, 1)}
    WHERE bongsu_deliveries.delivery_id = given.delivery_id"""
    )
)


# Locks messages in the order of their ids. $1 ids.
_LOCK_MESSAGES = in_both(
    lambda d: (
        f"""
    SELECT m.message_id FROM bongsu_messages AS m
    WHERE m.message_id IN (SELECT given.message_id FROM {d.table("given", MESSAGE_ID, 1)}) AND m.cancelled_at IS NOT NULL
    ORDER BY m.message_id {d.lock_row}"""
    )
)
# Let these messages be sent again, if their event was cancelled and nothing of it waits any more: a replay of their
# deliveries names the event. The rows are locked. $1 ids.
_LIFT_CANCELLATIONS = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_messages AS m SET cancelled_at = NULL
    FROM {d.table("given", MESSAGE_ID, 1)}
    WHERE m.message_id = given.message_id AND m.cancelled_at IS NOT NULL AND EXISTS (
        SELECT 1 FROM bongsu_cancellations AS c WHERE c.event_id = m.event_id AND c.finished_at IS NOT NULL)"""
    )
)


async def replay(tx: Transaction, rows: Sequence[DeadRow], *, new_series: bool = False, is_bulk: bool = False) -> int:
    """Make these dead letters due again and return how many still were dead. Concurrent replays are serialised."""
    await tx.fetch(lock_names(["dead replay"]))
    replayed = await _replay_events(tx, [row.event_id for row in rows if row.kind is Kind.EVENT])
    deliveries = [row for row in rows if row.kind is Kind.DELIVERY]
    return replayed + await _replay_deliveries(tx, deliveries, int(new_series), is_bulk)


async def _replay_events(tx: Transaction, event_ids: Sequence[UUID]) -> int:
    if not event_ids:
        return 0
    ids = Table.of(EVENT_ID, event_ids)
    await tx.fetch(_LOCK_EVENTS(ids))
    (replayed,) = await tx.execute(_REPLAY_EVENTS(ids))
    return replayed


async def _replay_deliveries(tx: Transaction, rows: Sequence[DeadRow], series: int, is_bulk: bool) -> int:
    if not rows:
        return 0
    message_ids = sorted({row.message_id for row in rows if row.message_id is not None})
    messages = Table.of(MESSAGE_ID, message_ids)
    ids = Table.of(DELIVERY_ID, (int(row.id) for row in rows))
    dead = await tx.fetch(_LOCK_MESSAGES(messages), _LIFT_CANCELLATIONS(messages), _LOCK_DELIVERIES(ids))
    dead_ids = Table.of(DELIVERY_ID, (delivery["delivery_id"] for delivery in dead))
    await tx.execute(_REPLAY_DELIVERIES(dead_ids, series, is_bulk))
    # By the states that were locked: since they were found, others may have ended them in another.
    await count_ended(tx, ((delivery["message_id"], delivery["channel"], delivery["status"]) for delivery in dead), by=-1)
    return len(dead)
