"""Statements of the recovery job: retry what failed for a while, end what has expired, settle abandoned claims.

Each changes a bounded number of rows and skips those that another transaction has locked. None touches a SUCCESS.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from bongsu.store.core.clock import find_now
from bongsu.store.core.query import DELIVERY_ID, Table, Transaction, in_both
from bongsu.store.deliveries.continuity import ALWAYS, ClaimContinuity
from bongsu.store.deliveries.rows import ABANDONED, EXPIRED
from bongsu.store.messages.counts import count_ended
from bongsu.store.ranks import BULK, RANKS

__all__ = [
    "MOST_ROUNDS",
    "RANKS",
    "STALE_SECONDS",
    "Rounds",
    "expire_stale",
    "give_rounds",
    "is_any_stale",
    "settle_abandoned",
]

# A round is four attempts. What still fails after so many more rounds needs an operator. The index of retryable deliveries
# has the same number.
MOST_ROUNDS = 3
# READY for so long after its due time: no dispatcher serves its channel, or they are far behind.
STALE_SECONDS = 600


@dataclass(frozen=True)
class Rounds:
    """How many got another round, for how many it is too late, and the last id looked at."""

    given: int
    too_late: int
    last_id: int | None


# Retryable deliveries behind an id ($1), in the order of ids, up to a limit ($2), and whether each stays as it is: it has
# expired, or was cancelled, or may have arrived and must not arrive twice. Locks the rows; skips locked ones.
FIND_RETRYABLE = in_both(
    lambda d: (
        f"""
    SELECT d.delivery_id, d.message_id, d.channel, d.status,
           (SELECT coalesce(m.expires_at <= {d.now}, false) OR m.cancelled_at IS NOT NULL
                   OR (d.status = 'UNKNOWN' AND m.guarantee = 'at_most_once')
            FROM bongsu_messages AS m WHERE m.message_id = d.message_id) AS stays
    FROM bongsu_deliveries AS d {d.index_hint("bongsu_deliveries_retryable")}
    WHERE d.is_retryable AND d.recovery_rounds < {MOST_ROUNDS} AND d.status IN ('FAIL', 'UNKNOWN') AND d.delivery_id > $1
    ORDER BY d.delivery_id LIMIT $2 {d.skip_locked}"""
    )
)

# Makes these READY with all their attempts before them, as bulk unless they are critical. The epoch stays. They are locked.
GIVE_ROUNDS = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_deliveries
    SET is_retryable = false, status = 'READY', attempts = 0, recovery_rounds = recovery_rounds + 1, due = {d.now},
        finished_at = NULL, rank = coalesce((
            SELECT {BULK} + m.priority FROM bongsu_messages AS m
            WHERE m.message_id = bongsu_deliveries.message_id AND NOT m.is_critical), rank)
    FROM {d.table("given", DELIVERY_ID, 1)} WHERE bongsu_deliveries.delivery_id = given.delivery_id"""
    )
)

