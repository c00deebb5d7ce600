"""Statements of the daily recommendation: who was active, what they saw and bought, and which products are seen together.

All of them read; one locks, to store events. They are asked with a page of members or products at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import MEMBER_ID, PRODUCT_ID, Statement, Table, Transaction, fetch_one, in_both, same
from bongsu.store.core.sqlite import SQLITE

# What a member saw longest ago says little; and a crawler that saw everything must not take all the time.
SEEN_LIMIT = 20
# Of how many members who saw a product, the last ones, the others' products are counted.
VIEWERS_LIMIT = 20
# How many actions of each of those members are read.
ACTIONS_LIMIT = 40
# How many others are kept for a product. A member saw several, so there are several times as many to choose from.
SIMILAR_LIMIT = 10
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class MemberProducts:
    """What a member saw, the last first, and everything the member ever bought."""

    seen: list[str] = field(default_factory=list)
    bought: set[str] = field(default_factory=set)


# How many members there are.
_COUNT_MEMBERS = same("SELECT count(*) AS members FROM bongsu_members")

# The next members after one ($1), up to a limit ($3), in id order; and whether each did anything since a time ($2).
FIND_PAGE = in_both(
    lambda d: (
        f"""
    SELECT m.member_id, EXISTS (
        SELECT 1 FROM bongsu_behaviors AS b {d.index_hint("bongsu_behaviors_member")}
        WHERE b.member_id = m.member_id AND b.acted_at >= $2) AS is_active
    FROM bongsu_members AS m
    WHERE m.member_id > $1 ORDER BY m.member_id LIMIT $3"""
    )
)

# Those of these members ($1) that are stored. Locks them against being erased, in id order.
KEEP_MEMBERS = Statement(
    postgres=f"""
        SELECT kept.member_id
        FROM (SELECT given.member_id COLLATE "C" AS member_id FROM {POSTGRES.table("given", MEMBER_ID, 1)}
              ORDER BY 1) AS wanted
        CROSS JOIN LATERAL (
            SELECT m.member_id FROM bongsu_members AS m WHERE m.member_id = wanted.member_id FOR KEY SHARE) AS kept""",
    sqlite=f"""
        SELECT m.member_id FROM {SQLITE.table("given", MEMBER_ID, 1)}
        CROSS JOIN bongsu_members AS m ON m.member_id = given.member_id""",
)

# What these members ($1) did: the products that each saw last since a time ($2), and those that each ever bought.
FIND_PRODUCTS_OF_MEMBERS = in_both(
    lambda d: (
        f"""
    SELECT acted.member_id, acted.product_id, acted.is_seen, acted.is_bought
    FROM (
        SELECT b.member_id, b.product_id, max(b.acted_at) >= $2 AS is_seen,
               max(CASE WHEN b.action = 'PURCHASE' THEN 1 ELSE 0 END) AS is_bought,
               row_number() OVER (PARTITION BY b.member_id ORDER BY max(b.acted_at) DESC, b.product_id) AS position
        FROM {d.table("given", MEMBER_ID, 1)}
        JOIN bongsu_behaviors AS b {d.index_hint("bongsu_behaviors_member")} ON b.member_id = given.member_id
        WHERE b.acted_at >= $2 OR b.action = 'PURCHASE'
        GROUP BY b.member_id, b.product_id) AS acted
    WHERE acted.position <= {SEEN_LIMIT} OR acted.is_bought = 1
    ORDER BY acted.member_id, acted.position"""
    )
)

# For each of these products ($1) those that its last viewers did something with, too, since a time ($2), and how often they
# did. Of each viewer no more than the last actions are read: from `since` on, which is NULL where there are fewer. $3 is
# earlier than any action.
FIND_SIMILAR = in_both(
    lambda d: (
        f"""
    WITH viewers AS (
        SELECT seen.product_id, seen.member_id, (
            SELECT n.acted_at FROM bongsu_behaviors AS n {d.index_hint("bongsu_behaviors_member")}
            WHERE n.member_id = seen.member_id ORDER BY n.acted_at DESC LIMIT 1 OFFSET {ACTIONS_LIMIT}) AS since
        FROM (
            SELECT b.product_id, b.member_id,
                   row_number() OVER (PARTITION BY b.product_id ORDER BY max(b.acted_at) DESC, b.member_id) AS position
            FROM {d.table("given", PRODUCT_ID, 1)}
            JOIN bongsu_behaviors AS b ON b.product_id = given.product_id
            WHERE b.acted_at >= $2
            GROUP BY b.product_id, b.member_id) AS seen
        WHERE seen.position <= {VIEWERS_LIMIT}),
    together AS (
        SELECT v.product_id, o.product_id AS other_id, count(*) AS actions
        FROM viewers AS v
        JOIN bongsu_behaviors AS o {d.index_hint("bongsu_behaviors_member")} ON o.member_id = v.member_id
        WHERE o.acted_at >= $2 AND o.acted_at > coalesce(v.since, $3) AND o.product_id <> v.product_id
        GROUP BY v.product_id, o.product_id)
    SELECT ranked.product_id, ranked.other_id, ranked.actions
    FROM (
        SELECT t.product_id, t.other_id, t.actions,
               row_number() OVER (PARTITION BY t.product_id ORDER BY t.actions DESC, t.other_id) AS position
        FROM together AS t) AS ranked
    WHERE ranked.position <= {SIMILAR_LIMIT}"""
    )
)

# The products that most was done with since a time ($1), then the others that are known, up to a limit ($2). Reads all
# behaviours, once for a run.
_FIND_POPULAR = same("""
    SELECT p.product_id FROM (
        SELECT b.product_id, count(*) AS actions FROM bongsu_behaviors AS b WHERE b.acted_at >= $1 GROUP BY b.product_id
        UNION ALL SELECT k.product_id, 0 AS actions FROM bongsu_products AS k) AS p
    GROUP BY p.product_id ORDER BY sum(p.actions) DESC, p.product_id LIMIT $2""")

# The names of these products ($1) and whether they are sold out; those that are not known are left out.
_FIND_NAMES = in_both(
    lambda d: (
        f"""
    SELECT p.product_id, p.name, coalesce(p.stock, 1) <= 0 AS is_sold_out
    FROM {d.table("given", PRODUCT_ID, 1)} JOIN bongsu_products AS p ON p.product_id = given.product_id"""
    )
)


async def count_members(tx: Transaction) -> int:
    row = await fetch_one(tx, _COUNT_MEMBERS())
    assert row is not None
    return int(row["members"])


async def find_page(tx: Transaction, after: str, since: datetime, limit: int) -> list[tuple[str, bool]]:
    """The next members, each with whether it was active."""
    rows = await tx.fetch(FIND_PAGE(after, since, limit))
    return [(row["member_id"], bool(row["is_active"])) for row in rows]


async def keep_members(tx: Transaction, member_ids: Iterable[str]) -> set[str]:
    """Those of these members who were not erased meanwhile. None is until the transaction ends."""
    table = Table.of(MEMBER_ID, member_ids)
    return {row["member_id"] for row in await tx.fetch(KEEP_MEMBERS(table))}


async def find_products_of_members(tx: Transaction, member_ids: Sequence[str], since: datetime) -> dict[str, MemberProducts]:
    found = {member_id: MemberProducts() for member_id in member_ids}
    table = Table.of(MEMBER_ID, member_ids)
    for member_id, product_id, is_seen, is_bought in await tx.fetch(FIND_PRODUCTS_OF_MEMBERS(table, since)):
        products = found[member_id]
        if is_bought:
            products.bought.add(product_id)
        if is_seen and len(products.seen) < SEEN_LIMIT:
            products.seen.append(product_id)
    return found


async def find_similar(tx: Transaction, product_ids: Sequence[str], since: datetime) -> dict[str, dict[str, int]]:
    """For each product those that its viewers saw too, and how often."""
    found: dict[str, dict[str, int]] = {product_id: {} for product_id in product_ids}
    table = Table.of(PRODUCT_ID, product_ids)
    for product_id, other_id, actions in await tx.fetch(FIND_SIMILAR(table, since, _LONG_AGO)):
        # One text for all products that name it.
        found[product_id][sys.intern(other_id)] = actions
    return found


async def find_popular(tx: Transaction, since: datetime, limit: int) -> list[str]:
    return [row["product_id"] for row in await tx.fetch(_FIND_POPULAR(since, limit))]


async def find_names(tx: Transaction, product_ids: Sequence[str]) -> dict[str, tuple[str, bool]]:
    """Of the known ones the name, and whether it is sold out."""
    rows = await tx.fetch(_FIND_NAMES(Table.of(PRODUCT_ID, product_ids)))
    return {row["product_id"]: (row["name"], bool(row["is_sold_out"])) for row in rows}
