"""The next members of an audience, in id order, by one range of an index however large the audience is.

Each statement returns the ids as one value: thousands of rows of one column would take Python longer to read than the
database to find.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import orjson

from bongsu.model import Action
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import Statement, Table, Transaction
from bongsu.store.core.sqlite import SQLITE


class Interest(NamedTuple):
    """Members who did something with a product since then, after one of them; `notice_index` is for the caller."""

    notice_index: int
    product_id: str
    since: datetime
    after: str


_INTEREST = {"notice_index": "integer", "product_id": "text", "since": "timestamptz", "after": "text"}
_ACTION = {"action": "text"}

# Up to $2 member ids behind $1.
FIND_EVERYONE = Statement(
    postgres="""
        SELECT CAST(json_agg(next.member_id) AS text) AS member_ids FROM (
            SELECT member_id FROM bongsu_members WHERE member_id > $1 ORDER BY member_id LIMIT $2) AS next""",
    sqlite="""
        SELECT json_group_array(next.member_id) AS member_ids FROM (
            SELECT member_id FROM bongsu_members WHERE member_id > $1 ORDER BY member_id LIMIT $2) AS next""",
)

# For each interest ($1) up to $3 member ids, of members with one of the actions ($2). The primary key has them in id order.
FIND_INTERESTED = Statement(
    postgres=f"""
        SELECT given.notice_index, (
            SELECT CAST(json_agg(next.member_id) AS text) FROM (
                SELECT b.member_id FROM bongsu_behaviors AS b
                WHERE b.product_id = given.product_id AND b.member_id > given.after AND b.acted_at >= given.since
                  AND b.action = ANY (ARRAY(SELECT wanted.action FROM {POSTGRES.table("wanted", _ACTION, 2)}))
                GROUP BY b.member_id ORDER BY b.member_id LIMIT $3) AS next) AS member_ids
        FROM {POSTGRES.table("given", _INTEREST, 1)}""",
    sqlite=f"""
        SELECT given.notice_index, (
            SELECT json_group_array(next.member_id) FROM (
                SELECT b.member_id FROM bongsu_behaviors AS b
                WHERE b.product_id = given.product_id AND b.member_id > given.after AND b.acted_at >= given.since
                  AND b.action IN (SELECT wanted.action FROM {SQLITE.table("wanted", _ACTION, 2)})
                GROUP BY b.member_id ORDER BY b.member_id LIMIT $3) AS next) AS member_ids
        FROM {SQLITE.table("given", _INTEREST, 1)}""",
)


async def find_everyone(tx: Transaction, after: str, limit: int) -> list[str]:
    """The next members behind that one, at most so many."""
    (row,) = await tx.fetch(FIND_EVERYONE(after, limit))
    return _ids(row["member_ids"])


async def find_interested(
    tx: Transaction, interests: Sequence[Interest], actions: Iterable[Action], limit: int
) -> dict[int, list[str]]:
    """For each interest, by its notice index, the next members, at most so many of each."""
    wanted = Table.of(_ACTION, (action.value for action in sorted(actions)))
    rows = await tx.fetch(FIND_INTERESTED(Table(_INTEREST, interests), wanted, limit))
    return {row["notice_index"]: _ids(row["member_ids"]) for row in rows}


def _ids(stored: str | None) -> list[str]:
    """A JSON list; nothing on PostgreSQL if there are none."""
    return sorted(orjson.loads(stored)) if stored else []
