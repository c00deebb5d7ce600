"""SQLite: its SQL dialect, and connections of Python's sqlite3, each with a thread of its own.

There is one writer. Within this process writers queue for it in order; between processes BEGIN IMMEDIATE asks for it before
anything is read, so a transaction that has begun never fails for being late.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from bongsu.errors import StoreBusy, StoreClosed
from bongsu.runtime import telemetry
from bongsu.runtime.driver_thread import DriverThread
from bongsu.store.core.failures import Location, translated
from bongsu.store.core.private_files import create_private
from bongsu.store.core.query import Columns, Query, Row, Table, Transaction
from bongsu.store.core.shares import AUDIENCE_READERS, SHARES, Share

READERS = 4
# Of operators alone, so that members' requests never wait for their pages.
OPERATORS_READERS = 2
# How long SQLite itself waits for another process that writes. Its waiting is not fair, so we try again until the share's
# own limit. Short, because what has waited longer than that limit for its turn still tries once.
BUSY_MILLISECONDS = 100
# No share waits longer for another process: the writer that waits keeps all others of this process waiting.
LOCK_SECONDS = 3.0
# Steps of SQLite's machine, about a millisecond of work, between two checks whether a statement may go on.
STEPS = 10_000
# For each connection, and only as far as it is used.
CACHE_KIB = 32_768

_log = telemetry.log("bongsu.store")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_T = TypeVar("_T")


class Sqlite:
    """The SQL of SQLite where the two dialects differ.

    Times are whole microseconds since 1970 (UTC): exact, sortable and cheap to compare.
    """

    name = "sqlite"
    now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
    clock = now
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
        fields = ", ".join(f"json_extract(value, '$[{index}]') AS {column}" for index, column in enumerate(columns))
        return f"(SELECT {fields} FROM json_each(${number})) AS {name}"

    def time(self, stored: Any) -> datetime:
        return _EPOCH + timedelta(0, 0, stored)


SQLITE = Sqlite()


class SqliteDatabase:
    """A file, opened when it is first used: by one connection that writes and by a few that read."""

    dialect = SQLITE

    def __init__(self, path: Path) -> None:
        self.path = path
        self.location = Location(f"SQLite at {path}")
        self._lock = WriteLock()
        self._writer = DriverThread(partial(_open, path), "bongsu-sqlite-writer")
        self._turn = asyncio.Lock()
        self._readers = _Readers(path, READERS, "reader")
        self._operators_readers = _Readers(path, OPERATORS_READERS, "operators")
        self._audience_readers = _Readers(path, AUDIENCE_READERS, "audience")

    @contextlib.asynccontextmanager
    async def transaction(self, share: Share) -> AsyncIterator[Transaction]:
        # Made before its turn, so that the time it queues counts: those before it may have waited for the same lock.
        time_limits = self._time_limits(share, writes=True)
        async with self._writing(share):
            connection = _Connection(self._writer, self.location, time_limits, begins=True)
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
        time_limits = self._time_limits(share, writes=True)
        async with self._writing(share):
            try:
                yield _Connection(self._writer, self.location, time_limits)
            except asyncio.CancelledError:
                # The next writer must not begin before the thread is done with what was cancelled.
                await self._writer.roll_back()
                raise

    @contextlib.asynccontextmanager
    async def read(self, share: Share) -> AsyncIterator[Transaction]:
        readers = self._operators_readers if share is Share.OPERATORS else self._readers
        if readers.free.empty():
            reader = await self._wait(share, readers.free.get(), f"all {len(readers.threads)} readers were in use")
        else:
            reader = readers.free.get_nowait()
        try:
            yield _Connection(reader, self.location, self._time_limits(share))
        finally:
            readers.free.put_nowait(reader)

    def _time_limits(self, share: Share, *, writes: bool = False) -> TimeLimits:
        limits = SHARES[share]
        lock_seconds = min(limits.lock_seconds, LOCK_SECONDS)
        return TimeLimits(self._lock, lock_seconds, None if writes else limits.statement_seconds)

    @contextlib.asynccontextmanager
    async def read_within(self, seconds: float) -> AsyncIterator[Transaction]:
        """A reader that nothing else uses. What takes longer is stopped, and so is what is cancelled."""
        reader = await self._audience_readers.free.get()
        lock_seconds = min(SHARES[Share.AUDIENCES].lock_seconds, LOCK_SECONDS)
        try:
            yield _Connection(reader, self.location, TimeLimits(self._lock, lock_seconds, seconds))
        finally:
            self._audience_readers.free.put_nowait(reader)

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
            raise StoreBusy(f"{self.location}: {why_not} for {seconds:g} s") from None

    async def close(self) -> None:
        readers = (self._readers, self._operators_readers, self._audience_readers)
        for thread in (self._writer, *(thread for group in readers for thread in group.threads)):
            await thread.close()

    async def answers(self, seconds: float) -> bool:
        """A file has no server that could hang, but another program may keep it locked."""
        if self._lock.found_at is None:
            return True
        return await asyncio.to_thread(_can_write, self.path, seconds)

    def free_bytes(self) -> int | None:
        """How many bytes are free on the file's disk."""
        return shutil.disk_usage(self.path.parent).free

    def terminate(self) -> None:
        """No statement waits for the lock any more: those that do fail, and so does every later one."""
        self._lock.is_given_up = True


