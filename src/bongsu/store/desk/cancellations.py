"""Cancelled events: stop what has not been sent, and take it out of the inboxes.

`begin` is one short transaction. From its commit on, nothing of the event is decided, and a claim finds its messages
cancelled: however many deliveries wait, nothing more is sent. cancel_steps.py then changes the rows.

Locks in one order: the event, its cancellation, its messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from bongsu.model import EventStatus
from bongsu.model.channels import Channel
from bongsu.store.core.query import Dialect, Row, Statement, Transaction, as_uuid, fetch_one, in_both, same
from bongsu.store.decisions import audience_snapshots
from bongsu.store.deliveries.recovery import MOST_ROUNDS
from bongsu.store.members.channel_bits import BITS
from bongsu.store.messages.counts import ENDED, IN_INBOX, MADE

_IN_APP = BITS[Channel.IN_APP]


@dataclass(frozen=True)
class Cancellation:
    """What was asked for, and the counts of the answer: deliveries stopped, deliveries sent before, inbox rows withdrawn."""

    event_id: UUID
    requested_at: datetime
    requested_by: str
    withdraw: bool
    cancelled: int
    sent: int
    withdrawn: int
    is_finished: bool


@dataclass(frozen=True)
class NothingLeft:
    """The event is finished, and nothing of it waits to be sent."""

    status: EventStatus


_COLUMNS = "event_id, requested_at, requested_by, withdraw, cancelled, sent, withdrawn, finished_at"

# The cancellation of an event, if it was cancelled. Locks nothing.
_FIND = same(f"SELECT {_COLUMNS} FROM bongsu_cancellations WHERE event_id = $1")


async def find_cancellation(tx: Transaction, event_id: UUID) -> Cancellation | None:
    row = await fetch_one(tx, _FIND(event_id))
    return None if row is None else _cancellation(tx.dialect, row)


# --- begin ------------------------------------------------------------------------------------------------------------

# The event's status. Locks its row: a step that decides it at this moment is waited for.
_LOCK_EVENT = in_both(lambda d: f"SELECT status FROM bongsu_events WHERE event_id = $1 {d.lock_row}")

# The cancellation of an event, if it was cancelled. Locks its row: a step of it is waited for before messages are locked.
_LOCK_CANCELLATION = in_both(lambda d: f"SELECT {_COLUMNS} FROM bongsu_cancellations WHERE event_id = $1 {d.lock_row}")

# One of the event's messages that is not cancelled, if there is one: a replay may send it again.
_FIND_LIFTED = same("""
    SELECT message_id FROM bongsu_messages WHERE event_id = $1 AND cancelled_at IS NULL AND NOT is_digest LIMIT 1""")

# The event's messages. Locks their rows against claims of their deliveries, which are waited for.
_LOCK_MESSAGES = Statement(
    postgres="SELECT message_id, is_bulk, is_digest FROM bongsu_messages WHERE event_id = $1 ORDER BY message_id FOR UPDATE",
    sqlite="SELECT message_id, is_bulk, is_digest FROM bongsu_messages WHERE event_id = $1 ORDER BY message_id",
)

# From its commit on nothing of these messages is claimed to be sent. Their rows are locked. Not of digests, which may have
# gathered what was not cancelled: these are not sent once nothing of them is left (digest_cancel.py).
_CANCEL_MESSAGES = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_messages SET cancelled_at = {d.now} WHERE event_id = $1 AND cancelled_at IS NULL AND NOT is_digest"""
    )
)

