"""Statements about deliveries: claim, renew, record.

A delivery that waits is READY, or SENDING until its lease ends: its due time is then the end of the lease. So new, retried
and abandoned deliveries are found by one condition over one index. A claim makes SENDING what can go, and is committed
before anything is sent: a SENDING delivery whose lease has ended may have been sent. Fencing: every claim raises the epoch,
nothing lowers it, and only the newest claim can be recorded (docs/decisions/0012-a-claim-commits-sending.md).

A claim is open while its epoch is the newest and `leased_by` is set: claiming sets it, recording and the recovery job clear
it. This is tested instead of the status so that PostgreSQL finds the rows by their ids and not by the index of everything
that waits.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from operator import attrgetter

from bongsu.store.core.locks import open_claims
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import MESSAGE_ID, Columns, Dialect, Row, Statement, Table, Transaction, in_both
from bongsu.store.core.store import Store
from bongsu.store.deliveries import postgres, sqlite
from bongsu.store.deliveries.continuity import ALWAYS, ClaimContinuity
from bongsu.store.deliveries.rows import (
    MOST_CLAIMS,
    RANK,
    ClaimedDelivery,
    DeliveryResult,
    DeliveryStatus,
    Success,
    recordable,
)
from bongsu.store.messages.counts import count_ended
from bongsu.store.ranks import RANKS

__all__ = [
    "MOST_CLAIMS",
    "RANKS",
    "ClaimContinuity",
    "ClaimedDelivery",
    "DeliveryResult",
    "DeliveryStatus",
    "Success",
    "claim",
    "find_cancelled",
    "record",
    "recordable",
    "renew",
]

_CLAIM = {"delivery_id": "bigint", "epoch": "integer"}
_LEASED = {**_CLAIM, "claim_count": "integer", "can_go": "boolean"}
_SUCCESS = {
    **_CLAIM,
    "seconds_ago": "double precision",
    "millis": "integer",
    "reference": "text",
    "is_simulated": "boolean",
}
_RESULT = {
    **_CLAIM,
    "status": "text",
    "code": "text",
    "detail": "text",
    "after_seconds": "double precision",
    # 1 if it counts as one, else 0.
    "attempt": "integer",
    "is_retryable": "boolean",
    "is_simulated": "boolean",
    "reference": "text",
}
_ATTEMPT = {**_CLAIM, "seconds_ago": "double precision", "millis": "integer", "code": "text"}
_DEVICE = {"member_id": "text", "device_id": "text", "token": "text"}


def _open_claims(d: Dialect, columns: Columns) -> str:
    return open_claims(d, "bongsu_deliveries", "delivery_id", columns)


# Leases due deliveries on PostgreSQL; on SQLite it only finds them. See postgres.py and sqlite.py.
CLAIM = Statement(postgres=postgres.CLAIM, sqlite=sqlite.FIND_DUE)

# Leases the deliveries that were found on SQLite, for some seconds ($2) and an owner ($3); makes SENDING what can go.
LEASE = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_deliveries
    SET epoch = given.epoch, claim_count = given.claim_count, due = {d.after("$2")}, leased_by = $3,
        status = CASE WHEN given.can_go THEN 'SENDING' ELSE status END
    FROM {d.table("given", _LEASED, 1)}
    WHERE bongsu_deliveries.delivery_id = given.delivery_id"""
    )
)

# Those of these messages whose event was cancelled. Locks nothing.
FIND_CANCELLED = in_both(
    lambda d: (
        f"""
    SELECT m.message_id FROM {d.table("given", MESSAGE_ID, 1)} CROSS JOIN bongsu_messages AS m
    WHERE m.message_id = given.message_id AND m.cancelled_at IS NOT NULL"""
    )
)

# Locks the deliveries of open claims in the order of ids. For results that take more than one statement.
LOCK_CLAIMS = Statement(postgres=f"SELECT count(*) FROM {_open_claims(POSTGRES, _CLAIM)}", sqlite="SELECT 0")

# Extends the leases of open claims to so many seconds from now ($2). Locks their rows in the order of ids.
RENEW = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_deliveries
    SET due = {d.after("$2")}
    FROM {_open_claims(d, _CLAIM)}
    WHERE bongsu_deliveries.delivery_id = given.delivery_id AND bongsu_deliveries.epoch = given.epoch
          AND leased_by IS NOT NULL"""
    )
)

# Ends open claims with success and returns their deliveries; a stale claim changes nothing. Locks their rows in
# the order of ids.
RECORD_SUCCESSES = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_deliveries
    SET status = 'SUCCESS', code = NULL, detail = NULL, reference = given.reference, is_retryable = false,
        is_simulated = given.is_simulated, attempts = attempts + 1, claim_count = 0, leased_by = NULL, finished_at = {d.now},
        sent_at = {d.after("-given.seconds_ago")}, millis = given.millis
    FROM {_open_claims(d, _SUCCESS)}
    WHERE bongsu_deliveries.delivery_id = given.delivery_id AND bongsu_deliveries.epoch = given.epoch
          AND leased_by IS NOT NULL
    RETURNING bongsu_deliveries.delivery_id"""
    )
)

