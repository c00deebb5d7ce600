"""Change ids: the position in a member's live cursor of what was changed after it was stored.

They come from the sequence of the notification ids. Draw them under the locks of all members whose rows they are for: then
they are above every notification id and change id that was committed for these members, and below all that come later. So
one cursor per member covers both.

- Two changes of one member need two change ids. Changes of different members may share one: a cursor is a member's own.
- Write each to the changed row (or to the member's mark), and the newest of a member to bongsu_members.changed_id, in the
  same transaction: gateways look for changes of a member only if changed_id is above the cursor.
- SQLite decides a step's notification ids before it inserts the rows. In such a step, draw after the rows are inserted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from bongsu.model import Channel
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import Dialect, Row, Statement, Table, Transaction, in_both, only_sqlite, optional_time
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.members.channel_bits import BITS

_IN_APP = BITS[Channel.IN_APP]

# --- drawing ----------------------------------------------------------------------------------------------------------

# An SQL expression of PostgreSQL: a new change id for each row of a statement.
NEXT_CHANGE_ID = "nextval('bongsu_notifications_notification_id_seq')"

# Draws so many ($1) change ids. On SQLite the one writer moves the sequence and gets the last of them.
_DRAW = Statement(
    postgres=f"SELECT {NEXT_CHANGE_ID} AS change_id FROM generate_series(1, CAST($1 AS integer))",
    sqlite="UPDATE sqlite_sequence SET seq = seq + $1 WHERE name = 'bongsu_notifications' RETURNING seq AS change_id",
)

# Begins the sequence of a store that has never had a notification, after $1 change ids were drawn.
_BEGIN = only_sqlite("INSERT INTO sqlite_sequence (name, seq) VALUES ('bongsu_notifications', $1)")

_CHANGED = {"member_id": "text", "change_id": "bigint"}

# Sets the newest change id of these members ($1), whose rows the caller has locked. Each is found by its key.
_SET_CHANGED = Statement(
    postgres=f"""
        UPDATE bongsu_members AS m SET changed_id = given.change_id
        FROM {POSTGRES.table("given", _CHANGED, 1)} WHERE m.member_id = given.member_id""",
    sqlite=f"""
        UPDATE bongsu_members AS m SET changed_id = given.change_id
        FROM {SQLITE.table("given", _CHANGED, 1)} WHERE m.member_id = given.member_id""",
)


async def draw(tx: Transaction, count: int = 1) -> list[int]:
    """So many change ids, ascending. The rows of the members they are for must be locked."""
    rows = await tx.fetch(_DRAW(count))
    if tx.dialect.name == "postgresql":
        return sorted(row["change_id"] for row in rows)
    if not rows:
        await tx.execute(_BEGIN(count))
    last = rows[0]["change_id"] if rows else count
    return list(range(last - count + 1, last + 1))


async def set_changed(tx: Transaction, newest: Sequence[tuple[str, int]]) -> None:
    """Set bongsu_members.changed_id: each member once, with the newest change id drawn for them."""
    await tx.execute(_SET_CHANGED(Table(_CHANGED, newest)))


# --- reading ----------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A notification that was changed after it was stored, as it is now."""

    change_id: int
    notification_id: int
    message_id: int
    # False: it was withdrawn, archived or deleted.
    is_in_inbox: bool
    created_at: datetime
    read_at: datetime | None
    seen_at: datetime | None
    archived_at: datetime | None
    updated_at: datetime | None


class Marks(NamedTuple):
    """Up to which notification a member has read and seen everything at once, each with the change id of that (0: never)."""

    read_up_to: int
    read_change_id: int
    seen_up_to: int
    seen_change_id: int

    def between(self, after: int, last: int) -> Iterator[tuple[str, int, int]]:
        """The name, the change id and the notification of each mark whose change id is above `after`, up to `last`."""
        if after < self.read_change_id <= last:
            yield "read", self.read_change_id, self.read_up_to
        if after < self.seen_change_id <= last:
            yield "seen", self.seen_change_id, self.seen_up_to


class MemberChanges(NamedTuple):
    """What has changed for members, by their position among those asked for."""

    changes: Sequence[tuple[int, Change]]
    # Each member's marks as they are now.
    members: dict[int, Marks]


