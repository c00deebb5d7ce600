"""The steps of a cancellation: end the waiting deliveries of the next members and, if asked, withdraw their inbox rows.

Any process may do a step. The row of the cancellation has their cursor: the message and the last member that are done.

Locks in one order: the cancellation; then either members by id, or those deliveries that are not locked. Never both
in one transaction: a member's call must not wait for a step that waits for a dispatcher.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from bongsu.model.channels import Channel
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import EVENT_ID, Row, Statement, Table, Transaction, as_uuid, fetch_one, in_both, same
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.core.store import Store
from bongsu.store.desk import digest_cancel
from bongsu.store.desk.digest_remainders import Rewrite
from bongsu.store.inbox import changes
from bongsu.store.members.channel_bits import BITS
from bongsu.store.messages.counts import count_ended

_IN_APP = BITS[Channel.IN_APP]


@dataclass(frozen=True)
class Step:
    """What a step has changed: of which event and message, and whose inbox rows (member, notification) it withdrew."""

    event_id: UUID
    message_id: int
    cancelled: int
    withdrawn: Sequence[tuple[str, int]]
    is_last: bool
    # Others had locked deliveries of these members: the next step looks at them again.
    is_again: bool = False
    # Members whose digests have a new text.
    updated: Sequence[str] = ()

    @property
    def is_changed(self) -> bool:
        return bool(self.cancelled or self.withdrawn or self.updated)


@dataclass(frozen=True)
class Part:
    """The members whose rows a step changes: of a message, behind `after` up to `last`, and what was changed already.

    `begin` and `end` are the cursor of the cancellation before this step and after it.
    """

    event_id: UUID
    begin: tuple[int, str]
    message_id: int
    after: str
    # None: no member is left.
    last: str | None
    end: tuple[int, str]
    withdraw: bool
    cancelled: int = 0
    is_again: bool = False
    # The members have it in a digest (digest_cancel.py).
    is_digest: bool = False


# An unfinished cancellation, the oldest first but none of these events ($2), or that of one event ($1). Locks its row; skips
# it if another process is doing a step of it.
_TAKE = in_both(
    lambda d: (
        f"""
    SELECT event_id, withdraw, cursor_message_id, cursor_member_id
    FROM bongsu_cancellations {d.index_hint("bongsu_cancellations_open")}
    WHERE finished_at IS NULL AND (CAST($1 AS uuid) IS NULL OR event_id = $1)
      AND event_id NOT IN (SELECT passed.event_id FROM {d.table("passed", EVENT_ID, 2)})
    ORDER BY requested_at LIMIT 1 {d.skip_locked}"""
    )
)

# The event's ($1) first message from an id on ($2).
_NEXT_MESSAGE = same("""
    SELECT min(message_id) AS message_id FROM bongsu_messages WHERE event_id = $1 AND message_id >= $2""")

# The last of the next $3 members of a message ($1) behind one ($2), and how many they are.
_NEXT_MEMBERS = same("""
    SELECT max(next.member_id) AS last, count(*) AS count FROM (
        SELECT member_id FROM bongsu_notifications WHERE message_id = $1 AND member_id > $2
        ORDER BY member_id LIMIT $3) AS next""")

# Locks the members of message $1 behind $2 up to $3, in id order: every change of what is unread is made under this lock.
_LOCK_MEMBERS = Statement(
    postgres="""
        SELECT count(*) AS count FROM (
            SELECT m.member_id FROM bongsu_members AS m
            WHERE m.member_id IN (
                SELECT n.member_id FROM bongsu_notifications AS n
                WHERE n.message_id = $1 AND n.member_id > $2 AND n.member_id <= $3)
            ORDER BY m.member_id FOR NO KEY UPDATE) AS locked""",
    sqlite="SELECT 0 AS count",
)

# In the inbox, or archived by the member.
_IS_SHOWN = f"(n.channels & {_IN_APP} <> 0 OR n.archived_at IS NOT NULL)"

# Lowers the unread counts of those who have not read it, and sets the change id ($4) of all who have it. Their rows are
# locked.
_CHANGE_MEMBERS = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_members AS m {d.index_hint("sqlite_autoindex_bongsu_members_1")}
    SET unread = m.unread - CASE WHEN n.read_at IS NULL AND n.channels & {_IN_APP} <> 0 THEN 1 ELSE 0 END, changed_id = $4
    FROM bongsu_notifications AS n
    WHERE n.message_id = $1 AND n.member_id > $2 AND n.member_id <= $3 AND {_IS_SHOWN} AND m.member_id = n.member_id"""
    )
)

