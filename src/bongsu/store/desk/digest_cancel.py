"""Cancelled events in digests: what they added leaves the digest, and the digest goes on with what is left.

A digest that has nothing left is not sent and, if that was asked for, withdrawn; nothing is merged into it any more. Else it
gets a new text, and the pages that show it are updated. Locks: the members, by id; then deliveries that are not locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bongsu.model.channels import Channel
from bongsu.store.core.locks import lock_members
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import NOTIFICATION_ID, Row, Statement, Table, Transaction, in_both, same
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.desk.digest_remainders import Rewrite, find_remainders, rewrite_texts
from bongsu.store.inbox import changes
from bongsu.store.members.channel_bits import BITS
from bongsu.store.messages.counts import count_ended

_IN_APP = BITS[Channel.IN_APP]


@dataclass(frozen=True)
class Left:
    """What a step has changed: deliveries ended, inbox rows withdrawn (member, notification), and members whose digests have
    a new text. `is_again`: others had locked some deliveries."""

    cancelled: int = 0
    withdrawn: Sequence[tuple[str, int]] = ()
    updated: Sequence[str] = ()
    is_again: bool = False


_CHANGE = {"notification_id": "bigint", "member_id": "text", "change_id": "bigint"}

# Whether a message ($1) has digests; no row if it was deleted. Locks nothing.
IS_DIGEST = same("SELECT is_digest FROM bongsu_messages WHERE message_id = $1")

# The last of the next $3 members of a message ($1) behind one ($2), and how many they are. Locks nothing.
NEXT_MEMBERS = same("""
    SELECT max(next.member_id) AS last, count(*) AS count FROM (
        SELECT member_id FROM bongsu_digest_entries WHERE message_id = $1 AND member_id > $2
        ORDER BY member_id LIMIT $3) AS next""")

# The members behind $2 up to $3 for whom a digest has gathered message $1, with those digests. Locks nothing.
FIND_ENTRIES = same("""
    SELECT member_id, notification_id FROM bongsu_digest_entries
    WHERE message_id = $1 AND member_id > $2 AND member_id <= $3""")

# What message $1 added for these members leaves their digests, once. Run under the members' locks.
LEAVE = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_digest_entries SET left_at = {d.now}, actor_id = NULL, actor_name = NULL
    WHERE message_id = $1 AND member_id > $2 AND member_id <= $3 AND left_at IS NULL
    RETURNING notification_id"""
    )
)

# Lowers how many the digests given ($1) have. Run under the members' locks.
LOWER_SIZES = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_digests SET size = size - 1
    WHERE notification_id IN (SELECT given.notification_id FROM {d.table("given", NOTIFICATION_ID, 1)})"""
    )
)

# A delivery that waits for a claim, or has failed and may be retried.
_STOPPABLE = "(d.is_retryable OR (d.status = 'READY' AND d.leased_by IS NULL))"

# Ends the waiting deliveries of the notifications given ($1), and lets none that has failed be retried. Returns them as they
# are then. Locks their rows; skips locked ones, whose dispatcher finds their digests empty.
CANCEL_DELIVERIES = Statement(
    postgres=f"""
    WITH free AS MATERIALIZED (
        SELECT one.delivery_id FROM {POSTGRES.table("given", NOTIFICATION_ID, 1)}
        CROSS JOIN LATERAL (
            SELECT d.delivery_id FROM bongsu_deliveries AS d
            WHERE d.notification_id = given.notification_id AND {_STOPPABLE} FOR UPDATE SKIP LOCKED) AS one)
    UPDATE bongsu_deliveries
    SET status = CASE WHEN status = 'READY' THEN 'CANCELLED' ELSE status END,
        finished_at = CASE WHEN status = 'READY' THEN {POSTGRES.now} ELSE finished_at END, is_retryable = false
    WHERE delivery_id = ANY(ARRAY(SELECT delivery_id FROM free))
    RETURNING message_id, channel, status""",
    sqlite=f"""
    UPDATE bongsu_deliveries AS d
    SET status = CASE WHEN status = 'READY' THEN 'CANCELLED' ELSE status END,
        finished_at = CASE WHEN status = 'READY' THEN {SQLITE.now} ELSE finished_at END, is_retryable = false
    WHERE notification_id IN (SELECT given.notification_id FROM {SQLITE.table("given", NOTIFICATION_ID, 1)})
      AND {_STOPPABLE}
    RETURNING message_id, channel, status""",
)

# One of them that was skipped and is as it was, if there is one. Locks nothing.
FIND_SKIPPED = in_both(
    lambda d: (
        f"""
    SELECT d.delivery_id FROM {d.table("given", NOTIFICATION_ID, 1)}
    JOIN bongsu_deliveries AS d ON d.notification_id = given.notification_id WHERE {_STOPPABLE} LIMIT 1"""
    )
)

# Takes the notifications given ($1) out of the inboxes and archives, with their change ids; the history keeps them. Returns
# whose they are. Run under the members' locks.
WITHDRAW = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_notifications SET channels = channels & ~{_IN_APP}, archived_at = NULL, change_id = given.change_id
    FROM {d.table("given", _CHANGE, 1)}
    WHERE bongsu_notifications.member_id = given.member_id
      AND bongsu_notifications.notification_id = given.notification_id
    RETURNING bongsu_notifications.member_id, bongsu_notifications.notification_id"""
    )
)

