"""What runs on the store: a Statement in SQL of both databases, a Query with parameters, a Transaction to run it in.

Parameters are written `$1`, `$2`, … on both databases: PostgreSQL counts them, to SQLite they are names. Values are given in
that order as Python's own (datetime and UUID included). Many rows travel as one `Table`, which is one parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import orjson

# The largest id of both databases. Pages that go backwards begin below it.
LARGEST_ID = 2**63 - 1

# Column names and their types as PostgreSQL names them.
Columns = Mapping[str, str]

# Tables of ids, which many statements are given.
DELIVERY_ID = {"delivery_id": "bigint"}
EVENT_ID = {"event_id": "uuid"}
MEMBER_ID = {"member_id": "text"}
MESSAGE_ID = {"message_id": "bigint"}
NOTIFICATION_ID = {"notification_id": "bigint"}
PRODUCT_ID = {"product_id": "text"}
ROOM_ID = {"room_id": "uuid"}


class Dialect(Protocol):
    """SQL that PostgreSQL and SQLite write differently. Where a statement's shape differs, it is written twice instead."""

    @property
    def name(self) -> str: ...

    @property
    def now(self) -> str:
        """The store's time. On PostgreSQL it stands still within a transaction."""

    @property
    def clock(self) -> str:
        """The store's time at this moment, however long ago the transaction began. No index can be used with it."""

    @property
    def skip_locked(self) -> str:
        """After ORDER BY and LIMIT: lock the rows for update, pass over those that another transaction has locked."""

    @property
    def lock_row(self) -> str:
        """At the end of a SELECT: lock its rows until the transaction ends. Foreign keys to them can still be checked."""

    def after(self, seconds: str) -> str:
        """The store's time plus that many seconds, given as an SQL expression."""

    def seconds_since(self, moment: str) -> str:
        """How many seconds ago that was, given as an SQL expression."""

    def index_hint(self, name: str) -> str:
        """After a table's name: read it by this index. PostgreSQL has no hints and its planner needs none here."""

    def table(self, name: str, columns: Columns, number: int) -> str:
        """A table expression over the `Table` that is the parameter of that number."""

    def time(self, stored: Any) -> datetime:
        """A time that was read, as Python's."""


class Table(NamedTuple):
    """Rows as one parameter, a JSON array of arrays: asyncpg takes ten times as long to encode an array for each column."""

    columns: Columns
    rows: Sequence[Sequence[Any]]

    @classmethod
    def of(cls, column: Columns, values: Iterable[Any]) -> Table:
        """A table of one column."""
        return cls(column, [(value,) for value in values])

    def to_json(self, convert: Callable[[Any], Any] | None = None) -> str:
        """`convert` gives the form in which the dialect stores a value, where that is not JSON's."""
        rows: Sequence[Any] = self.rows if convert is None else [[convert(value) for value in row] for row in self.rows]
        text = orjson.dumps(rows, default=_plain).decode()
        if "\\u0000" in text and any("\0" in value for row in self.rows for value in row if isinstance(value, str)):
            raise ValueError("a text holds a NUL character")  # PostgreSQL refuses it, SQLite would cut the text off there
        return text


def _plain(value: Any) -> Any:
    """orjson takes a named tuple, and a UUID that asyncpg made, for unknown types."""
    if isinstance(value, tuple):
        return tuple(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(value)


class Query(NamedTuple):
    """A statement and its parameters."""

    statement: Statement
    parameters: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement in SQL of both databases. Calling it with its parameters makes a Query."""

    postgres: str
    sqlite: str

    def __call__(self, *parameters: Any) -> Query:
        return Query(self, parameters)


class Row(Protocol):
    """A row that a query returned. Read it by name."""

    def __getitem__(self, name: Any, /) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...
    def keys(self) -> Any: ...


class Transaction(Protocol):
    """An open transaction. Obtain it from Store.transaction(); never commit it yourself."""

    @property
    def dialect(self) -> Dialect: ...

    async def fetch(self, *queries: Query) -> Sequence[Row]:
        """Run them in order, return all rows of the last. On SQLite this is one hop to the driver's thread."""

    async def execute(self, *queries: Query) -> list[int]:
        """Run them in order, return how many rows each changed. On SQLite this is one hop to the driver's thread."""


def in_both(write: Callable[[Dialect], str]) -> Statement:
    """A statement of one shape: written once, with the expressions of each dialect in it."""
    # Imported here because both modules need this one.
    from bongsu.store.core.postgres import POSTGRES  # noqa: PLC0415
    from bongsu.store.core.sqlite import SQLITE  # noqa: PLC0415

    return Statement(write(POSTGRES), write(SQLITE))


def same(text: str) -> Statement:
    """A statement that reads the same in both databases."""
    return Statement(text, text)


# The text of a statement for the database that never runs it. It is not SQL, so running it fails.
OTHER_DATABASE = "a statement of the other database"


def only_postgres(text: str) -> Statement:
    """A statement of a path that SQLite does not have."""
    return Statement(text, OTHER_DATABASE)


def only_sqlite(text: str) -> Statement:
    """A statement of a path that PostgreSQL does not have."""
    return Statement(OTHER_DATABASE, text)


def optional_time(dialect: Dialect, stored: Any) -> datetime | None:
    """A time that was read, of a column that may be NULL."""
    return None if stored is None else dialect.time(stored)


def as_uuid(stored: Any) -> UUID:
    """An id that was read, as UUID: SQLite stores text."""
    return stored if isinstance(stored, UUID) else UUID(str(stored))


async def fetch_one(tx: Transaction, query: Query) -> Row | None:
    """The only row of a query that returns one or none."""
    rows = await tx.fetch(query)
    assert len(rows) <= 1, "one row at most was expected"
    return rows[0] if rows else None
