"""Advisory locks on names, held until the transaction ends. Work on the same name waits for its turn."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import Query, Statement, Table

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
    numbers = {int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True) for name in names}
    return Table(NAMES, [(number,) for number in sorted(numbers)])
