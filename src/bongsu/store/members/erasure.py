"""Statements that erase a member: everything that has the member's id in a `member_id` column, and what only they got.

A part deletes a bounded number of rows. Locks in one order: events; the member; deliveries that are not locked; chat
rooms. Chat messages stay in their place in the room, without text and sender.
Deciding locks the member before it notifies, so what the last part leaves behind is nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson

from bongsu.store.chat.removal import erase_chat
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import EVENT_ID, MESSAGE_ID, Statement, Table, Transaction, as_uuid, in_both, same
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.decisions import audience_snapshots
from bongsu.store.members.erased_actors import FIND_ACTED
from bongsu.store.retention import (
    NotificationKey,
    delete_deliveries_of,
    delete_unused_messages,
    delete_without_deliveries,
)


@dataclass(frozen=True)
class Erased:
    """What a part has deleted, by kind; the messages that the member had; the chat rooms that they were in, and
    all in which something has changed; and whether that was the last of the member."""

    counts: Counter[str] = field(default_factory=Counter)
    message_ids: Sequence[int] = ()
    left_rooms: Sequence[UUID] = ()
    changed_rooms: Sequence[UUID] = ()
    is_last: bool = False


# --- events -----------------------------------------------------------------------------------------------------------


# Up to $2 events to the member ($1) that are not DONE, by the index of these. Locks them: a step that decides one is waited
# for.
LOCK_EVENTS = in_both(
    lambda d: (
        f"""
    SELECT event_id FROM bongsu_events {d.index_hint("bongsu_events_target")}
    WHERE target_id = $1 AND target_id IS NOT NULL AND status <> 'DONE' ORDER BY event_id LIMIT $2 {d.lock_row}"""
    )
)

# One of these events of the member ($1), if there is one. Locks nothing.
_FIND_EVENT = in_both(
    lambda d: (
        f"""
    SELECT 1 AS one FROM bongsu_events {d.index_hint("bongsu_events_target")}
    WHERE target_id = $1 AND target_id IS NOT NULL AND status <> 'DONE' LIMIT 1"""
    )
)

# End the events given and delete whom they were about. A worker that has claimed one finds its epoch stale. They are locked.
CANCEL_EVENTS = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_events
    SET status = 'CANCELLED', finished_at = coalesce(finished_at, {d.now}), epoch = epoch + 1, claim_count = 0,
        leased_by = NULL, fanout_cursor = NULL, actor_id = NULL, target_id = NULL, payload = '{{}}', error = NULL
    WHERE event_id IN (SELECT given.event_id FROM {d.table("given", EVENT_ID, 1)})"""
    )
)