# Whether the event of a delivery was cancelled.
_IS_CANCELLED = """(
            SELECT m.cancelled_at FROM bongsu_messages AS m WHERE m.message_id = bongsu_deliveries.message_id) IS NOT NULL"""

# Ends open claims with any other result and returns their deliveries as they are then; a stale claim changes nothing. What
# was to be tried again ends CANCELLED if its event was cancelled meanwhile. Locks their rows in the order of ids.
RECORD_OTHERS = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_deliveries
    SET status = CASE WHEN given.status = 'READY' AND {_IS_CANCELLED} THEN 'CANCELLED' ELSE given.status END,
        code = given.code, detail = given.detail, reference = given.reference,
        is_retryable = given.is_retryable, is_simulated = given.is_simulated, attempts = attempts + given.attempt,
        claim_count = 0, leased_by = NULL,
        due = CASE WHEN given.status = 'READY' THEN {d.after("given.after_seconds")} ELSE due END,
        finished_at = CASE WHEN given.status = 'READY' AND NOT {_IS_CANCELLED} THEN NULL ELSE {d.now} END
    FROM {_open_claims(d, _RESULT)}
    WHERE bongsu_deliveries.delivery_id = given.delivery_id AND bongsu_deliveries.epoch = given.epoch
          AND leased_by IS NOT NULL
    RETURNING bongsu_deliveries.delivery_id, bongsu_deliveries.status"""
    )
)

# Stores attempts that have no row yet, in the order given. One that succeeded under its own claim needs none: it is in the
# delivery's row. Nor does one of a delivery that was erased meanwhile: nothing would ever delete it.
ADD_ATTEMPTS = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_attempts (delivery_id, epoch, began_at, millis, code)
    SELECT given.delivery_id, given.epoch, {d.after("-given.seconds_ago")}, given.millis, given.code
    FROM {d.table("given", _ATTEMPT, 1)}
    WHERE EXISTS (
        SELECT 1 FROM bongsu_deliveries AS d
        WHERE d.delivery_id = given.delivery_id AND NOT (d.epoch = given.epoch AND d.sent_at IS NOT NULL))
    ON CONFLICT (delivery_id, epoch) DO NOTHING"""
    )
)

