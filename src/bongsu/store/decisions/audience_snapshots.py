"""Snapshots of audiences: who a user's own SELECT found, stored in id order until their turn comes.

The SELECT runs once, however many steps its audience takes. Unless they fit into one step, its members are stored before the
first, in rows of as many members as a step takes; each row is removed by the step that takes the last of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import orjson

from bongsu.model import Selected
from bongsu.store.core.query import EVENT_ID, Table, Transaction, fetch_one, in_both, same
from bongsu.store.decisions.user_select import blamed_on_the_select, portions_query

_PORTION = {"event_id": "uuid", "notice_index": "integer", "last_member_id": "text", "member_ids": "text"}
# Rows in one statement. Each has as many members as a step, about 75 KB of JSON.
STORED_TOGETHER = 16


class NoticeKey(NamedTuple):
    """Which notice of which event."""

    event_id: UUID
    notice_index: int


class Portion(NamedTuple):
    """Some members that a SELECT found, and the last of them in id order."""

    last: str
    json: str

    @property
    def member_ids(self) -> list[str]:
        found: list[str] = orjson.loads(self.json)
        return found


@dataclass(frozen=True)
class Snapshot:
    """The next stored members behind a cursor, sorted, and whether there are no more rows of them."""

    member_ids: list[str]
    is_last: bool


# The first row behind a cursor, and whether it is the last of its notice.
FIND = same("""
    SELECT p.member_ids, NOT EXISTS (
        SELECT 1 FROM bongsu_audience_snapshots AS q
        WHERE q.event_id = p.event_id AND q.notice_index = p.notice_index AND q.last_member_id > p.last_member_id) AS is_last
    FROM bongsu_audience_snapshots AS p
    WHERE p.event_id = $1 AND p.notice_index = $2 AND p.last_member_id > $3
    ORDER BY p.last_member_id LIMIT 1""")

# Stores rows of members.
STORE = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_audience_snapshots ({", ".join(_PORTION)})
    SELECT {", ".join(_PORTION)} FROM {d.table("given", _PORTION, 1)}"""
    )
)

# Removes all rows of a notice.
FORGET_NOTICE = same("DELETE FROM bongsu_audience_snapshots WHERE event_id = $1 AND notice_index = $2")

# Removes the rows whose last member has been decided.
DROP = same("DELETE FROM bongsu_audience_snapshots WHERE event_id = $1 AND notice_index = $2 AND last_member_id <= $3")

# Removes all rows of these events.
FORGET = in_both(
    lambda d: (
        f"""
    DELETE FROM bongsu_audience_snapshots
    WHERE event_id IN (SELECT given.event_id FROM {d.table("given", EVENT_ID, 1)})"""
    )
)


async def select_portions(tx: Transaction, selected: Selected, after: str, size: int, seconds: float) -> list[Portion]:
    """Run the user's SELECT, in a transaction that may take so long: all members behind that one, so many in each portion.

    Raises BadAudience if it cannot be run or took too long.
    """
    with blamed_on_the_select(seconds):
        return [Portion(row["last"], row["member_ids"]) for row in await tx.fetch(portions_query(selected, after, size))]


async def store_portions(tx: Transaction, key: NoticeKey, portions: Sequence[Portion]) -> None:
    """Replaces what an earlier claim of the event has stored. The caller has locked the event."""
    await tx.execute(FORGET_NOTICE(*key))
    for start in range(0, len(portions), STORED_TOGETHER):
        rows = [(*key, *portion) for portion in portions[start : start + STORED_TOGETHER]]
        await tx.execute(STORE(Table(_PORTION, rows)))


async def find(tx: Transaction, key: NoticeKey, after: str) -> Snapshot | None:
    """None when nothing is stored behind it."""
    row = await fetch_one(tx, FIND(*key, after))
    if row is None:
        return None
    return Snapshot(
        sorted(member_id for member_id in orjson.loads(row["member_ids"]) if member_id > after), bool(row["is_last"])
    )


async def drop(tx: Transaction, key: NoticeKey, until: str) -> None:
    """Remove the rows that end with this member or an earlier one."""
    await tx.execute(DROP(*key, until))


async def forget(tx: Transaction, event_ids: Sequence[UUID]) -> None:
    """Remove the snapshots of failed events: a replay, perhaps with a corrected rule, runs the SELECT again."""
    await tx.execute(FORGET(Table.of(EVENT_ID, event_ids)))
