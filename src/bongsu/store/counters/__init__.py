"""Counters: a log of deltas, which flushes apply to values.

A counter's value is its row in bongsu_counters plus its rows in bongsu_count_deltas. A delta's row is inserted in the
transaction that makes its event DONE, and deleted in the transaction that adds it to the value. So every reader, at any
moment, sees each delta once.
"""

from __future__ import annotations

from typing import NamedTuple

from bongsu.store.core.query import Row

# Names a counter.
COUNTER_KEY = {"counter": "text", "key": "text"}
KEY_DELTA = {**COUNTER_KEY, "delta": "bigint"}


class KeySum(NamedTuple):
    """By how much one counter changes, in all."""

    counter: str
    key: str
    delta: int


def read_sum(row: Row) -> int:
    """A sum that may need more than 64 bits. PostgreSQL's are numeric, and all of it is in `low`; SQLite gives two halves,
    because its sum() of integers fails beyond 64 bits."""
    return (int(row["high"]) << 32) + int(row["low"])