class _Readers:
    """Connections that only read, each with its thread. The one that was used last is used next: its cache is warm."""

    def __init__(self, path: Path, count: int, name: str) -> None:
        self.threads = [
            DriverThread(partial(_open, path, read_only=True), f"bongsu-sqlite-{name}-{n}") for n in range(count)
        ]
        self.free: asyncio.LifoQueue[DriverThread[sqlite3.Connection]] = asyncio.LifoQueue()
        for thread in reversed(self.threads):
            self.free.put_nowait(thread)


class _Connection:
    """A thread's connection as a Transaction. One hop to the thread takes longer than a short statement."""

    dialect = SQLITE

    def __init__(
        self, thread: DriverThread[sqlite3.Connection], location: str, time_limits: TimeLimits, *, begins: bool = False
    ) -> None:
        self._thread = thread
        self._location = location
        self._time_limits = time_limits
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
        with translated(self._location):
            try:
                return await self._thread.run(call, self._time_limits, begins, *arguments)
            except asyncio.CancelledError:
                self._time_limits.is_over = True
                raise


# --- in the thread ----------------------------------------------------------------------------------------------------


class WriteLock:
    """What this process knows of the file's write lock, which another program may hold."""

    def __init__(self) -> None:
        # When it was found held, until a statement has it again.
        self.found_at: float | None = None
        self.is_given_up = False


class TimeLimits:
    """The time limits of a statement: how long it waits for another process that writes, and how long it may run itself.
    Both end when the caller is cancelled."""

    def __init__(self, lock: WriteLock, lock_seconds: float, statement_seconds: float | None) -> None:
        self._lock = lock
        self._lock_seconds = lock_seconds
        self._until = time.monotonic() + lock_seconds
        # None for what may write: it is not stopped halfway.
        self._statement_seconds = statement_seconds
        self._stop_at = float("inf")
        self.is_over = False

    def run(self, connection: sqlite3.Connection, call: Callable[[], _T]) -> _T:
        """What found the file locked before a transaction was begun has done nothing, and may wait again."""
        while True:
            if self._lock.is_given_up:
                raise StoreClosed("the store is given up: another program keeps the SQLite file locked")
            try:
                done = self._run_once(connection, call)
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or connection.in_transaction:
                    raise
                if self._is_over():
                    raise
            else:
                if self._statement_seconds is None:
                    self._lock.found_at = None
                return done

    def _is_over(self) -> bool:
        """Whether to wait no longer. Where others have waited in vain already, one try is enough."""
        now = time.monotonic()
        if self._lock.found_at is None:
            self._lock.found_at = now
            _log.warning("SQLite is locked by another process")
        return self.is_over or now >= min(self._until, self._lock.found_at + self._lock_seconds)

    def _run_once(self, connection: sqlite3.Connection, call: Callable[[], _T]) -> _T:
        if self._statement_seconds is None:
            return call()
        self._stop_at = time.monotonic() + self._statement_seconds
        connection.set_progress_handler(self._may_not_go_on, STEPS)
        try:
            return call()
        finally:
            connection.set_progress_handler(None, STEPS)

    def _may_not_go_on(self) -> bool:
        return self.is_over or time.monotonic() >= self._stop_at


def _can_write(path: Path, seconds: float) -> bool:
    """Whether the write lock is to be had within that time."""
    with contextlib.closing(sqlite3.connect(path, timeout=seconds, isolation_level=None)) as probe:
        try:
            probe.execute("BEGIN IMMEDIATE")
            probe.execute("ROLLBACK")
        except sqlite3.Error:
            return False
    return True


def _fetch(
    connection: sqlite3.Connection, time_limits: TimeLimits, begins: bool, queries: Sequence[Query]
) -> list[sqlite3.Row]:
    *first, last = queries
    if first:
        _execute(connection, time_limits, begins, first)
    elif begins:
        _begin(connection, time_limits)
    text, parameters = last.statement.sqlite, _parameters(last.parameters)
    return time_limits.run(connection, lambda: connection.execute(text, parameters).fetchall())


def _execute(connection: sqlite3.Connection, time_limits: TimeLimits, begins: bool, queries: Sequence[Query]) -> list[int]:
    if begins:
        _begin(connection, time_limits)
    counts = []
    for query in queries:
        # Not the cursor's count, which is missing for a statement that begins with WITH.
        before = connection.total_changes
        text, parameters = query.statement.sqlite, _parameters(query.parameters)
        time_limits.run(connection, partial(connection.execute, text, parameters))
        counts.append(connection.total_changes - before)
    return counts


def _begin(connection: sqlite3.Connection, time_limits: TimeLimits) -> None:
    time_limits.run(connection, lambda: connection.execute("BEGIN IMMEDIATE"))


def _commit(connection: sqlite3.Connection, _time_limits: TimeLimits, _begins: bool) -> None:
    connection.execute("COMMIT")


def _parameters(given: tuple[Any, ...]) -> dict[str, Any]:
    """By the number of each, which is its name."""
    values = (_as_json(value) if type(value) is Table else _stored(value) for value in given)
    return {str(number): value for number, value in enumerate(values, 1)}


def to_microseconds(moment: datetime) -> int:
    """A time as it is stored."""
    return (moment - _EPOCH) // _MICROSECOND


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_microseconds(value)
    return str(value) if isinstance(value, UUID) else value


def _as_json(table: Table) -> str:
    return table.to_json(_stored if "timestamptz" in table.columns.values() else None)


def _open(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    create_private(path)
    # isolation_level None: we run BEGIN ourselves; the module's own would be a deferred one. All calls come from one thread.
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
