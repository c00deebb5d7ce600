"""What a member does with one notification: read, unread, archive, unarchive, delete.

_MOVES is the whole table of states. An act that leaves a notification where it is changes no row and draws no change id.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import NamedTuple

from bongsu.model.channels import Channel
from bongsu.store.core.query import Transaction, fetch_one, in_both, optional_time, same
from bongsu.store.inbox import changes
from bongsu.store.members.channel_bits import BITS

_IN_APP = BITS[Channel.IN_APP]


class Place(Enum):
    INBOX = "inbox"
    ARCHIVE = "archive"
    DELETED = "deleted"


class Position(NamedTuple):
    """Where a notification is, and whether it is read."""

    place: Place
    is_read: bool

    @property
    def unread(self) -> int:
        """How much it adds to the member's unread count."""
        return int(self.place is Place.INBOX and not self.is_read)


class State(NamedTuple):
    """One notification, and its member's unread count in the same snapshot."""

    position: Position
    read_at: datetime | None
    unread: int


class Act(Enum):
    """What a member can do with one notification."""

    READ = "read"
    UNREAD = "unread"
    ARCHIVE = "archive"
    UNARCHIVE = "unarchive"
    DELETE = "delete"


class Changed(NamedTuple):
    """The notification after an act (None: the member has no such notification), and whether anything was changed."""

    state: State | None
    is_changed: bool


# Where an act leads from each place it can be done in, and whether the notification is read then (None: as before).
_MOVES: dict[tuple[Act, Place], tuple[Place, bool | None]] = {
    (Act.READ, Place.INBOX): (Place.INBOX, True),
    (Act.READ, Place.ARCHIVE): (Place.ARCHIVE, True),
    (Act.UNREAD, Place.INBOX): (Place.INBOX, False),
    (Act.ARCHIVE, Place.INBOX): (Place.ARCHIVE, True),
    (Act.ARCHIVE, Place.ARCHIVE): (Place.ARCHIVE, True),
    (Act.UNARCHIVE, Place.ARCHIVE): (Place.INBOX, True),
    (Act.UNARCHIVE, Place.INBOX): (Place.INBOX, None),
    (Act.DELETE, Place.INBOX): (Place.DELETED, None),
    (Act.DELETE, Place.ARCHIVE): (Place.DELETED, None),
    (Act.DELETE, Place.DELETED): (Place.DELETED, None),
}


def moved(act: Act, position: Position) -> Position | None:
    """Where an act takes a notification. None: it cannot be done there."""
    place, is_read = _MOVES.get((act, position.place), (None, None))
    return None if place is None else Position(place, position.is_read if is_read is None else is_read)


# One notification ($2) of this member ($1; no row if it is another's), with the unread count of the same snapshot. Locks
# nothing.
_FIND_STATE = same(f"""
    SELECT n.channels & {_IN_APP} <> 0 AS is_in_inbox, n.read_at, n.archived_at, n.deleted_at, m.unread
    FROM bongsu_notifications n JOIN bongsu_members m ON m.member_id = n.member_id
    WHERE n.member_id = $1 AND n.notification_id = $2""")

# Locks the member's row. A statement of its own: only the statements after it see what was committed under the lock before.
_LOCK_MEMBER = in_both(lambda d: f"SELECT 1 AS one FROM bongsu_members WHERE member_id = $1 {d.lock_row}")

# Moves notification $2 of member $1: whether it is in the inbox then ($3), read ($4), archived ($5), deleted ($6), and its
# change id ($7). What is archived was seen. Run under the member's lock.
_MOVE = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_notifications
    SET channels = CASE WHEN CAST($3 AS boolean) THEN channels | {_IN_APP} ELSE channels & ~{_IN_APP} END,
        read_at = CASE WHEN CAST($4 AS boolean) THEN coalesce(read_at, {d.now}) END,
        seen_at = CASE WHEN CAST($5 AS boolean) THEN coalesce(seen_at, {d.now}) ELSE seen_at END,
        archived_at = CASE WHEN CAST($5 AS boolean) THEN {d.now} END,
        deleted_at = CASE WHEN CAST($6 AS boolean) THEN {d.now} END,
        change_id = $7
    WHERE member_id = $1 AND notification_id = $2"""
    )
)

# Keeps the count equal to the unread rows ($2 more), and the newest change id ($3). Run under the member's lock.
_ADD_UNREAD = same("UPDATE bongsu_members SET unread = unread + $2, changed_id = $3 WHERE member_id = $1")


async def find_state(tx: Transaction, member_id: str, notification_id: int) -> State | None:
    """None when the member has no such notification: it is another's, was withdrawn, or never was in the inbox."""
    row = await fetch_one(tx, _FIND_STATE(member_id, notification_id))
    if row is None:
        return None
    if row["is_in_inbox"]:
        place = Place.INBOX
    elif row["archived_at"] is not None:
        place = Place.ARCHIVE
    elif row["deleted_at"] is not None:
        place = Place.DELETED
    else:
        return None
    read_at = optional_time(tx.dialect, row["read_at"])
    return State(Position(place, read_at is not None), read_at, row["unread"])


async def apply_act(tx: Transaction, member_id: str, notification_id: int, act: Act) -> Changed:
    """Do it if it can be done. The member's row stays locked until the transaction ends."""
    await tx.fetch(_LOCK_MEMBER(member_id))
    before = await find_state(tx, member_id, notification_id)
    if before is None:
        return Changed(None, is_changed=False)
    after = moved(act, before.position)
    if after is None or after == before.position:
        return Changed(before, is_changed=False)
    (change_id,) = await changes.draw(tx)
    is_in = {place: after.place is place for place in Place}
    columns = (is_in[Place.INBOX], after.is_read, is_in[Place.ARCHIVE], is_in[Place.DELETED], change_id)
    added = after.unread - before.position.unread
    await tx.execute(_MOVE(member_id, notification_id, *columns), _ADD_UNREAD(member_id, added, change_id))
    return Changed(await find_state(tx, member_id, notification_id), is_changed=True)
