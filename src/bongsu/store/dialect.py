"""Where PostgreSQL and SQLite differ, and nowhere else. Here are the words; postgres.py and sqlite.py say what they mean.

Statements elsewhere are written once, with these fragments in the places where the two databases need other words.
Many rows travel in one of three ways: `table` gives a statement a table of its own to read from (arrays through `unnest` on
PostgreSQL, one JSON text through `json_each` on SQLite), `pairs` does so for keys and values where our side is the narrow
one, and `load` adds new rows by the quickest way there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, ClassVar

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

Placeholder = Callable[[int], str]
Parameters = Mapping[str, Any] | tuple[Any, ...]
# Its text, and what stands in its places.
Statement = tuple[str, tuple[Any, ...]]

# SQLAlchemy knows a statement again by its object: one object a statement spares parsing it anew each time.
as_text = cache(text)


class Dialect:
    """The fragments a statement may use. Columns are described by PostgreSQL's type names on both."""

    name: ClassVar[str]
    now: ClassVar[str]
    skip_locked: ClassVar[str]
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

    def locked(self, alias: str) -> str:
        """Behind a SELECT: keep the rows of that table to ourselves, in the order they come, until the transaction ends."""
        raise AssertionError(alias)

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

    def join_each(self, table: str, alias: str, outer: str, on: Sequence[str], *, locked: bool = False) -> str:
        """A join to a table's row, found by the index for each row of outer, in outer's order, and locked if asked."""
        raise AssertionError(table, alias, outer, on, locked)

    def at_address(self, select: str) -> str:
        """Behind an UPDATE of rows called m: those that lie at the addresses selected, each of which is there once."""
        raise AssertionError(select)

    def of_claims(self, table: str, given: str, key: str) -> str:
        """Behind an UPDATE: those rows of a table that are in the table called given, by this key and by their epoch.

        By the key, whatever the planner thinks of a table that was small yesterday, or of an index of all that waits. One
        that somebody changes at this moment, even if it is only the lease, may be passed over: who has to know asks again.
        """
        raise AssertionError(table, given, key)

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

    async def run_all(self, tx: AsyncConnection, statements: Sequence[Statement]) -> list[int]:
        """The same for several, one after the other."""
        raise AssertionError(tx, statements)

    async def run_together(
        self, tx: AsyncConnection, statements: Sequence[Statement], reading: Statement | None = None
    ) -> list[int]:
        """The same for those that touch few rows, of which none needs to see what another did.

        Where a statement that writes can be part of another, they may be reading what a part of a WITH gives them.
        """
        raise AssertionError(tx, statements, reading)

    def is_sound(self, connection: AsyncConnection) -> bool:
        """Whether the driver has it open, with no transaction on it."""
        raise AssertionError(connection)

    def hang_up(self, connection: AsyncConnection) -> None:
        """End a connection over which there is nothing more to say, without a word and without waiting."""
        raise AssertionError(connection)

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
