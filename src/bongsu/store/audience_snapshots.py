"""Snapshots of audiences: the rest of what a user's own SELECT found, stored in id order until its turn comes.

The SELECT runs once, however many steps its audience takes. What does not fit into the first step is stored with it, in rows
of as many members as a step takes; each row is removed by the step that takes the last of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import orjson

from bongsu.model import Selected
from bongsu.store.query import Table, Transaction, fetch_one, in_both, same
from bongsu.store.user_select import blamed_on_the_select, members_query, snapshot_query

_EVENT_ID = {"event_id": "uuid"}


class NoticeKey(NamedTuple):
    """Which notice of which event."""

    event_id: UUID
    notice: int


@dataclass(frozen=True)
class Snapshot:
    """The next stored members behind a cursor, sorted, and whether there are no more rows of them."""

    member_ids: list[str]
    is_last: bool


# The first row behind a cursor, and whether it is the last of its notice.
FIND = same("""
    SELECT p.member_ids, NOT EXISTS (
        SELECT 1 FROM bongsu_portions AS q WHERE q.event_id = p.event_id AND q.notice = p.notice AND q.last > p.last)
        AS is_last
    FROM bongsu_portions AS p
    WHERE p.event_id = $1 AND p.notice = $2 AND p.last > $3
    ORDER BY p.last LIMIT 1""")

# Removes the rows whose last member has been decided.
DROP = same("DELETE FROM bongsu_portions WHERE event_id = $1 AND notice = $2 AND last <= $3")

# Removes all rows of these events.
FORGET = in_both(
    lambda d: f"DELETE FROM bongsu_portions WHERE event_id IN (SELECT given.event_id FROM {d.table('given', _EVENT_ID, 1)})"
)


async def select_members(tx: Transaction, selected: Selected, after: str, limit: int) -> list[str]:
    """Run the user's SELECT: the first members behind that one. Raises BadAudience if it cannot be run."""
    with blamed_on_the_select():
        return [row["member_id"] for row in await tx.fetch(members_query(selected, after, limit))]


async def keep(tx: Transaction, key: NoticeKey, selected: Selected, after: str, size: int) -> bool:
    """Store the members behind that one; False when there are none.

    In the transaction of the step before them: they are stored if and only if that step is.
    """
    with blamed_on_the_select():
        (kept,) = await tx.execute(snapshot_query(selected, *key, after, size))
    return bool(kept)


async def find(tx: Transaction, key: NoticeKey, after: str) -> Snapshot | None:
    """None when nothing is stored: the SELECT has not run yet, or all it found fitted into a step."""
    row = await fetch_one(tx, FIND(*key, after))
    if row is None:
        return None
    return Snapshot(sorted(one for one in orjson.loads(row["member_ids"]) if one > after), bool(row["is_last"]))


async def drop(tx: Transaction, key: NoticeKey, until: str) -> None:
    """Remove the rows that end with this member or an earlier one."""
    await tx.execute(DROP(*key, until))


async def forget(tx: Transaction, event_ids: Sequence[UUID]) -> None:
    """Remove the snapshots of failed events: a replay, perhaps with a corrected rule, runs the SELECT again."""
    await tx.execute(FORGET(Table(_EVENT_ID, [(one,) for one in event_ids])))
