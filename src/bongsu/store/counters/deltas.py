"""Deltas: add them to the log, read what a counter is, and what is pending."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from bongsu.errors import CounterOverflow
from bongsu.model.counter import LARGEST, SMALLEST
from bongsu.store.core.locks import lock_names
from bongsu.store.core.query import Query, Statement, Table, Transaction, in_both, same
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.counters import COUNTER_KEY, KEY_DELTA, KeySum, postgres, read_sum, sqlite

ADD = Statement(postgres.ADD, sqlite.ADD)
FIND_TOTALS = Statement(postgres.FIND_TOTALS, sqlite.FIND_TOTALS)
FIND_PENDING = Statement(postgres.FIND_PENDING, sqlite.FIND_PENDING)

# Whether a counter of that name ($1) was ever counted. Locks nothing.
_IS_KNOWN = same("""
    SELECT EXISTS (SELECT 1 FROM bongsu_counters WHERE counter = $1)
        OR EXISTS (SELECT 1 FROM bongsu_count_deltas WHERE counter = $1) AS is_known""")

# How many deltas wait, 10,000 at most, and for how long the oldest of them has. Locks nothing.
_COUNT_PENDING = in_both(
    lambda d: (
        f"""
    SELECT count(*) AS count, coalesce({d.seconds_since("min(x.created_at)")}, 0) AS age
    FROM (SELECT created_at FROM bongsu_count_deltas ORDER BY delta_id LIMIT 10000) AS x"""
    )
)

# Deltas and totals up to here are too small for transactions that do not see each other to pass 64 bits together.
_SMALL_DELTA, _SMALL_TOTAL = 2**40, 2**62


class Total(NamedTuple):
    """What a counter is, at that time of the store."""

    value: int
    as_of: datetime


class Pending(NamedTuple):
    """How many deltas wait to be applied, and for how many seconds the oldest of them has."""

    deltas: int
    age: float


def summed(deltas: Iterable[KeySum]) -> list[KeySum]:
    """One sum for each counter, in the order of counters. What comes to nothing is left out."""
    sums: Counter[tuple[str, str]] = Counter()
    for counter, key, delta in deltas:
        sums[counter, key] += delta
    return [KeySum(counter, key, delta) for (counter, key), delta in sorted(sums.items()) if delta]


async def add_deltas(tx: Transaction, sums: Sequence[KeySum]) -> dict[tuple[str, str], int]:
    """Log these sums; return what each counter is then. Raises CounterOverflow, after which the transaction must end."""
    if not sums:
        return {}
    for given in sums:
        _check(given, given.delta)
    table = Table(KEY_DELTA, sums)
    queries: tuple[Query, ...] = (ADD(table),)
    if tx.dialect is SQLITE:
        queries = (ADD(table), FIND_TOTALS(_keys(sums)))
    totals = {(row["counter"], row["key"]): read_sum(row) for row in await tx.fetch(*queries)}
    if large := [given for given in sums if _is_large(given.delta, totals[given[:2]])]:
        # Two that do not see each other might pass the limit together: the later one waits, and looks again.
        await tx.fetch(lock_names(f"counter {given.counter} {given.key}" for given in large))
        totals |= {key: total.value for key, total in (await find_totals(tx, [given[:2] for given in large])).items()}
    for given in sums:
        _check(given, totals[given[:2]])
    return totals


def _is_large(delta: int, total: int) -> bool:
    return abs(delta) > _SMALL_DELTA or abs(total) > _SMALL_TOTAL


def _check(given: KeySum, total: int) -> None:
    if not SMALLEST <= total <= LARGEST:
        raise CounterOverflow(f"{given.counter} of {given.key!r:.300} would be {total}")


def _keys(sums: Iterable[KeySum]) -> Table:
    return Table(COUNTER_KEY, [given[:2] for given in sums])


async def find_totals(tx: Transaction, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Total]:
    """What these counters are: what was applied and what is pending."""
    rows = await tx.fetch(FIND_TOTALS(Table(COUNTER_KEY, keys)))
    return {(row["counter"], row["key"]): Total(read_sum(row), tx.dialect.time(row["now"])) for row in rows}


async def find_pending(tx: Transaction, after: tuple[str, str], limit: int) -> list[KeySum]:
    """What is pending of the next counters, in their order."""
    rows = await tx.fetch(FIND_PENDING(*after, limit))
    return [KeySum(row["counter"], row["key"], read_sum(row)) for row in rows]


async def count_pending(tx: Transaction) -> Pending:
    (row,) = await tx.fetch(_COUNT_PENDING())
    return Pending(row["count"], float(row["age"]))


async def is_known(tx: Transaction, counter: str) -> bool:
    """Whether a counter of that name was ever counted."""
    (row,) = await tx.fetch(_IS_KNOWN(counter))
    return bool(row["is_known"])
