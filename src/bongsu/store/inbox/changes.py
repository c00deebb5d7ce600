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

from collections.abc import Sequence

from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import Statement, Table, Transaction, only_sqlite
from bongsu.store.core.sqlite import SQLITE

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