# Leaves these as they are, and retryable no longer. They are locked.
END_ROUNDS = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_deliveries SET is_retryable = false
    FROM {d.table("given", DELIVERY_ID, 1)} WHERE bongsu_deliveries.delivery_id = given.delivery_id"""
    )
)

# Ends with EXPIRED what is READY long after its due time and expired, of a channel ($1) and rank ($2), in the
# order of due times from $3 on, up to a limit ($4). Locks the rows; skips locked ones.
EXPIRE_STALE = in_both(
    lambda d: (
        f"""
    WITH stale AS MATERIALIZED (
        SELECT d.delivery_id FROM bongsu_deliveries AS d {d.index_hint("bongsu_deliveries_due")}
        WHERE d.status IN ('READY', 'SENDING') AND d.status = 'READY' AND d.channel = $1 AND d.rank = $2
          AND d.due >= $3 AND d.due < {d.after(f"-{STALE_SECONDS}")}
          AND (SELECT m.expires_at FROM bongsu_messages AS m WHERE m.message_id = d.message_id) <= {d.now}
        ORDER BY d.due LIMIT $4 {d.skip_locked})
    UPDATE bongsu_deliveries
    SET status = 'FAIL', code = 'EXPIRED', detail = '{EXPIRED}', is_retryable = false, claim_count = 0, leased_by = NULL,
        finished_at = {d.now}
    FROM stale WHERE bongsu_deliveries.delivery_id = stale.delivery_id
    RETURNING due, message_id"""
    )
)

# One delivery of a channel ($1) and rank ($2) that is READY long after its due time, if there is one. Locks nothing.
FIND_STALE = in_both(
    lambda d: (
        f"""
    SELECT 1 FROM bongsu_deliveries AS d {d.index_hint("bongsu_deliveries_due")}
    WHERE d.status IN ('READY', 'SENDING') AND d.status = 'READY' AND d.channel = $1 AND d.rank = $2
      AND d.due < {d.after(f"-{STALE_SECONDS}")}
    LIMIT 1"""
    )
)

# Ends claims whose leases ended while SENDING, up to a limit ($1): UNKNOWN if the message must not arrive twice or was
# cancelled, else READY. A dispatcher that claimed them would do the same. It raises the epoch, as a claim does, so that the
# old claim can no longer be recorded. Begun later than $2, it ends none. Locks the rows; skips locked ones.
SETTLE_ABANDONED = in_both(
    lambda d: (
        f"""
    WITH abandoned AS MATERIALIZED (
        SELECT d.delivery_id,
               (SELECT m.guarantee = 'at_most_once' OR m.cancelled_at IS NOT NULL
                FROM bongsu_messages AS m WHERE m.message_id = d.message_id) AS is_final
        FROM bongsu_deliveries AS d {d.index_hint("bongsu_deliveries_sending")}
        WHERE d.status = 'SENDING' AND d.due <= {d.now} AND {d.now} <= $2
        ORDER BY d.due LIMIT $1 {d.skip_locked})
    UPDATE bongsu_deliveries
    SET epoch = epoch + 1, leased_by = NULL,
        status = CASE WHEN abandoned.is_final THEN 'UNKNOWN' ELSE 'READY' END,
        code = CASE WHEN abandoned.is_final THEN 'ABANDONED' ELSE code END,
        detail = CASE WHEN abandoned.is_final THEN '{ABANDONED}' ELSE detail END,
        claim_count = CASE WHEN abandoned.is_final THEN 0 ELSE claim_count END,
        finished_at = CASE WHEN abandoned.is_final THEN {d.now} END
    FROM abandoned WHERE bongsu_deliveries.delivery_id = abandoned.delivery_id
    RETURNING channel, status, message_id"""
    )
)


async def give_rounds(tx: Transaction, behind: int, limit: int) -> Rounds:
    """Give retryable deliveries with a greater id than `behind` another round of attempts. In a transaction."""
    rows = await tx.fetch(FIND_RETRYABLE(behind, limit))
    stay = [row["delivery_id"] for row in rows if row["stays"]]
    again = [row for row in rows if not row["stays"]]
    if rows:
        given = Table.of(DELIVERY_ID, (row["delivery_id"] for row in again))
        await tx.execute(END_ROUNDS(Table.of(DELIVERY_ID, stay)), GIVE_ROUNDS(given))
        await count_ended(tx, ((row["message_id"], row["channel"], row["status"]) for row in again), by=-1)
    return Rounds(len(again), len(stay), max((row["delivery_id"] for row in rows), default=None))


async def expire_stale(tx: Transaction, channel: str, rank: int, begin: datetime, limit: int) -> tuple[int, datetime | None]:
    """End what has expired while it waited; return how many, and the latest due time among them, to go on from there."""
    rows = await tx.fetch(EXPIRE_STALE(channel, rank, begin, limit))
    await count_ended(tx, ((row["message_id"], channel, "FAIL") for row in rows))
    return len(rows), max((tx.dialect.time(row["due"]) for row in rows), default=None)


async def is_any_stale(tx: Transaction, channel: str, rank: int) -> bool:
    """Whether something waits that should have been sent long ago."""
    return bool(await tx.fetch(FIND_STALE(channel, rank)))


async def settle_abandoned(
    tx: Transaction, limit: int, continuity: ClaimContinuity | None = None
) -> Counter[tuple[str, str]]:
    """End claims whose leases ended while sending; return how many of a channel are UNKNOWN or READY, to be sent again.

    `continuity` has the deadline for the store to begin, and is given the time when it did: after a gap, live dispatchers
    have to record and renew first. A limit of 0 only updates the continuity; a read-only store refuses that too.
    """
    rows = await tx.fetch(SETTLE_ABANDONED(limit, continuity.begins_by if continuity else ALWAYS))
    if continuity is not None:
        continuity.answered(await find_now(tx))
    await count_ended(tx, ((row["message_id"], row["channel"], row["status"]) for row in rows))
    return Counter((row["channel"], row["status"]) for row in rows)
