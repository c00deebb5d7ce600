"""Statements of BONGSU_COUNTER_TARGETS, which a flush runs in its transaction for the keys that it changes.

A plain UPDATE becomes one statement for all keys. Any other is run for each key. PostgreSQL is asked which types the two
parameters have, because a key is text here and may be a number there. The texts are put together once, and then kept.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from bongsu.errors import BadCounterTarget, StoreBusy, StoreError, StoreRefused
from bongsu.store.core.failures import first_line
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.core.query import Dialect, Query, Statement, Table, Transaction, only_postgres
from bongsu.store.core.sqlite import SQLITE
from bongsu.store.core.store import Store
from bongsu.store.counters import KeySum

# Not a cast (::key).
_PARAMETER = re.compile(r"(?<!:):(key|delta)\b")
# One table, its columns, and a condition. What has anything else in it is run for each key as it is.
_PLAIN_UPDATE = re.compile(r"(UPDATE\s.+?\sSET\s.+?)(\sWHERE\s.+)", re.IGNORECASE | re.DOTALL)
_NOT_PLAIN = re.compile(r"\b(SELECT|FROM|RETURNING|WITH|USING)\b|--|/\*|'", re.IGNORECASE)
_GIVEN = {"bongsu_key": "text", "bongsu_delta": "bigint"}

# Ends what `_prepare` has begun.
_FORGET = only_postgres("DEALLOCATE bongsu_counter_target")

# The types of the parameters of what was prepared. Locks nothing.
_FIND_TYPES = only_postgres("""
    SELECT CAST(parameter_types[1] AS text) AS key, CAST(parameter_types[2] AS text) AS delta
    FROM pg_prepared_statements WHERE name = 'bongsu_counter_target'""")


class Fault(Enum):
    """What the failure of a target is about."""

    STATEMENT = auto()
    KEY = auto()
    STORE = auto()


@dataclass(frozen=True)
class Target:
    """A statement as it is run."""

    counter: str
    statement: Statement
    # Whether one run is for all keys.
    is_for_all: bool

    def queries(self, sums: Sequence[KeySum]) -> list[Query]:
        if self.is_for_all:
            return [self.statement(Table(_GIVEN, [(given.key, given.delta) for given in sums]))]
        return [self.statement(given.key, given.delta) for given in sums]


async def read_target(store: Store, counter: str, text: str) -> Target:
    """Raises BadCounterTarget if the database does not take the statement."""
    text = text.strip()
    try:
        async with store.transaction() as tx:
            types = await _find_types(tx, text) if tx.dialect is POSTGRES else {"key": "text", "delta": "integer"}
            if tx.dialect is SQLITE:
                await tx.fetch(Statement("", f"EXPLAIN {_for_each(text, types)}")("1", 1))
    except Exception as error:
        if fault_of(error) is Fault.STATEMENT:
            raise BadCounterTarget(f"The statement for {counter}: {first_line(_cause(error))}") from error
        raise
    if (all_keys := _for_all(tx.dialect, text, types)) is not None:
        return Target(counter, Statement(all_keys, all_keys), is_for_all=True)
    each = _for_each(text, types)
    return Target(counter, Statement(each, each), is_for_all=False)


async def _find_types(tx: Transaction, text: str) -> Mapping[str, str]:
    """Tries the statement without running it."""
    numbered = _PARAMETER.sub(lambda found: "$1" if found[1] == "key" else "$2", text)
    await tx.execute(Statement(f"PREPARE bongsu_counter_target AS {numbered}", "")())
    try:
        # This checks the rights too.
        await tx.fetch(Statement("EXPLAIN EXECUTE bongsu_counter_target(NULL, NULL)", "")())
        (row,) = await tx.fetch(_FIND_TYPES())
        return {"key": row["key"], "delta": row["delta"]}
    finally:
        await tx.execute(_FORGET())


def _for_all(d: Dialect, text: str, types: Mapping[str, str]) -> str | None:
    found = None if _NOT_PLAIN.search(text) else _PLAIN_UPDATE.fullmatch(text)
    if found is None:
        return None

    def typed(parameter: re.Match[str]) -> str:
        column = f"given.bongsu_{parameter[1]}"
        return column if d is SQLITE else f"CAST({column} AS {types[parameter[1]]})"

    return f"{_PARAMETER.sub(typed, found[1])} FROM {d.table('given', _GIVEN, 1)}{_PARAMETER.sub(typed, found[2])}"


def _for_each(text: str, types: Mapping[str, str]) -> str:
    numbers = {"key": "CAST(CAST($1 AS text) AS {})", "delta": "CAST(CAST($2 AS bigint) AS {})"}
    return _PARAMETER.sub(lambda found: numbers[found[1]].format(types[found[1]]), text)


async def apply_target(tx: Transaction, target: Target, sums: Sequence[KeySum]) -> None:
    """Run it for these sums of its counter."""
    if sums:
        await tx.execute(*target.queries(sums))


def fault_of(error: Exception) -> Fault:
    """Whether the statement itself is wrong, or a key of the batch, or the store cannot be used now."""
    cause = _cause(error)
    state = str(getattr(cause, "sqlstate", None) or "")
    if isinstance(error, BadCounterTarget | StoreRefused) or state.startswith("42"):
        return Fault.STATEMENT
    if isinstance(cause, sqlite3.OperationalError) and cause.sqlite_errorcode == sqlite3.SQLITE_ERROR:
        return Fault.STATEMENT
    # A missing parent row counts as rolled back elsewhere, where it is inserted and the work repeated.
    if state.startswith("23") or not isinstance(error, StoreError):
        return Fault.KEY
    return Fault.STORE


def is_busy(error: Exception) -> bool:
    """Whether others had locked the target's rows, or it took too long: the store itself can be used."""
    return isinstance(error, StoreBusy)


def _cause(error: Exception) -> BaseException:
    return error.__cause__ if isinstance(error, StoreError) and error.__cause__ is not None else error