# Of the member's row `m`.
MARK_COLUMNS = """coalesce(m.read_up_to, 0) AS read_up_to, coalesce(m.read_change_id, 0) AS read_change_id,
               coalesce(m.seen_up_to, 0) AS seen_up_to, coalesce(m.seen_change_id, 0) AS seen_change_id"""

_CHANGE_COLUMNS = f"""n.change_id, n.notification_id, n.message_id, n.channels & {_IN_APP} <> 0 AS is_in_inbox,
               n.created_at, n.read_at, n.seen_at, n.archived_at, n.updated_at"""

# The member's ($1) newest $4 changes with ids above $2, up to $3. By the index of the changed. Locks nothing.
_FIND_MISSED = in_both(
    lambda d: (
        f"""
        SELECT {_CHANGE_COLUMNS} FROM bongsu_notifications n {d.index_hint("bongsu_notifications_changed")}
        WHERE n.member_id = $1 AND n.change_id > $2 AND n.change_id <= $3 ORDER BY n.change_id DESC LIMIT $4"""
    )
)

_SPAN = {"member_id": "text", "after": "bigint", "last": "bigint", "position": "integer"}

# The oldest $2 changes of these members ($1), of each those above `after`, up to `last`. By the index for each member.
_FIND_CHANGES = Statement(
    postgres=f"""
        SELECT given.position, {_CHANGE_COLUMNS}
        FROM {POSTGRES.table("given", _SPAN, 1)}
        CROSS JOIN LATERAL (
            SELECT * FROM bongsu_notifications x
            WHERE x.member_id = given.member_id AND x.change_id > given.after AND x.change_id <= given.last
            ORDER BY x.change_id LIMIT 10000) AS n
        ORDER BY n.change_id LIMIT $2""",
    sqlite=f"""
        SELECT given.position, {_CHANGE_COLUMNS}
        FROM {SQLITE.table("given", _SPAN, 1)}
        CROSS JOIN bongsu_notifications AS n INDEXED BY bongsu_notifications_changed
            ON n.member_id = given.member_id AND n.change_id > given.after AND n.change_id <= given.last
        ORDER BY n.change_id LIMIT $2""",
)

# The marks of these members ($1), each found by its key. Locks nothing.
_FIND_MARKS = Statement(
    postgres=f"""
        SELECT given.position, {MARK_COLUMNS}
        FROM {POSTGRES.table("given", _SPAN, 1)}
        CROSS JOIN LATERAL (SELECT * FROM bongsu_members x WHERE x.member_id = given.member_id OFFSET 0) AS m""",
    sqlite=f"""
        SELECT given.position, {MARK_COLUMNS}
        FROM {SQLITE.table("given", _SPAN, 1)}
        CROSS JOIN bongsu_members AS m ON m.member_id = given.member_id""",
)


async def find_missed_changes(tx: Transaction, member_id: str, after: int, last: int, limit: int) -> list[Change]:
    """Of a member's changes with ids above `after`, up to `last`, the newest `limit`; oldest first."""
    rows = await tx.fetch(_FIND_MISSED(member_id, after, last, limit))
    return [_change_of(tx.dialect, row) for row in rows][::-1]


async def find_changes(tx: Transaction, spans: Sequence[tuple[str, int, int, int]], limit: int) -> MemberChanges:
    """What has changed for members, given as (member, after, last, position); of more than `limit` changes, the oldest.

    A row that is changed again has moved to the newer change id, and may then be above `last`: it is found the next time.
    """
    given = Table(_SPAN, spans)
    rows = await tx.fetch(_FIND_CHANGES(given, limit))
    changes = [(row["position"], _change_of(tx.dialect, row)) for row in rows]
    members = await tx.fetch(_FIND_MARKS(given))
    return MemberChanges(changes, {row["position"]: marks_of(row) for row in members})


def marks_of(row: Row) -> Marks:
    """From a row with MARK_COLUMNS."""
    return Marks(row["read_up_to"], row["read_change_id"], row["seen_up_to"], row["seen_change_id"])


def _change_of(dialect: Dialect, row: Row) -> Change:
    read_at, seen_at, archived_at, updated_at = (
        optional_time(dialect, row[name]) for name in ("read_at", "seen_at", "archived_at", "updated_at")
    )
    return Change(
        row["change_id"],
        row["notification_id"],
        row["message_id"],
        bool(row["is_in_inbox"]),
        dialect.time(row["created_at"]),
        read_at,
        seen_at,
        archived_at,
        updated_at,
    )