# Delete whom the events given were about, if they have no message any more. They are finished and locked.
FORGET_EVENTS = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_events SET actor_id = NULL, target_id = NULL, payload = '{{}}', error = NULL
    WHERE event_id IN (SELECT given.event_id FROM {d.table("given", EVENT_ID, 1)})
      AND (SELECT 1 FROM bongsu_messages AS m WHERE m.event_id = bongsu_events.event_id LIMIT 1) IS NULL"""
    )
)

# Those of the events given that are finished. Locks them in id order, and waits for others: an erasure of another who had
# the same message may hold the lock, and only the later of the two finds that no member has it any more.
LOCK_FINISHED = Statement(
    postgres=f"""
        SELECT e.event_id FROM bongsu_events AS e
        WHERE e.event_id IN (SELECT given.event_id FROM {POSTGRES.table("given", EVENT_ID, 1)}) AND e.status <> 'PENDING'
        ORDER BY e.event_id FOR UPDATE""",
    sqlite=f"""
        SELECT e.event_id FROM {SQLITE.table("given", EVENT_ID, 1)}
        CROSS JOIN bongsu_events AS e ON e.event_id = given.event_id WHERE e.status <> 'PENDING'""",
)

# The events of the messages given. Locks nothing.
FIND_EVENTS = in_both(
    lambda d: (
        f"""
    SELECT DISTINCT m.event_id FROM {d.table("given", MESSAGE_ID, 1)}
    JOIN bongsu_messages AS m ON m.message_id = given.message_id"""
    )
)


async def cancel_events(tx: Transaction, member_id: str, limit: int) -> int:
    """Cancel events to the member that wait or have failed: decided or replayed later, they would insert the member
    again."""
    event_ids = [as_uuid(row["event_id"]) for row in await tx.fetch(LOCK_EVENTS(member_id, limit))]
    if event_ids:
        await tx.execute(CANCEL_EVENTS(Table.of(EVENT_ID, event_ids)))
        await audience_snapshots.forget(tx, event_ids)
    return len(event_ids)


async def forget_messages(tx: Transaction, message_ids: Sequence[int]) -> Counter[str]:
    """Delete those of these messages that no other member has, and whom their events were about."""
    rows = await tx.fetch(FIND_EVENTS(Table.of(MESSAGE_ID, message_ids)))
    given = Table.of(EVENT_ID, [as_uuid(row["event_id"]) for row in rows])
    locked = [as_uuid(row["event_id"]) for row in await tx.fetch(LOCK_FINISHED(given))]
    messages = await delete_unused_messages(tx, locked)
    (events,) = await tx.execute(FORGET_EVENTS(Table.of(EVENT_ID, locked)))
    return Counter(messages=messages, events=events)


# --- the member -------------------------------------------------------------------------------------------------------

# Locks the member's row ($1), if there is one: the member is not being notified then.
_LOCK_MEMBER = in_both(lambda d: f"SELECT 1 AS one FROM bongsu_members WHERE member_id = $1 {d.lock_row}")

# The member's ($1) first $2 notifications. Run under the member's lock.
FIND_NOTIFICATIONS = in_both(
    lambda d: (
        f"""
    SELECT notification_id, message_id
    FROM bongsu_notifications {d.index_hint("bongsu_notifications_inbox")}
    WHERE member_id = $1 ORDER BY notification_id LIMIT $2"""
    )
)

# Delete up to $2 suppressions of the member ($1); return their messages. Locks them; waits only for the retention job,
# which does not wait.
DELETE_SUPPRESSIONS = in_both(
    lambda d: (
        f"""
    DELETE FROM bongsu_suppressions WHERE member_id = $1 AND message_id IN (
        SELECT s.message_id FROM bongsu_suppressions AS s {d.index_hint("bongsu_suppressions_member")}
        WHERE s.member_id = $1 ORDER BY s.message_id LIMIT $2)
    RETURNING message_id"""
    )
)

# Delete up to $2 behaviours of the member ($1), by the index of members. Locks them in whatever order: others insert or
# update a behaviour at a time.
DELETE_BEHAVIORS = in_both(
    lambda d: (
        f"""
    DELETE FROM bongsu_behaviors WHERE (product_id, member_id, action) IN (
        SELECT b.product_id, b.member_id, b.action FROM bongsu_behaviors AS b {d.index_hint("bongsu_behaviors_member")}
        WHERE b.member_id = $1 LIMIT $2)"""
    )
)

# How many devices the member has ($1), for the record of the erasure. Locks nothing.
_COUNT_DEVICES = same("SELECT count(*) AS count FROM bongsu_devices WHERE member_id = $1")

# Delete the member ($1); devices, addresses and preferences go with the row. Run under the member's lock.
# Returns it, because a count would include those on SQLite.
DELETE_MEMBER = same("DELETE FROM bongsu_members WHERE member_id = $1 RETURNING member_id")


# Finished replays and erasures whose input has a text ($1). Reads all of them, and locks nothing.
FIND_INPUTS = Statement(
    postgres="""
        SELECT run_id, input FROM bongsu_runs
        WHERE job IN ('replay', 'erase') AND finished_at IS NOT NULL AND strpos(input, $1) > 0""",
    sqlite="""
        SELECT run_id, input FROM bongsu_runs INDEXED BY bongsu_runs_by_job
        WHERE job IN ('replay', 'erase') AND finished_at IS NOT NULL AND instr(input, $1) > 0""",
)


async def find_inputs(tx: Transaction, member_id: str) -> dict[int, Any]:
    """What was requested about the member by runs that are finished, by run."""
    rows = await tx.fetch(FIND_INPUTS(orjson.dumps(member_id).decode()))
    return {row["run_id"]: orjson.loads(row["input"]) for row in rows}


async def erase_part(tx: Transaction, member_id: str, limit: int) -> Erased:
    """Delete the next rows of the member; if none are left, the member."""
    events = await cancel_events(tx, member_id, limit)
    await tx.fetch(_LOCK_MEMBER(member_id))
    rows = await tx.fetch(FIND_NOTIFICATIONS(member_id, limit))
    keys = [NotificationKey(member_id, row["notification_id"]) for row in rows]
    counts = Counter(events=events)
    message_ids: list[int] = []
    if keys:
        counts["deliveries"] = await delete_deliveries_of(tx, keys, only_finished=False)
        # One whose delivery a dispatcher is recording at this moment stays for the next part.
        deleted = await delete_without_deliveries(tx, keys)
        counts["notifications"] = len(deleted)
        message_ids += [row["message_id"] for row in deleted]
    suppressed = await tx.fetch(DELETE_SUPPRESSIONS(member_id, limit))
    counts["suppressions"] = len(suppressed)
    message_ids += [row["message_id"] for row in suppressed]
    (counts["behaviors"],) = await tx.execute(DELETE_BEHAVIORS(member_id, limit))
    chat = await erase_chat(tx, member_id, limit)
    counts.update({"chat rooms": len(chat.rooms), "chat messages": chat.messages})
    is_last = not keys and not suppressed and max(events, counts["behaviors"]) < limit
    is_last = is_last and not chat.rooms and chat.messages < limit and not await tx.fetch(FIND_ACTED(member_id, 1))
    if is_last:
        (row,) = await tx.fetch(_COUNT_DEVICES(member_id))
        counts["devices"] = row["count"]
        counts["members"] = len(await tx.fetch(DELETE_MEMBER(member_id)))
        # One that was stored since the look at events above would insert the member again: the next part cancels it.
        is_last = not await tx.fetch(_FIND_EVENT(member_id))
    return Erased(counts, message_ids, chat.rooms, chat.changed_rooms, is_last)