# Marks devices whose tokens the provider no longer knows, unless they have another token by now. Locks their rows.
INVALIDATE_DEVICES = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_devices SET status = 'INVALID', updated_at = {d.now}
    WHERE status = 'ACTIVE' AND (member_id, device_id) IN (
        SELECT d.member_id, d.device_id FROM {d.table("given", _DEVICE, 1)} CROSS JOIN bongsu_devices AS d
        WHERE d.member_id = given.member_id AND d.device_id = given.device_id AND d.token = given.token
              AND d.status = 'ACTIVE'
        ORDER BY d.member_id, d.device_id {d.lock_row})"""
    )
)


async def claim(
    store: Store,
    channel: str,
    ranks: Sequence[int],
    limit: int,
    lease_seconds: float,
    worker: str,
    continuity: ClaimContinuity | None = None,
) -> list[ClaimedDelivery]:
    """Lease due deliveries, those of an earlier rank first. What can go is SENDING: it is committed, and may be sent.

    Abandoned ones are SENDING with an owner whose lease has ended. `continuity` decides whether they are claimed too, has
    the deadline for the store to begin, and is given the time when it did. Without one, they are claimed, and at any time.
    """
    begins_by, with_abandoned = (continuity.begins_by, continuity.with_abandoned) if continuity else (ALWAYS, True)
    asked = Table.of(RANK, ranks)
    if store.dialect.name == "postgresql":
        async with store.single() as tx:
            rows = await tx.fetch(CLAIM(channel, asked, limit, with_abandoned, float(lease_seconds), worker, begins_by))
        found = [ClaimedDelivery._make(row[:-1]) for row in rows if row[0] is not None]
    else:
        async with store.transaction() as tx:
            rows = await tx.fetch(CLAIM(channel, asked, limit, with_abandoned, begins_by))
            found = [_as_claimed(row) for row in rows if row[0] is not None]
            if found:
                leased = [
                    (delivery.delivery_id, delivery.epoch, delivery.claim_count, delivery.can_go) for delivery in found
                ]
                await tx.execute(LEASE(Table(_LEASED, leased), float(lease_seconds), worker))
    if continuity is not None:
        continuity.answered(store.dialect.time(rows[0]["now"]))
    return found


def _as_claimed(row: Row) -> ClaimedDelivery:
    """SQLite has no booleans."""
    is_expired, is_cancelled, can_go = (bool(row[name]) for name in ("is_expired", "is_cancelled", "can_go"))
    return ClaimedDelivery._make(row[:-1])._replace(is_expired=is_expired, is_cancelled=is_cancelled, can_go=can_go)


async def find_cancelled(tx: Transaction, message_ids: Collection[int]) -> set[int]:
    rows = await tx.fetch(FIND_CANCELLED(Table.of(MESSAGE_ID, message_ids)))
    return {row["message_id"] for row in rows}


async def renew(tx: Transaction, claims: Sequence[tuple[int, int]], lease_seconds: float) -> None:
    """Extend the leases of those of these claims that are still open."""
    await tx.execute(RENEW(Table(_CLAIM, claims), float(lease_seconds)))


async def record(store: Store, channel: str, results: Sequence[DeliveryResult | Success]) -> set[int]:
    """Store results, the attempts they are of, and invalid devices; return the deliveries whose claims were still open.

    A result that was to be tried again becomes CANCELLED if the event was cancelled meanwhile.
    """
    successes = [result for result in results if isinstance(result, Success)]
    others = [result for result in results if isinstance(result, DeliveryResult)]
    are_counted = any(result.bulk_message is not None for result in results)
    # Successes alone are one statement, unless a claim was lost: then its attempt is added by another.
    async with store.transaction() if others or are_counted else store.single() as tx:
        if successes and others:
            # Each statement locks in the order of ids; both together would not.
            await tx.execute(LOCK_CLAIMS(Table(_CLAIM, [(result.delivery_id, result.epoch) for result in results])))
        now = time.monotonic()
        recorded = await _record_successes(tx, successes, now)
        recorded |= await _record_others(tx, others)
        # Also those whose claims were lost: something was sent all the same.
        await _add_attempts(tx, [*others, *(result for result in successes if result.delivery_id not in recorded)], now)
        await _invalidate_devices(tx, {result.invalid_device for result in others if result.invalid_device is not None})
        if are_counted:
            ended = [(result.bulk_message, channel, _status(result)) for result in results if result.delivery_id in recorded]
            await count_ended(tx, ended)
    return recorded


def _status(result: DeliveryResult | Success) -> str:
    return (DeliveryStatus.SUCCESS if isinstance(result, Success) else result.status).value


async def _record_successes(tx: Transaction, successes: Sequence[Success], now: float) -> set[int]:
    if not successes:
        return set()
    rows = [
        (result.delivery_id, result.epoch, now - result.began, result.millis, result.reference, result.is_simulated)
        for result in successes
    ]
    return {row["delivery_id"] for row in await tx.fetch(RECORD_SUCCESSES(Table(_SUCCESS, rows)))}


async def _record_others(tx: Transaction, results: Sequence[DeliveryResult]) -> set[int]:
    """Each result has then the status that was stored."""
    if not results:
        return set()
    rows = [
        (result.delivery_id, result.epoch, result.status.value, result.code, result.detail, float(result.after_seconds),
         int(result.is_attempt), result.is_retryable, result.is_simulated, result.reference)
        for result in results
    ]  # fmt: skip
    stored = {row["delivery_id"]: row["status"] for row in await tx.fetch(RECORD_OTHERS(Table(_RESULT, rows)))}
    for result in results:
        result.status = DeliveryStatus(stored.get(result.delivery_id, result.status))
    return set(stored)


async def _add_attempts(tx: Transaction, results: Sequence[DeliveryResult | Success], now: float) -> None:
    rows = [
        (result.delivery_id, result.epoch, now - result.began, result.millis, _attempt_code(result))
        for result in sorted(results, key=attrgetter("delivery_id"))
        if result.began is not None
    ]
    if rows:
        await tx.execute(ADD_ATTEMPTS(Table(_ATTEMPT, rows)))


def _attempt_code(result: DeliveryResult | Success) -> str:
    return (not isinstance(result, Success) and result.code) or _status(result)


async def _invalidate_devices(tx: Transaction, devices: set[tuple[str, str, str]]) -> None:
    if devices:
        await tx.execute(INVALIDATE_DEVICES(Table(_DEVICE, sorted(devices))))
