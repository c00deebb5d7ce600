"""Locks held until the transaction ends: on names, and on rows of open claims in the order of ids."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import MEMBER_ID, Columns, Dialect, Query, Statement, Table

NAMES = {"number": "bigint"}

# Takes an advisory lock on each name, in the order given. SQLite has one writer, which has locked everything already.
_LOCK = Statement(
    postgres=f"SELECT count(pg_advisory_xact_lock(name.number)) AS locked FROM {POSTGRES.table('name', NAMES, 1)}",
    sqlite="SELECT 0 AS locked",
)


def lock_names(names: Iterable[str]) -> Query:
    return _LOCK(as_table(names))


def as_table(names: Iterable[str]) -> Table:
    """PostgreSQL locks numbers. They are sorted so that two transactions with the same names cannot deadlock."""
    return Table.of(NAMES, sorted({lock_number(name) for name in names}))


def lock_number(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True)


# Locks the members given ($1), in id order: what is unread, a digest or a notification is changed under this lock. Only
# the statements after it see what was committed under the lock before. LATERAL: each by its key.
LOCK_MEMBERS = Statement(
    postgres=f"""
        SELECT count(*) AS count
        FROM (SELECT DISTINCT given.member_id COLLATE "C" AS member_id FROM {POSTGRES.table("given", MEMBER_ID, 1)}
              ORDER BY 1) AS wanted
        CROSS JOIN LATERAL (
            SELECT m.member_id FROM bongsu_members AS m WHERE m.member_id = wanted.member_id FOR NO KEY UPDATE) AS locked""",
    sqlite="SELECT json_array_length($1) AS count",
)


def lock_members(member_ids: Iterable[str]) -> Query:
    return LOCK_MEMBERS(Table.of(MEMBER_ID, member_ids))


def open_claims(d: Dialect, table: str, key: str, columns: Columns) -> str:
    """A table expression `given` over the `Table` that is the first parameter: those of its rows whose claims are open.

    On PostgreSQL it locks their rows in the order of ids, so that two statements cannot deadlock: an UPDATE that joins a
    table locks in whatever order the planner joins them. SQLite has one writer.
    """
    if d.name != "postgresql":
        return d.table("given", columns, 1)
    return f"""(
        SELECT listed.* FROM {d.table("listed", columns, 1)} CROSS JOIN {table} AS open_claim
        WHERE open_claim.{key} = listed.{key} AND open_claim.epoch = listed.epoch AND open_claim.leased_by IS NOT NULL
        ORDER BY open_claim.{key} FOR NO KEY UPDATE OF open_claim) AS given"""