# Ends the event: a worker that has claimed it finds its epoch stale. Its row is locked.
_CANCEL_EVENT = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_events
    SET status = 'CANCELLED', finished_at = coalesce(finished_at, {d.now}), epoch = epoch + 1, claim_count = 0,
        leased_by = NULL
    WHERE event_id = $1"""
    )
)

# Records the request, again if a replay has lifted an earlier one. Locks its row.
_ADD = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_cancellations (event_id, requested_at, requested_by, withdraw, cancelled, sent, withdrawn)
    VALUES ($1, {d.now}, $2, $3, $4, $5, $6)
    ON CONFLICT (event_id) DO UPDATE
    SET requested_at = excluded.requested_at, requested_by = excluded.requested_by, withdraw = excluded.withdraw,
        cancelled = excluded.cancelled, sent = excluded.sent, withdrawn = excluded.withdrawn, cursor_message_id = 0,
        cursor_member_id = '', finished_at = NULL
    RETURNING {_COLUMNS}"""
    )
)

# Records that withdrawing was asked for later, which goes through all rows again. Its row is locked.
_ADD_WITHDRAWAL = same(f"""
    UPDATE bongsu_cancellations
    SET withdraw = true, withdrawn = $2, cursor_message_id = 0, cursor_member_id = '', finished_at = NULL
    WHERE event_id = $1 RETURNING {_COLUMNS}""")

# Deliveries of a message ($1) by status, and its inbox rows, counted one by one. For messages with few recipients.
_COUNT_FEW = same(f"""
    SELECT d.status AS category, count(*) AS count
    FROM bongsu_notifications AS n JOIN bongsu_deliveries AS d ON d.notification_id = n.notification_id
    WHERE n.message_id = $1 GROUP BY d.status
    UNION ALL
    SELECT '{IN_INBOX}', count(*) FROM bongsu_notifications AS n WHERE n.message_id = $1 AND n.channels & {_IN_APP} <> 0""")

# The same of a message ($1) that digests have gathered: deliveries and inbox rows of those digests. What waits is only ended
# if nothing else is in the digest; else it is SHARED. What has left a digest counts if nothing else is in it. Locks nothing.
_COUNT_DIGESTS = same(f"""
    SELECT CASE WHEN d.status = 'READY' AND g.size > 1 THEN 'SHARED' ELSE d.status END AS category, count(*) AS count
    FROM bongsu_digest_entries AS e
    JOIN bongsu_digests AS g ON g.notification_id = e.notification_id
    JOIN bongsu_deliveries AS d ON d.notification_id = e.notification_id
    WHERE e.message_id = $1 AND e.left_at IS NULL GROUP BY 1
    UNION ALL
    SELECT '{IN_INBOX}', count(*)
    FROM bongsu_digest_entries AS e
    JOIN bongsu_digests AS g ON g.notification_id = e.notification_id
    JOIN bongsu_notifications AS n ON n.member_id = e.member_id AND n.notification_id = e.notification_id
    WHERE e.message_id = $1 AND (e.left_at IS NULL OR g.size = 0) AND n.channels & {_IN_APP} <> 0""")

# One of the failed deliveries of a message ($1) that the recovery job may send again, if there is one.
_FIND_RETRYABLE = in_both(
    lambda d: (
        f"""
    SELECT d.delivery_id FROM bongsu_deliveries AS d {d.index_hint("bongsu_deliveries_dead_by_message")}
    WHERE d.status IN ('FAIL', 'UNKNOWN') AND d.message_id = $1 AND d.is_retryable
      AND d.recovery_rounds < {MOST_ROUNDS} LIMIT 1"""
    )
)

# The same of the digests that have gathered a message ($1): their deliveries belong to the message that opened them.
_FIND_RETRYABLE_DIGEST = same(f"""
    SELECT d.delivery_id FROM bongsu_digest_entries AS e
    JOIN bongsu_deliveries AS d ON d.notification_id = e.notification_id
    WHERE e.message_id = $1 AND e.left_at IS NULL AND d.status IN ('FAIL', 'UNKNOWN') AND d.is_retryable
      AND d.recovery_rounds < {MOST_ROUNDS} LIMIT 1""")

