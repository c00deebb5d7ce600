"""SQLite: its words, and connections of Python's sqlite3, each with a thread of its own.

There is one writer. Within this process writers queue for it in order; between processes BEGIN IMMEDIATE asks for it before
anything is read, so a transaction that has begun never fails for being late.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from bongsu.errors import StoreBusy
from bongsu.runtime import telemetry
from bongsu.store.failures import translated
from bongsu.store.query import Columns, Query, Row, Table, Transaction
from bongsu.store.shares import AUDIENCE_READERS, SHARES, Share
from bongsu.store.sqlite_thread import SqliteThread

READERS = 4
# How long SQLite itself waits for another process that writes. Its waiting is not fair, so we ask again until the share's
# own limit.
BUSY_MILLISECONDS = 1_000
# For each connection, and only as far as it is used.
CACHE_KIB = 32_768
# Of SQLite's machine, between two looks at whether a statement has to stop: about a millisecond.
INSTRUCTIONS = 100_000

_log = telemetry.log("bongsu.store")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_T = TypeVar("_T")


class Sqlite:
    """The dialect's words. Times are whole microseconds since 1970 (UTC): exact, sortable and cheap to compare."""

    name = "sqlite"
    now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    # The one writer has locked everything already.
    skip_locked = ""
    lock_row = ""

    def after(self, seconds: str) -> str:
        return f"{self.now} + CAST(({seconds}) * 1000000 AS INTEGER)"

    def seconds_since(self, moment: str) -> str:
        return f"({self.now} - {moment}) / 1000000.0"

    def index_hint(self, name: str) -> str:
        return f"INDEXED BY {name}"

    def table(self, name: str, columns: Columns, number: int) -> str:
        # Not VALUES: knowing how many rows there are, the planner would read a whole large table for a Bloom filter of it.
        fields = ", ".join(f"json_extract(value, '$[{place}]') AS {column}" for place, column in enumerate(columns))
        return f"(SELECT {fields} FROM json_each(${number})) AS {name}"

    def time(self, stored: Any) -> datetime:
        return _EPOCH + timedelta(0, 0, stored)


SQLITE = Sqlite()


class SqliteDatabase:
    """A file, opened when it is first used: by one connection that writes and by a few that read."""

    dialect = SQLITE

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = f"SQLite at {path}"
        self._writer = SqliteThread(partial(_open, path), "bongsu-sqlite-writer")
        self._turn = asyncio.Lock()
        self._readers = [SqliteThread(partial(_open, path, read_only=True), f"bongsu-sqlite-{n}") for n in range(READERS)]
        # The reader that was used last is used next: its cache is warm.
        self._free_readers: asyncio.LifoQueue[SqliteThread] = asyncio.LifoQueue()
        for reader in reversed(self._readers):
            self._free_readers.put_nowait(reader)
        self._audience_readers = [
            SqliteThread(partial(_open, path, read_only=True), f"bongsu-sqlite-audience-{n}")
            for n in range(AUDIENCE_READERS)
        ]
        self._free_audience_readers: asyncio.LifoQueue[SqliteThread] = asyncio.LifoQueue()
        for reader in self._audience_readers:
            self._free_audience_readers.put_nowait(reader)

    @contextlib.asynccontextmanager
    async def transaction(self, share: Share) -> AsyncIterator[Transaction]:
        async with self._writing(share):
            connection = _Connection(self._writer, self.place, share, begins=True)
            try:
                yield connection
                await connection.commit()
            except BaseException:
                # In the writer's thread it comes after whatever is still under way there.
                await self._writer.roll_back()
                raise

    @contextlib.asynccontextmanager
    async def autocommit(self, share: Share) -> AsyncIterator[Transaction]:
        """The writer, where each statement is a transaction of its own."""
        async with self._writing(share):
            try:
                yield _Connection(self._writer, self.place, share)
            except asyncio.CancelledError:
                # The turn is not the next one's before the thread is done with what was cancelled.
                await self._writer.roll_back()
                raise

    @contextlib.asynccontextmanager
    async def read(self, share: Share) -> AsyncIterator[Transaction]:
        if self._free_readers.empty():
            reader = await self._wait(share, self._free_readers.get(), f"all {READERS} readers were in use")
        else:
            reader = self._free_readers.get_nowait()
        try:
            yield _Connection(reader, self.place, share)
        finally:
            self._free_readers.put_nowait(reader)

    @contextlib.asynccontextmanager
    async def read_within(self, seconds: float) -> AsyncIterator[Transaction]:
        """A reader that nothing else uses. What takes longer is stopped, and so is what is cancelled."""
        reader = await self._free_audience_readers.get()
        try:
            yield _BoundedConnection(reader, self.place, seconds)
        finally:
            self._free_audience_readers.put_nowait(reader)

    @contextlib.asynccontextmanager
    async def _writing(self, share: Share) -> AsyncIterator[None]:
        """This process's turn to write. Between processes SQLite's own lock decides."""
        if self._turn.locked():
            await self._wait(share, self._turn.acquire(), "others were writing")
        else:
            await self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    async def _wait(self, share: Share, awaited: Coroutine[Any, Any, _T], why_not: str) -> _T:
        seconds = SHARES[share].wait_seconds
        try:
            async with asyncio.timeout(seconds):
                return await awaited
        except TimeoutError:
            raise StoreBusy(f"{self.place}: {why_not} for {seconds:g} s") from None

    async def close(self) -> None:
        for thread in (self._writer, *self._readers, *self._audience_readers):
            await thread.close()

    async def answers(self, _seconds: float) -> bool:
        return True  # a file has no server that could hang

    def terminate(self) -> None:
        """Statements on a file end by themselves."""