# Lowers the unread counts of those of the members ($1) who have not read theirs. Run under their locks, before WITHDRAW.
LOWER_UNREAD = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_members SET unread = bongsu_members.unread - 1
    FROM {d.table("given", _CHANGE, 1)}
    JOIN bongsu_notifications AS n ON n.member_id = given.member_id AND n.notification_id = given.notification_id
    WHERE bongsu_members.member_id = given.member_id AND n.read_at IS NULL AND n.channels & {_IN_APP} <> 0"""
    )
)


async def leave_digests(
    tx: Transaction, message_id: int, after: str, last: str, *, withdraw: bool, rewrite: Rewrite | None
) -> Left:
    """What the message added for the members behind `after` up to `last` leaves their digests. May be repeated."""
    members = (message_id, after, last)
    found = await tx.fetch(FIND_ENTRIES(*members))
    await tx.fetch(lock_members(row["member_id"] for row in found))
    left = {row["notification_id"] for row in await tx.fetch(LEAVE(*members))}
    if left:
        await tx.execute(LOWER_SIZES(Table.of(NOTIFICATION_ID, sorted(left))))
    rows = await find_remainders(tx, sorted(row["notification_id"] for row in found))
    updated = await rewrite_texts(tx, [row for row in rows if row["size"] and row["notification_id"] in left], rewrite)
    empty = [row for row in rows if not row["size"]]
    cancelled, is_again = await _stop(tx, empty)
    withdrawn = await _withdraw(tx, empty) if withdraw else ()
    return Left(cancelled, withdrawn, updated, is_again)


async def _stop(tx: Transaction, rows: Sequence[Row]) -> tuple[int, bool]:
    """End the waiting deliveries of these digests. How many, and whether some were locked."""
    if not rows:
        return 0, False
    given = Table.of(NOTIFICATION_ID, [row["notification_id"] for row in rows])
    stopped = await tx.fetch(CANCEL_DELIVERIES(given))
    ended = [(row["message_id"], row["channel"], row["status"]) for row in stopped if row["status"] == "CANCELLED"]
    await count_ended(tx, ended)
    return len(ended), bool(await tx.fetch(FIND_SKIPPED(given)))


async def _withdraw(tx: Transaction, rows: Sequence[Row]) -> list[tuple[str, int]]:
    shown = [row for row in rows if row["is_shown"]]
    if not shown:
        return []
    drawn = await changes.draw(tx, len(shown))
    rows_changed = [(row["notification_id"], row["member_id"], change) for row, change in zip(shown, drawn, strict=True)]
    given = Table(_CHANGE, rows_changed)
    await tx.execute(LOWER_UNREAD(given))
    withdrawn = await tx.fetch(WITHDRAW(given))
    await changes.set_changed(tx, [(member_id, change_id) for _, member_id, change_id in rows_changed])
    return [(row["member_id"], row["notification_id"]) for row in withdrawn]
