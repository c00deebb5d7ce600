"""Marking many at once, as read or as seen: all up to an id, in bounded parts.

The rows get no change ids. The member's row has one mark for all of them, "everything up to this id", with one change id:
pages are sent that. A mark never goes back, and what it says is true at its change id: each part marks everything up to its
end, also what became unread again since the part before.
"""

from __future__ import annotations

from dataclasses import dataclass

from bongsu.store.core.query import Transaction, fetch_one, in_both, same
from bongsu.store.inbox import changes
from bongsu.store.inbox.reading import IS_IN_APP


@dataclass(frozen=True)
class MarkedRead:
    """How many notifications became read, how many are unread after that, and up to which id none is."""

    read: int
    unread: int
    end: int


# Locks the member's row. A statement of its own: only the statements after it see what was committed under the lock before.
_LOCK_MEMBER = in_both(
    lambda d: f"SELECT unread, read_up_to, seen_up_to FROM bongsu_members WHERE member_id = $1 {d.lock_row}"
)

# --- read -------------------------------------------------------------------------------------------------------------

# The id of the unread notification that is $4 places after the first of those above $2, up to $3.
_FIND_READ_END = in_both(
    lambda d: (
        f"""
    SELECT notification_id FROM bongsu_notifications {d.index_hint("bongsu_notifications_unread")}
    WHERE member_id = $1 AND notification_id > $2 AND notification_id <= $3 AND read_at IS NULL AND {IS_IN_APP}
    ORDER BY notification_id LIMIT 1 OFFSET $4"""
    )
)

# Marks all unread up to $2. Run under the member's lock.
_MARK_READ = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_notifications {d.index_hint("bongsu_notifications_unread")} SET read_at = {d.now}
    WHERE member_id = $1 AND notification_id <= $2 AND read_at IS NULL AND {IS_IN_APP}"""
    )
)

# Keeps the count equal to the unread rows ($2 fewer), and says that all up to $3 are read, at change id $4. Run under the
# member's lock.
_SET_READ_MARK = same("""
    UPDATE bongsu_members SET unread = unread - $2, read_up_to = $3, read_change_id = $4, changed_id = $4
    WHERE member_id = $1""")


async def mark_read(tx: Transaction, member_id: str, last: int, limit: int) -> MarkedRead:
    """Mark at most about `limit` of the unread up to `last`, which is no id of the future: all up to it are read then. The
    member's row stays locked until the transaction ends."""
    member = await fetch_one(tx, _LOCK_MEMBER(member_id))
    if member is None:
        return MarkedRead(0, 0, last)
    # What has become unread again below the mark is read with the first part, so that the mark need not go back.
    begin = member["read_up_to"] or 0
    last = max(last, begin)
    row = await fetch_one(tx, _FIND_READ_END(member_id, begin, last, limit - 1))
    end = last if row is None else row["notification_id"]
    (read,) = await tx.execute(_MARK_READ(member_id, end))
    if read:
        (change_id,) = await changes.draw(tx)
        await tx.execute(_SET_READ_MARK(member_id, read, end, change_id))
    return MarkedRead(read, member["unread"] - read, end)


# --- seen -------------------------------------------------------------------------------------------------------------

# The id of the notification in the inbox that is $4 places after the first of those above $2, up to $3.
_FIND_SEEN_END = in_both(
    lambda d: (
        f"""
    SELECT notification_id FROM bongsu_notifications {d.index_hint("bongsu_notifications_inbox")}
    WHERE member_id = $1 AND notification_id > $2 AND notification_id <= $3 AND {IS_IN_APP}
    ORDER BY notification_id LIMIT 1 OFFSET $4"""
    )
)

# Marks those above $2, up to $3. Run under the member's lock.
_MARK_SEEN = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_notifications {d.index_hint("bongsu_notifications_inbox")} SET seen_at = {d.now}
    WHERE member_id = $1 AND notification_id > $2 AND notification_id <= $3 AND seen_at IS NULL AND {IS_IN_APP}"""
    )
)

# Says that all up to $2 are seen, at change id $3. Run under the member's lock.
_SET_SEEN_MARK = same("""
    UPDATE bongsu_members SET seen_up_to = $2, seen_change_id = $3, changed_id = $3 WHERE member_id = $1""")


async def mark_seen(tx: Transaction, member_id: str, last: int, limit: int) -> int:
    """Mark at most `limit` of those up to `last` that are above the mark; return up to which all are seen then."""
    member = await fetch_one(tx, _LOCK_MEMBER(member_id))
    begin: int = last if member is None else member["seen_up_to"] or 0
    if begin >= last:
        return begin
    row = await fetch_one(tx, _FIND_SEEN_END(member_id, begin, last, limit - 1))
    end: int = last if row is None else row["notification_id"]
    await tx.execute(_MARK_SEEN(member_id, begin, end))
    (change_id,) = await changes.draw(tx)
    await tx.execute(_SET_SEEN_MARK(member_id, end, change_id))
    return end