class _Connection:
    """A thread's connection as a Transaction. One hop to the thread takes longer than a short statement."""

    dialect = SQLITE

    def __init__(self, thread: SqliteThread, place: str, share: Share, *, begins: bool = False) -> None:
        self._thread = thread
        self._place = place
        self._patience = Patience(SHARES[share].lock_seconds)
        # BEGIN goes with the first statement.
        self._begins = begins

    async def fetch(self, *queries: Query) -> Sequence[Row]:
        rows: Sequence[Row] = await self._run(_fetch, queries)
        return rows

    async def execute(self, *queries: Query) -> list[int]:
        return await self._run(_execute, queries)

    async def commit(self) -> None:
        # Not begun: the block ran no statement.
        if not self._begins:
            await self._run(_commit)

    async def _run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        begins, self._begins = self._begins, False
        with translated(self._place):
            try:
                return await self._thread.run(call, self._patience, begins, *arguments)
            except asyncio.CancelledError:
                self._patience.is_over = True
                raise


class _BoundedConnection(_Connection):
    """One on which a statement is stopped after so many seconds."""

    def __init__(self, thread: SqliteThread, place: str, seconds: float) -> None:
        super().__init__(thread, place, Share.AUDIENCES)
        self._seconds = seconds

    async def fetch(self, *queries: Query) -> Sequence[Row]:
        rows: Sequence[Row] = await self._run(_fetch_within, self._seconds, queries)
        return rows


# --- in the thread ----------------------------------------------------------------------------------------------------


class Patience:
    """How long a statement waits for another process that writes. It is over when the caller is cancelled."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self.is_over = False

    def run(self, connection: sqlite3.Connection, call: Callable[[], _T]) -> _T:
        """What found the file locked before a transaction was begun has done nothing, and may wait again."""
        while True:
            try:
                return call()
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or connection.in_transaction or self.is_over or time.monotonic() >= self._until:
                    raise
                _log.warning("SQLite is locked by another process, waiting again")


def _fetch(connection: sqlite3.Connection, patience: Patience, begins: bool, queries: Sequence[Query]) -> list[sqlite3.Row]:
    *first, last = queries
    if first:
        _execute(connection, patience, begins, first)
    elif begins:
        _begin(connection, patience)
    text, parameters = last.statement.sqlite, _parameters(last.parameters)
    return patience.run(connection, lambda: connection.execute(text, parameters).fetchall())


def _fetch_within(
    connection: sqlite3.Connection, patience: Patience, begins: bool, seconds: float, queries: Sequence[Query]
) -> list[sqlite3.Row]:
    until = time.monotonic() + seconds
    connection.set_progress_handler(lambda: patience.is_over or time.monotonic() >= until, INSTRUCTIONS)
    try:
        return _fetch(connection, patience, begins, queries)
    finally:
        connection.set_progress_handler(None, INSTRUCTIONS)


def _execute(connection: sqlite3.Connection, patience: Patience, begins: bool, queries: Sequence[Query]) -> list[int]:
    if begins:
        _begin(connection, patience)
    counts = []
    for query in queries:
        # Not the cursor's count, which is missing for a statement that begins with WITH.
        before = connection.total_changes
        text, parameters = query.statement.sqlite, _parameters(query.parameters)
        patience.run(connection, partial(connection.execute, text, parameters))
        counts.append(connection.total_changes - before)
    return counts


def _begin(connection: sqlite3.Connection, patience: Patience) -> None:
    patience.run(connection, lambda: connection.execute("BEGIN IMMEDIATE"))


def _commit(connection: sqlite3.Connection, _patience: Patience, _begins: bool) -> None:
    connection.execute("COMMIT")


def _parameters(given: tuple[Any, ...]) -> dict[str, Any]:
    """By the number of each, which is its name."""
    return {str(number): _as_json(one) if type(one) is Table else _stored(one) for number, one in enumerate(given, 1)}


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - _EPOCH) // _MICROSECOND
    return str(value) if isinstance(value, UUID) else value


def _as_json(table: Table) -> str:
    return table.to_json(_stored if "timestamptz" in table.columns.values() else None)


def _open(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    # isolation_level None: we say BEGIN ourselves; the module's own would be a deferred one. All calls come from one thread.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    # SQLite keeps whatever bytes a writer calls text. One such row must not make a whole batch unreadable.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
    connection.execute("PRAGMA journal_mode = WAL")
    # FULL: an answer of "accepted" survives a power cut. NORMAL, the usual choice with WAL, would lose the last moments.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    # A step of the fan-out touches thousands of rows: what it goes through stays in memory, and the log is folded back into
    # the file every 40 MB instead of after every step.
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute("PRAGMA wal_autocheckpoint = 10000")
    # SQLite's own default; some builds wipe every byte that is freed, also of the working tables.
    connection.execute("PRAGMA secure_delete = OFF")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection
