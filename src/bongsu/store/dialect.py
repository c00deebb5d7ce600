"""Where PostgreSQL and SQLite differ, and nowhere else.

Statements elsewhere are written once, with these fragments in the places where the two databases need other words.
Many rows travel in one of three ways: `table` gives a statement a table of its own to read from (arrays through `unnest` on
PostgreSQL, one JSON text through `json_each` on SQLite), `pairs` does so for keys and values where our side is the narrow
one, and `load` adds new rows by the quickest way there is.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from hashlib import blake2b
from typing import Any, ClassVar

import aiosqlite
import asyncpg
import orjson
from sqlalchemy import exc, text
from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu import telemetry

Placeholder = Callable[[int], str]
Parameters = Mapping[str, Any] | tuple[Any, ...]
# Its text, and what stands in its places.
Statement = tuple[str, tuple[Any, ...]]

# SQLAlchemy knows a statement again by its object: one object a statement spares parsing it anew each time.
as_text = cache(text)

# SQLite's own waiting is not fair between processes, so after it has given up we queue again, this often in all.
BUSY_TRIES = 6

_log = telemetry.log("bongsu.store")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Dialect:
    """The fragments a statement may use. Columns are described by PostgreSQL's type names on both."""

    name: ClassVar[str]
    now: ClassVar[str]
    skip_locked: ClassVar[str]
    # Behind a SELECT of rows called m: keep them to ourselves, in the order they come, until the transaction ends.
    locked: ClassVar[str]
    # Behind a SELECT of members whose rows are to be locked, and before the brackets of a WITH that locks them.
    in_lock_order: ClassVar[str]
    at_once: ClassVar[str]
    # Where a row lies: the quickest way back to a row that is locked and so stays where it is.
    address: ClassVar[str]
    # The next id of a notification and of a message. The former is drawn after the member's row is locked, so that a
    # member's ids are in the order of commits.
    next_notification: ClassVar[str]
    next_message: ClassVar[str]
    # Whether RETURNING can name columns of the tables that an UPDATE is joined with.
    returns_joined: ClassVar[bool]
    # Whether a statement that writes can be part of another.
    writes_within: ClassVar[bool]
    # The functions that answer the least and the greatest of what they are given.
    least: ClassVar[str]
    greatest: ClassVar[str]

    def at(self, seconds: str) -> str:
        """The moment so many seconds after 1970 (UTC) began, given as an SQL expression."""
        raise AssertionError(seconds)

    def after(self, seconds: str) -> str:
        """This moment plus that many seconds, given as an SQL expression."""
        raise AssertionError(seconds)

    def seconds_since(self, moment: str) -> str:
        """How long ago that was, given as an SQL expression."""
        raise AssertionError(moment)

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

    def table(self, columns: Mapping[str, str], name: str = "given", first: int = 0) -> str:
        """A table expression of that name over the parameters that `parameters` makes, the first of them at that place."""
        raise AssertionError(columns, name, first)

    def look_up(
        self, table: str, alias: str, outer: str, on: Sequence[str], columns: Sequence[str], *, locked: bool = False
    ) -> str:
        """A left join to these columns of a table's row, found by the index for each row of outer, in outer's order.

        Left to itself PostgreSQL would read the whole of a large table to join a few thousand rows of it.
        """
        raise AssertionError(table, alias, outer, on, columns, locked)

    def join_each(self, table: str, alias: str, outer: str, on: Sequence[str]) -> str:
        """A join to a table's row, found by the index for each row of outer, in outer's order."""
        raise AssertionError(table, alias, outer, on)

    def at_address(self, select: str) -> str:
        """Behind an UPDATE of rows called m: those that lie at the addresses selected, each of which is there once."""
        raise AssertionError(select)

    def pairs(self, placeholder: str, key: str, value: str, kind: str) -> str:
        """A table called given of the pairs in a JSON text, each with its place: of all ways the quickest for our side."""
        raise AssertionError(placeholder, key, value, kind)

    def written(self, pairs: Mapping[str, int]) -> str:
        """That text."""
        raise AssertionError(pairs)

    def newer(self, outer: str, columns: Sequence[str]) -> str:
        """A join to the notifications of each row's member that are newer than its cursor, by the index."""
        raise AssertionError(outer, columns)

    def read_bytewise(self, expression: str) -> str:
        """Whatever it is, as text that compares with our member ids."""
        raise AssertionError(expression)

    def listed(self, expression: str) -> str:
        """All values of a group, as the text of a JSON list."""
        raise AssertionError(expression)

    def parameters(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        raise AssertionError(columns, rows)

    async def load(
        self, connection: AsyncConnection, table: str, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]
    ) -> bool:
        """Insert rows that are all new, by the quickest way. If some were not: False, and it must be rolled back."""
        raise AssertionError(connection, table, columns, rows)

    async def rows(
        self, tx: AsyncConnection, statement: str, parameters: Parameters, *, after: Sequence[Statement] = ()
    ) -> Sequence[Sequence[Any]]:
        """What a statement returns, and others before it do. Parameters are `:name`, or the driver's own kind of places."""
        raise AssertionError(tx, statement, parameters, after)

    async def run(self, tx: AsyncConnection, statement: str, parameters: tuple[Any, ...] = ()) -> int:
        """A statement that returns nothing: how many rows it has touched."""
        return (await self.run_all(tx, [(statement, parameters)]))[0]

    async def run_all(self, tx: AsyncConnection, statements: Sequence[Statement], *, is_brief: bool = False) -> list[int]:
        """The same for several, one after the other. Brief ones touch few rows, and none needs to see what another did."""
        raise AssertionError(tx, statements, is_brief)

    def locking(self, binder: Binder, names: Iterable[str]) -> str:
        """What a statement selects so that, from there to the end of the transaction, nobody else has one of these names."""
        raise AssertionError(binder, names)

    async def serialise(self, tx: AsyncConnection, *names: str) -> None:
        """The same as a statement of its own."""
        binder = Binder(self)
        await self.rows(tx, f"SELECT {self.locking(binder, names)}", tuple(binder.parameters))

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
    # NO KEY: registering a device, which refers to the member, need not wait for it.
    locked = "FOR NO KEY UPDATE OF m"
    in_lock_order = "ORDER BY member_id"
    at_once = "MATERIALIZED"
    address = "ctid"
    next_notification = "nextval('bongsu_notifications_notification_id_seq')"
    next_message = "nextval('bongsu_messages_message_id_seq')"
    returns_joined = True
    writes_within = True
    least, greatest = "least", "greatest"

    def at(self, seconds: str) -> str:
        return f"to_timestamp({seconds})"

    def after(self, seconds: str) -> str:
        return f"now() + make_interval(secs => {seconds})"

    def seconds_since(self, moment: str) -> str:
        return f"CAST(extract(epoch FROM now() - {moment}) AS double precision)"

    def by_index(self, name: str) -> str:
        return ""

    def typed(self, kind: str, placeholder: str) -> str:
        # JSON goes as text, because a connection may have been taught to encode JSON itself and would do it twice.
        return f"CAST(CAST({placeholder} AS text) AS jsonb)" if kind == "jsonb" else placeholder

    def plain(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
        return rows

    def placeholder(self, place: int) -> str:
        return f"${place + 1}"

    def table(self, columns: Mapping[str, str], name: str = "given", first: int = 0) -> str:
        arrays = (f"CAST({self.placeholder(place)} AS {kind}[])" for place, kind in enumerate(columns.values(), first))
        return f"unnest({', '.join(arrays)}) AS {name}({', '.join(columns)})"

    def look_up(
        self, table: str, alias: str, outer: str, on: Sequence[str], columns: Sequence[str], *, locked: bool = False
    ) -> str:
        # OFFSET 0, like a lock, keeps the planner from making an ordinary join of it.
        fence = "FOR NO KEY UPDATE" if locked else "OFFSET 0"
        names = ", ".join(f"x.{column}" for column in columns)
        where = " AND ".join(f"x.{key} = {outer}.{key}" for key in on)
        return f"LEFT JOIN LATERAL (SELECT {names} FROM {table} AS x WHERE {where} {fence}) AS {alias} ON true"

    def join_each(self, table: str, alias: str, outer: str, on: Sequence[str]) -> str:
        where = " AND ".join(f"x.{key} = {outer}.{key}" for key in on)
        return f"CROSS JOIN LATERAL (SELECT * FROM {table} AS x WHERE {where} OFFSET 0) AS {alias}"

    def at_address(self, select: str) -> str:
        return f"FROM ({select}) AS there WHERE m.ctid = there.address"

    def pairs(self, placeholder: str, key: str, value: str, kind: str) -> str:
        each = f"json_each_text(CAST({placeholder} AS json)) WITH ORDINALITY AS pair(key, value, place)"
        return f"(SELECT key AS {key}, CAST(value AS {kind}) AS {value}, place - 1 AS place FROM {each}) AS given"

    def written(self, pairs: Mapping[str, int]) -> str:
        return orjson.dumps(pairs).decode()

    def newer(self, outer: str, columns: Sequence[str]) -> str:
        # A limit of its own keeps the planner from reading the whole table; nobody is that far behind.
        names = ", ".join(f"x.{column}" for column in columns)
        return f"""CROSS JOIN LATERAL (
            SELECT {names} FROM bongsu_notifications AS x
            WHERE x.member_id = {outer}.member_id AND x.notification_id > {outer}.cursor
            ORDER BY x.notification_id LIMIT 10000) AS n"""

    def read_bytewise(self, expression: str) -> str:
        return f'CAST({expression} AS text) COLLATE "C"'

    def listed(self, expression: str) -> str:
        return f"CAST(json_agg({expression}) AS text)"

    def parameters(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in columns]

    async def load(
        self, connection: AsyncConnection, table: str, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]]
    ) -> bool:
        try:
            await self.driver(connection).copy_records_to_table(table, columns=list(columns), records=rows)
        except asyncpg.UniqueViolationError:
            return False
        return True

    async def rows(
        self, tx: AsyncConnection, statement: str, parameters: Parameters, *, after: Sequence[Statement] = ()
    ) -> Sequence[Sequence[Any]]:
        await self.run_all(tx, after)
        if isinstance(parameters, Mapping):
            return (await tx.execute(as_text(statement), parameters)).all()
        rows: list[Sequence[Any]] = await self.driver(tx).fetch(statement, *parameters)
        return rows

    async def run_all(self, tx: AsyncConnection, statements: Sequence[Statement], *, is_brief: bool = False) -> list[int]:
        if is_brief and len(statements) > 1:
            return await self._run_together(tx, statements)
        return [await self._run(tx, statement, parameters) for statement, parameters in statements]

    async def _run_together(self, tx: AsyncConnection, statements: Sequence[Statement]) -> list[int]:
        """As parts of one statement: to write down that each row was touched costs less than a round trip, if few were."""
        parameters: list[Any] = []
        parts = []
        for place, (statement, its_own) in enumerate(statements):
            parts.append(f"part_{place} AS ({_renumbered(statement, len(parameters))} RETURNING 1)")
            parameters += its_own
        counts = ", ".join(f"(SELECT count(*) FROM part_{place})" for place in range(len(parts)))
        (touched,) = await self.driver(tx).fetch(f"WITH {', '.join(parts)} SELECT {counts}", *parameters)
        return list(touched)

    async def _run(self, tx: AsyncConnection, statement: str, parameters: tuple[Any, ...]) -> int:
        # It answers "UPDATE 3", "INSERT 0 3", or only what it was.
        count = str(await self.driver(tx).execute(statement, *parameters)).rpartition(" ")[2]
        return int(count) if count.isdecimal() else 0

    @staticmethod
    def driver(tx: AsyncConnection) -> asyncpg.Connection:
        """The driver itself: SQLAlchemy's layer takes four times as long, and begins nothing on connections of ours."""
        connection = tx.sync_connection
        assert connection is not None
        driver = connection.connection.driver_connection
        assert isinstance(driver, asyncpg.Connection)
        return driver

    def locking(self, binder: Binder, names: Iterable[str]) -> str:
        # All in one order, so that two who want the same ones wait for each other instead of locking up.
        numbers = sorted({int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), signed=True) for name in names})
        given = binder.table({"number": "bigint"}, [(number,) for number in numbers], "lock")
        return f"(SELECT count(pg_advisory_xact_lock(lock.number)) FROM {given})"

    def moment(self, stored: Any) -> datetime:
        assert isinstance(stored, datetime)
        return stored

    def stored(self, moment: datetime) -> Any:
        return moment