# Takes the rows out of the inboxes and archives, with the change id $4; the history keeps them. Returns whose they are. The
# members are locked.
_WITHDRAW = same(f"""
    UPDATE bongsu_notifications AS n SET channels = n.channels & ~{_IN_APP}, archived_at = NULL, change_id = $4
    WHERE n.message_id = $1 AND n.member_id > $2 AND n.member_id <= $3 AND {_IS_SHOWN}
    RETURNING member_id, notification_id""")

# A delivery that waits for a claim, or has failed and may be retried.
_STOPPABLE = "(d.is_retryable OR (d.status = 'READY' AND d.leased_by IS NULL))"

# Deliveries of message $1 to the members behind $2 up to $3. On PostgreSQL LATERAL with a lock or OFFSET 0 looks them up by
# notification: of a campaign that is newer than its statistics, the planner would rather look at all that is stoppable.
_NOTIFICATIONS = """(
            SELECT x.notification_id FROM bongsu_notifications AS x
            WHERE x.message_id = $1 AND x.member_id > $2 AND x.member_id <= $3 OFFSET 0) AS n"""

# Ends those that wait, and lets none that has failed be retried. Returns them as they are then. Locks their rows; skips
# locked ones, whose dispatcher finds them cancelled: waiting for it here could deadlock with what it is about to record.
_CANCEL_DELIVERIES = Statement(
    postgres=f"""
    WITH free AS MATERIALIZED (
        SELECT one.delivery_id FROM {_NOTIFICATIONS}
        CROSS JOIN LATERAL (
            SELECT d.delivery_id FROM bongsu_deliveries AS d
            WHERE d.notification_id = n.notification_id AND {_STOPPABLE}
            FOR UPDATE SKIP LOCKED) AS one)
    UPDATE bongsu_deliveries
    SET status = CASE WHEN status = 'READY' THEN 'CANCELLED' ELSE status END,
        finished_at = CASE WHEN status = 'READY' THEN {POSTGRES.now} ELSE finished_at END,
        is_retryable = false
    WHERE delivery_id = ANY(ARRAY(SELECT delivery_id FROM free))
    RETURNING channel, status""",
    sqlite=f"""
    UPDATE bongsu_deliveries AS d
    SET status = CASE WHEN status = 'READY' THEN 'CANCELLED' ELSE status END,
        finished_at = CASE WHEN status = 'READY' THEN {SQLITE.now} ELSE finished_at END,
        is_retryable = false
    WHERE notification_id IN (
        SELECT n.notification_id FROM bongsu_notifications AS n
        WHERE n.message_id = $1 AND n.member_id > $2 AND n.member_id <= $3) AND {_STOPPABLE}
    RETURNING channel, status""",
)

# One of them that was skipped and is as it was, if there is one. SQLite has one writer: none is. Locks nothing.
_FIND_SKIPPED = Statement(
    postgres=f"""
    SELECT 1 FROM {_NOTIFICATIONS}
    CROSS JOIN LATERAL (
        SELECT x.is_retryable, x.status, x.leased_by FROM bongsu_deliveries AS x
        WHERE x.notification_id = n.notification_id OFFSET 0) AS d
    WHERE {_STOPPABLE} LIMIT 1""",
    sqlite="SELECT 1 WHERE $1 < 0 AND $2 = $3",
)

# The planner sees how many members lie between the two, and looks up the rows of so few by their keys.
_PLAN_BY_VALUES = Statement(postgres="SET LOCAL plan_cache_mode = force_custom_plan", sqlite="SELECT 1")

# The row of the cancellation of event $1, if its cursor is still message $2, member $3. Locks it; skips it if another
# process is doing a step of it.
_TAKE_AGAIN = in_both(
    lambda d: (
        f"""
    SELECT event_id FROM bongsu_cancellations
    WHERE event_id = $1 AND cursor_message_id = $2 AND cursor_member_id = $3 AND finished_at IS NULL {d.skip_locked}"""
    )
)

