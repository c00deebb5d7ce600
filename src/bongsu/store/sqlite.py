"""The words for SQLite, and the shortest way to it: one visit to the driver's thread for all that can go together."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import aiosqlite
import orjson
from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu import telemetry
from bongsu.store.dialect import Binder, Dialect, Parameters, Statement

# SQLite's own waiting is not fair between processes, so after it has given up we queue again, this often in all.
BUSY_TRIES = 6

_log = telemetry.log("bongsu.store")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Sqlite(Dialect):
    """Times are whole microseconds since 1970 (UTC): exact, sortable and quick to compare."""

    name = "sqlite"
    now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    skip_locked = ""
    # The one writer has locked everything already.
    in_lock_order = ""
    at_once = "NOT MATERIALIZED"
    address = "rowid"
    # Numbered by the table they are judged in.
    next_notification = "NULL"
    next_message = (
        "(SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'bongsu_messages') + row_number() OVER ()"
    )
    returns_joined = False
    writes_within = False
    least, greatest = "min", "max"

    def at(self, seconds: str) -> str:
        return f"CAST(({seconds}) * 1000000 AS INTEGER)"

    def after(self, seconds: str) -> str:
        return f"{self.now} + {self.at(seconds)}"

    def seconds_since(self, moment: str) -> str:
        return f"({self.now} - {moment}) / 1000000.0"

    def locked(self, alias: str) -> str:
        return ""

    def by_index(self, name: str) -> str:
        return f"INDEXED BY {name}"

    def typed(self, kind: str, placeholder: str) -> str:
        return placeholder

    def plain(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        # Column by column, because only some need a change.
        changes: dict[str, Callable[[Any], Any]] = {"uuid": str, "timestamptz": self.stored}
        by_column = zip(columns.values(), zip(*rows, strict=True), strict=True) if rows else ()
        plain = [
            [None if value is None else changes[kind](value) for value in column] if kind in changes else column
            for kind, column in by_column
        ]
        return list(zip(*plain, strict=True))

    def placeholder(self, place: int) -> str:
        return "?"

    def table(self, columns: Mapping[str, str], name: str = "given", first: int = 0) -> str:
        # Not VALUES: knowing how many rows there are, the planner would read a whole large table for a Bloom filter of it.
        fields = ", ".join(f"json_extract(value, '$[{place}]') AS {column}" for place, column in enumerate(columns))
        return f"(SELECT {fields} FROM json_each(?)) AS {name}"

    def look_up(
        self, table: str, alias: str, outer: str, on: Sequence[str], columns: Sequence[str], *, locked: bool = False
    ) -> str:
        return f"LEFT JOIN {table} AS {alias} ON {' AND '.join(f'{alias}.{key} = {outer}.{key}' for key in on)}"

    def join_each(self, table: str, alias: str, outer: str, on: Sequence[str], *, locked: bool = False) -> str:
        return f"CROSS JOIN {table} AS {alias} ON {' AND '.join(f'{alias}.{key} = {outer}.{key}' for key in on)}"

    def at_address(self, select: str) -> str:
        # Not FROM: that would write down all new values first and put them in their places afterwards.
        return f"WHERE m.rowid IN ({select})"

    def of_claims(self, table: str, given: str, key: str) -> str:
        return f"FROM {given} WHERE {table}.{key} = given.{key} AND {table}.epoch = given.epoch"

    def pairs(self, placeholder: str, key: str, value: str, kind: str) -> str:
        pair = f"json_extract(value, '$[0]') AS {key}, json_extract(value, '$[1]') AS {value}, key AS place"
        return f"(SELECT {pair} FROM json_each({placeholder})) AS given"

    def written(self, pairs: Mapping[str, int]) -> str:
        return orjson.dumps(list(pairs.items())).decode()

    def newer(self, outer: str, columns: Sequence[str]) -> str:
        return f"""CROSS JOIN bongsu_notifications AS n INDEXED BY bongsu_notifications_inbox
            ON n.member_id = {outer}.member_id AND n.notification_id > {outer}.cursor"""

    def read_bytewise(self, expression: str) -> str:
        return f"CAST({expression} AS text)"

    def listed(self, expression: str) -> str:
        return f"json_group_array({expression})"

    def parameters(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        # Written by orjson, which knows how ids are written; times are ours to write, and to it a named tuple is none.
        plain = self.plain(columns, rows) if "timestamptz" in columns.values() else rows
        return [orjson.dumps(plain, default=_as_tuple).decode()]

    async def load(
        self, connection: AsyncConnection, table: str, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]
    ) -> bool:
        marks = ", ".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        result = await connection.exec_driver_sql(statement, self.plain(columns, rows))
        return bool(result.rowcount == len(rows))

    async def rows(
        self, tx: AsyncConnection, statement: str, parameters: Parameters, *, after: Sequence[Statement] = ()
    ) -> Sequence[Sequence[Any]]:
        rows: list[tuple[Any, ...]] = await self._by_driver(tx, _fetch, *after, (statement, parameters))
        return rows

    async def run_all(self, tx: AsyncConnection, statements: Sequence[Statement]) -> list[int]:
        touched: list[int] = await self._by_driver(tx, _execute, *statements)
        return touched

    async def run_together(
        self, tx: AsyncConnection, statements: Sequence[Statement], reading: Statement | None = None
    ) -> list[int]:
        assert reading is None
        return await self.run_all(tx, statements) if statements else []

    async def _by_driver(self, tx: AsyncConnection, call: Callable[..., Any], *statements: tuple[str, Parameters]) -> Any:
        """By the driver alone: one call in its thread where SQLAlchemy's layer makes several, and takes each row in hand.

        The way there and back takes longer than a short statement: what can go together should.
        """
        driver = self.driver(tx)
        for tries in range(1, BUSY_TRIES + 1):
            try:
                return await driver._execute(call, driver._conn, *statements)  # type: ignore[no-untyped-call]
            except sqlite3.Error as error:
                # What has found the file locked before anything was begun has done nothing.
                is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if is_busy and tries < BUSY_TRIES and not driver.in_transaction:
                    _log.warning("SQLite is locked by another process, queueing again", tries=tries)
                    continue
                # As SQLAlchemy would have raised it, so that it is translated like all others.
                said = "; ".join(statement for statement, _ in statements)
                raise exc.DBAPIError.instance(said, None, error, sqlite3.Error, hide_parameters=True) from error
        raise AssertionError("the last try has raised")

    @staticmethod
    def driver(tx: AsyncConnection) -> aiosqlite.Connection:
        connection = tx.sync_connection
        assert connection is not None
        driver = connection.connection.driver_connection
        assert isinstance(driver, aiosqlite.Connection)
        return driver

    def is_sound(self, connection: AsyncConnection) -> bool:
        return not self.driver(connection).in_transaction

    def hang_up(self, connection: AsyncConnection) -> None:
        """A file is closed as quickly in the usual way."""

    def locking(self, binder: Binder, names: Iterable[str]) -> str:
        return "0"  # the one writer is alone already

    async def serialise(self, tx: AsyncConnection, *names: str) -> None:
        """Not worth the way to the thread."""

    def moment(self, stored: Any) -> datetime:
        return _EPOCH + timedelta(0, 0, stored)

    def stored(self, moment: datetime) -> Any:
        return (moment - _EPOCH) // _MICROSECOND


def _as_tuple(row: Any) -> tuple[Any, ...]:
    if isinstance(row, tuple):
        return tuple(row)
    raise TypeError(row)


def _fetch(connection: sqlite3.Connection, *statements: Statement) -> list[tuple[Any, ...]]:
    """All rows of the last, their texts read the quick way; and it over again the store's lenient way if one is no UTF-8."""
    *before, asked = statements
    is_alone = not connection.in_transaction
    _execute(connection, *before)
    lenient = connection.text_factory
    # RETURNING has changed its rows before the first can be read: what could not be read must not have happened.
    connection.execute("SAVEPOINT bongsu_fetch")
    connection.text_factory = str
    try:
        return connection.execute(*asked).fetchall()
    except sqlite3.OperationalError as error:
        connection.execute("ROLLBACK TO bongsu_fetch")
        if "Could not decode to UTF-8" not in str(error):
            raise
        connection.text_factory = lenient
        return connection.execute(*asked).fetchall()
    finally:
        connection.text_factory = lenient
        # Whatever happened: a savepoint left open would keep the connection in a transaction.
        if connection.in_transaction:
            _release(connection, is_alone)


def _release(connection: sqlite3.Connection, is_alone: bool) -> None:
    """If it is alone this is its commit. One that fails leaves the transaction open, and what came next would be in it."""
    try:
        connection.execute("RELEASE bongsu_fetch")
    except sqlite3.Error:
        if is_alone:
            connection.rollback()
        raise


def _execute(connection: sqlite3.Connection, *statements: Statement) -> list[int]:
    touched = []
    for statement, parameters in statements:
        # Not the cursor's count, which is not there for a statement that begins with WITH.
        before = connection.total_changes
        connection.execute(statement, parameters)
        touched.append(connection.total_changes - before)
    return touched


SQLITE = Sqlite()