@lru_cache(maxsize=256)
def _renumbered(statement: str, before: int) -> str:
    """With its parameters behind so many others."""
    return re.sub(r"\$(\d+)", lambda found: f"${int(found[1]) + before}", statement) if before else statement


class Sqlite(Dialect):
    """Times are whole microseconds since 1970 (UTC): exact, sortable and quick to compare."""

    name = "sqlite"
    now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    skip_locked = ""
    locked = ""
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

    def join_each(self, table: str, alias: str, outer: str, on: Sequence[str]) -> str:
        return f"CROSS JOIN {table} AS {alias} ON {' AND '.join(f'{alias}.{key} = {outer}.{key}' for key in on)}"

    def at_address(self, select: str) -> str:
        # Not FROM: that would write down all new values first and put them in their places afterwards.
        return f"WHERE m.rowid IN ({select})"

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

    async def run_all(self, tx: AsyncConnection, statements: Sequence[Statement], *, is_brief: bool = False) -> list[int]:
        touched: list[int] = await self._by_driver(tx, _execute, *statements)
        return touched

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
                if tries < BUSY_TRIES and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY and not driver.in_transaction:
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

    def locking(self, binder: Binder, names: Iterable[str]) -> str:
        return "0"  # the one writer is alone already

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
            connection.execute("RELEASE bongsu_fetch")


def _execute(connection: sqlite3.Connection, *statements: Statement) -> list[int]:
    touched = []
    for statement, parameters in statements:
        # Not the cursor's count, which is not there for a statement that begins with WITH.
        before = connection.total_changes
        connection.execute(statement, parameters)
        touched.append(connection.total_changes - before)
    return touched


class Binder:
    """Collects a statement's parameters while its text is put together, in the order they stand in it."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.parameters: list[Any] = []

    def value(self, value: Any) -> str:
        self.parameters.append(value)
        return self.dialect.placeholder(len(self.parameters) - 1)

    def table(self, columns: Mapping[str, str], rows: Sequence[tuple[Any, ...]], name: str = "given") -> str:
        expression = self.dialect.table(columns, name, len(self.parameters))
        self.parameters += self.dialect.parameters(columns, rows)
        return expression


POSTGRES = Postgres()
SQLITE = Sqlite()


def dialect_named(name: str) -> Dialect:
    return {"postgresql": POSTGRES, "sqlite": SQLITE}[name]