# The counts of a message ($1) with many recipients, from those that are kept. These do not distinguish what waits from what
# is being sent, which is counted by its own index: few, however many wait. In one statement: what is recorded meanwhile
# counts once.
_COUNT_MANY = in_both(
    lambda d: (
        f"""
    SELECT category, CAST(sum(count) AS bigint) AS count FROM bongsu_message_counts WHERE message_id = $1 GROUP BY category
    UNION ALL
    SELECT 'SENDING', count(*) FROM bongsu_deliveries AS d {d.index_hint("bongsu_deliveries_sending")}
    WHERE d.status = 'SENDING' AND d.message_id = $1"""
    )
)


async def begin(tx: Transaction, event_id: UUID, who: str, *, withdraw: bool) -> Cancellation | NothingLeft | None:
    """Cancel an event. None: there is no such event. Asked again, the answer is the same."""
    event = await fetch_one(tx, _LOCK_EVENT(event_id))
    if event is None:
        return None
    before = await fetch_one(tx, _LOCK_CANCELLATION(event_id))
    is_lifted = before is not None and bool(await tx.fetch(_FIND_LIFTED(event_id)))
    if before is not None and not is_lifted and (before["withdraw"] or not withdraw):
        return _cancellation(tx.dialect, before)
    messages = await tx.fetch(_LOCK_MESSAGES(event_id))
    counts: Counter[str] = Counter()
    for message in messages:
        counts.update(await _counts(tx, message))
    if before is not None and not is_lifted:
        (row,) = await tx.fetch(_ADD_WITHDRAWAL(event_id, counts[IN_INBOX]))
        return _cancellation(tx.dialect, row)
    status = EventStatus(event["status"])
    if before is None and status is not EventStatus.PENDING and not withdraw and not await _may_go(tx, messages, counts):
        return NothingLeft(status)
    await tx.execute(_CANCEL_EVENT(event_id), _CANCEL_MESSAGES(event_id))
    await audience_snapshots.forget(tx, [event_id])
    withdrawn = counts[IN_INBOX] if withdraw else 0
    if before is not None and before["withdraw"]:
        withdraw, withdrawn = True, before["withdrawn"]
    # After a replay, some were cancelled before.
    cancelled, sent = counts["READY"] + counts["CANCELLED"], counts["SENDING"] + counts["SUCCESS"] + counts["UNKNOWN"]
    (row,) = await tx.fetch(_ADD(event_id, who, withdraw, cancelled, sent, withdrawn))
    return _cancellation(tx.dialect, row)


async def _may_go(tx: Transaction, messages: Sequence[Row], counts: Counter[str]) -> bool:
    """Whether anything may be sent yet: it waits, or is being sent and may be retried, or has failed and may be retried."""
    if counts["READY"] or counts["SENDING"] or counts["SHARED"]:
        return True
    for message in messages if counts["FAIL"] or counts["UNKNOWN"] else ():
        find = _FIND_RETRYABLE_DIGEST if message["is_digest"] else _FIND_RETRYABLE
        if await tx.fetch(find(message["message_id"])):
            return True
    return False


async def _counts(tx: Transaction, message: Row) -> Counter[str]:
    """By delivery status, and the inbox rows."""
    message_id = message["message_id"]
    if message["is_digest"]:
        return Counter({row["category"]: row["count"] for row in await tx.fetch(_COUNT_DIGESTS(message_id))})
    if not message["is_bulk"]:
        return Counter({row["category"]: row["count"] for row in await tx.fetch(_COUNT_FEW(message_id))})
    counts = Counter({row["category"]: row["count"] for row in await tx.fetch(_COUNT_MANY(message_id))})
    counts["READY"] = max(0, counts[MADE] - sum(counts[one] for one in ENDED) - counts["SENDING"])
    return counts


def _cancellation(dialect: Dialect, row: Row) -> Cancellation:
    return Cancellation(
        as_uuid(row["event_id"]),
        dialect.time(row["requested_at"]),
        row["requested_by"],
        bool(row["withdraw"]),
        row["cancelled"],
        row["sent"],
        row["withdrawn"],
        row["finished_at"] is not None,
    )
