"""Where PostgreSQL and SQLite differ, and nowhere else.

Statements elsewhere are written once, with these fragments in the places where the two databases need other words.
Many rows travel in one of two ways: `table` gives a statement a table of its own to read from (arrays through `unnest` on
PostgreSQL, one JSON text through `json_each` on SQLite), and `load` adds new rows by the quickest way there is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection

Placeholder = Callable[[int], str]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Dialect:
    """The fragments a statement may use. Columns are described by PostgreSQL's type names on both."""

    name: ClassVar[str]
    now: ClassVar[str]
    skip_locked: ClassVar[str]

    def after(self, seconds: str) -> str:
        """This moment plus that many seconds, given as an SQL expression."""
        raise AssertionError(seconds)

    def by_index(self, name: str) -> str:
        """Behind a table's name: read it by this index. PostgreSQL's planner sees by itself which is the smallest."""
        raise AssertionError(name)

    def typed(self, kind: str, placeholder: str) -> str:
        """A parameter of that type, whatever the driver would take its value for."""
        raise AssertionError(kind, placeholder)

    def plain(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        """The rows with each value as the drivers take it."""
        raise AssertionError(columns, rows)

    def placeholder(self, place: int) -> str:
        """How our own driver marks a parameter."""
        raise AssertionError(place)

    def table(self, columns: Mapping[str, str]) -> str:
        """A table expression named `given` over the parameters that `parameters` makes."""
        raise AssertionError(columns)

    def parameters(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        raise AssertionError(columns, rows)

    async def load(
        self, connection: AsyncConnection, table: str, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]
    ) -> bool:
        """Insert rows that are all new, by the quickest way. If some were not: False, and it must be rolled back."""
        raise AssertionError(connection, table, columns, rows)

    async def serialise(self, tx: AsyncConnection, name: str) -> None:
        """From here to the end of the transaction, nobody else is between here and there with the same name."""
        raise AssertionError(tx, name)

    def moment(self, stored: Any) -> datetime:
        """A stored time as Python's."""
        raise AssertionError(stored)

    def stored(self, moment: datetime) -> Any:
        """Python's time as it is stored."""
        raise AssertionError(moment)


class Postgres(Dialect):
    name = "postgresql"
    # Not clock_timestamp(): that one is volatile and would keep the planner from the index. Transactions here are short.
    now = "now()"
    skip_locked = "FOR UPDATE SKIP LOCKED"

    def after(self, seconds: str) -> str:
        return f"now() + make_interval(secs => {seconds})"

    def by_index(self, name: str) -> str:
        return ""

    def typed(self, kind: str, placeholder: str) -> str:
        # JSON goes as text, because a connection may have been taught to encode JSON itself and would do it twice.
        return f"CAST(CAST({placeholder} AS text) AS jsonb)" if kind == "jsonb" else placeholder

    def plain(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        return rows

    def placeholder(self, place: int) -> str:
        return f"${place + 1}"

    def table(self, columns: Mapping[str, str]) -> str:
        arrays = (f"CAST({self.placeholder(place)} AS {kind}[])" for place, kind in enumerate(columns.values()))
        return f"unnest({', '.join(arrays)}) AS given({', '.join(columns)})"

    def parameters(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in columns]

    async def load(
        self, connection: AsyncConnection, table: str, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]
    ) -> bool:
        driver = (await connection.get_raw_connection()).driver_connection
        assert isinstance(driver, asyncpg.Connection)
        try:
            await driver.copy_records_to_table(table, columns=list(columns), records=rows)
        except asyncpg.UniqueViolationError:
            return False
        return True

    async def serialise(self, tx: AsyncConnection, name: str) -> None:
        await tx.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", (name,))

    def moment(self, stored: Any) -> datetime:
        assert isinstance(stored, datetime)
        return stored

    def stored(self, moment: datetime) -> Any:
        return moment


class Sqlite(Dialect):
    """Times are whole microseconds since 1970 (UTC): exact, sortable and quick to compare."""

    name = "sqlite"
    now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    skip_locked = ""

    def after(self, seconds: str) -> str:
        return f"{self.now} + CAST(({seconds}) * 1000000 AS INTEGER)"

    def by_index(self, name: str) -> str:
        return f"INDEXED BY {name}"

    def typed(self, kind: str, placeholder: str) -> str:
        return placeholder

    def plain(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        # Column by column, because only some need a change.
        changes: dict[str, Callable[[Any], Any]] = {"uuid": str, "timestamptz": self.stored}
        by_column = zip(columns.values(), zip(*rows, strict=True), strict=True) if rows else ()
        plain = [[changes[kind](value) for value in column] if kind in changes else column for kind, column in by_column]
        return list(zip(*plain, strict=True))

    def placeholder(self, place: int) -> str:
        return "?"

    def table(self, columns: Mapping[str, str]) -> str:
        # Not VALUES: knowing how many rows there are, the planner would read a whole large table for a Bloom filter of it.
        fields = ", ".join(f"json_extract(value, '$[{place}]') AS {column}" for place, column in enumerate(columns))
        return f"(SELECT {fields} FROM json_each(?)) AS given"

    def parameters(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [json.dumps(self.plain(columns, rows), ensure_ascii=False, separators=(",", ":"))]

    async def load(
        self, connection: AsyncConnection, table: str, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]
    ) -> bool:
        marks = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        result = await connection.exec_driver_sql(statement, self.plain(columns, rows))
        return bool(result.rowcount == len(rows))

    async def serialise(self, tx: AsyncConnection, name: str) -> None:
        """The one writer is alone already."""

    def moment(self, stored: Any) -> datetime:
        return _EPOCH + timedelta(microseconds=stored)

    def stored(self, moment: datetime) -> Any:
        return (moment - _EPOCH) // _MICROSECOND


POSTGRES = Postgres()
SQLITE = Sqlite()


def dialect_named(name: str) -> Dialect:
    return {"postgresql": POSTGRES, "sqlite": SQLITE}[name]