# Saves the cursor: message $2, member $3; $4 is whether that was all.
_SAVE = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_cancellations
    SET cursor_message_id = $2, cursor_member_id = $3, finished_at = CASE WHEN CAST($4 AS boolean) THEN {d.now} END
    WHERE event_id = $1"""
    )
)


async def step(
    store: Store,
    limit: int,
    event_id: UUID | None = None,
    passed_over: Collection[UUID] = (),
    rewrite: Rewrite | None = None,
) -> Step | None:
    """Change the rows of the next members of an unfinished cancellation, but not of those passed over. None: there is none,
    or others are at it.

    In two transactions: while the members are locked, nothing waits for a dispatcher that has locked a delivery. `rewrite`
    gives the text of digests that it has left; without it they keep theirs.
    """
    async with store.transaction() as tx:
        part = await stop_deliveries(tx, limit, event_id, passed_over)
    if part is None:
        return None
    withdrawn: Sequence[tuple[str, int]] = ()
    if part.is_digest:
        async with store.transaction() as tx:
            return await leave_part(tx, part, rewrite)
    if part.withdraw and part.last is not None:
        async with store.transaction() as tx:
            withdrawn = await withdraw_part(tx, part)
    return Step(part.event_id, part.message_id, part.cancelled, withdrawn, is_last=part.last is None, is_again=part.is_again)


async def stop_deliveries(
    tx: Transaction, limit: int, event_id: UUID | None = None, passed_over: Collection[UUID] = ()
) -> Part | None:
    """End the waiting deliveries of the next members. To be followed by `withdraw_part` if that was asked for."""
    open_one = await fetch_one(tx, _TAKE(event_id, Table.of(EVENT_ID, passed_over)))
    if open_one is None:
        return None
    part = await _next_part(tx, open_one, limit)
    if part.last is None:
        # Without the last member's id: it is not needed again.
        await tx.execute(_SAVE(part.event_id, part.end[0], "", True))
        return part
    if part.is_digest:
        return part
    members = (part.message_id, part.after, part.last)
    rows = await tx.fetch(_PLAN_BY_VALUES(), _CANCEL_DELIVERIES(*members))
    ended = [(part.message_id, row["channel"], row["status"]) for row in rows if row["status"] == "CANCELLED"]
    await count_ended(tx, ended)
    is_again = bool(await tx.fetch(_FIND_SKIPPED(*members)))
    if not is_again and not part.withdraw:
        await tx.execute(_SAVE(part.event_id, *part.end, False))
    return replace(part, cancelled=len(ended), is_again=is_again)


async def _next_part(tx: Transaction, open_one: Row, limit: int) -> Part:
    """Of the first message that has members left."""
    event_id, withdraw = as_uuid(open_one["event_id"]), bool(open_one["withdraw"])
    begin = message_id, after = (open_one["cursor_message_id"], open_one["cursor_member_id"])
    while True:
        (message,) = await tx.fetch(_NEXT_MESSAGE(event_id, message_id))
        if message["message_id"] is None:
            return Part(event_id, begin, 0, "", None, begin, withdraw)
        if message["message_id"] != message_id:
            message_id, after = message["message_id"], ""
        is_digest = any(row["is_digest"] for row in await tx.fetch(digest_cancel.IS_DIGEST(message_id)))
        next_members = digest_cancel.NEXT_MEMBERS if is_digest else _NEXT_MEMBERS
        (members,) = await tx.fetch(next_members(message_id, after, limit))
        # With the next message, or behind the last member of this one.
        end = (message_id, members["last"]) if members["count"] == limit else (message_id + 1, "")
        if members["last"] is not None:
            return Part(event_id, begin, message_id, after, members["last"], end, withdraw, is_digest=is_digest)
        message_id, after = end


async def withdraw_part(tx: Transaction, part: Part) -> Sequence[tuple[str, int]]:
    """Take the rows of these members out of their inboxes; return whose they were. Does nothing if others have done it."""
    if not await tx.fetch(_TAKE_AGAIN(part.event_id, *part.begin)):
        return ()
    members = (part.message_id, part.after, part.last)
    await tx.fetch(_PLAN_BY_VALUES(), _LOCK_MEMBERS(*members))
    # One for all: each member has one notification of the message.
    (change_id,) = await changes.draw(tx)
    rows = await tx.fetch(_CHANGE_MEMBERS(*members, change_id), _WITHDRAW(*members, change_id))
    if not part.is_again:
        await tx.execute(_SAVE(part.event_id, *part.end, False))
    return [(row["member_id"], row["notification_id"]) for row in rows]


async def leave_part(tx: Transaction, part: Part, rewrite: Rewrite | None) -> Step | None:
    """What the event added for these members leaves their digests. None if others are at it."""
    assert part.last is not None
    if not await tx.fetch(_TAKE_AGAIN(part.event_id, *part.begin)):
        return None
    members = (part.message_id, part.after, part.last)
    left = await digest_cancel.leave_digests(tx, *members, withdraw=part.withdraw, rewrite=rewrite)
    if not left.is_again:
        await tx.execute(_SAVE(part.event_id, *part.end, False))
    return Step(
        part.event_id,
        part.message_id,
        left.cancelled,
        left.withdrawn,
        is_last=False,
        is_again=left.is_again,
        updated=left.updated,
    )
