"""PostgreSQL: its SQL dialect, and connections from asyncpg's pool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from bongsu.errors import BadSettings, StoreBusy, StoreClosed, StoreUnreachable
from bongsu.store.core.failures import Location, translated
from bongsu.store.core.query import Columns, Query, Row, Table, Transaction
from bongsu.store.core.shares import SHARES, STATEMENT_SECONDS, Limits, Share

CONNECT_SECONDS = 5.0
# A connection that was not used for so long is closed: several processes may share few slots of a server.
IDLE_SECONDS = 10.0
# How long a close waits for the server to end a connection.
CLOSE_SECONDS = 2.0


_DRIVER_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


class Postgres:
    """The SQL of PostgreSQL where the two dialects differ."""

    name = "postgresql"
    # Not clock_timestamp(), which is volatile and keeps the planner from using an index. Transactions here are short.
    now = "now()"
    clock = "clock_timestamp()"
    skip_locked = "FOR UPDATE SKIP LOCKED"
    lock_row = "FOR NO KEY UPDATE"

    def after(self, seconds: str) -> str:
        return f"now() + make_interval(secs => {seconds})"

    def seconds_since(self, moment: str) -> str:
        return f"CAST(extract(epoch FROM now() - {moment}) AS double precision)"

    def index_hint(self, name: str) -> str:
        return ""

    def table(self, name: str, columns: Columns, number: int) -> str:
        fields = (f"CAST(value ->> {index} AS {kind}) AS {name}" for index, (name, kind) in enumerate(columns.items()))
        # Through an array, of which the planner expects ten rows and not a hundred: it looks up each by its key then. OFFSET
        # 0: each field is read once, not wherever it is used.
        rows = f"unnest(ARRAY(SELECT jsonb_array_elements(CAST(${number} AS jsonb)))) AS one(value) OFFSET 0"
        return f"(SELECT {', '.join(fields)} FROM {rows}) AS {name}"

    def time(self, stored: Any) -> datetime:
        assert isinstance(stored, datetime)
        return stored


POSTGRES = Postgres()


class PostgresDatabase:
    """A server's database, with a pool of connections for each share. Nothing is connected before it is used."""

    dialect = POSTGRES

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self.location = Location(f"PostgreSQL at {address.hostname or 'localhost'}:{address.port or 5432}")
        self.url = _checked(url)
        self._pools: dict[Share, asyncpg.Pool] = {}
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def transaction(self, share: Share) -> AsyncIterator[Transaction]:
        async with self._connection(share) as driver:
            with translated(self.location):
                await driver.execute("BEGIN")
            try:
                yield _Connection(driver, self.location)
            except Exception:
                await _roll_back(driver)
                raise
            with translated(self.location):
                ended = await driver.execute("COMMIT")
            # PostgreSQL answers ROLLBACK when a statement failed and the block went on as if it had not.
            if ended != "COMMIT":
                raise AssertionError("a statement of this transaction failed, and its error was swallowed")

    @contextlib.asynccontextmanager
    async def autocommit(self, share: Share) -> AsyncIterator[Transaction]:
        """A connection on which each statement is a transaction of its own."""
        async with self._connection(share) as driver:
            yield _Connection(driver, self.location)

    # Reading needs no more than that: each statement sees what was committed when it began.
    read = autocommit

    @contextlib.asynccontextmanager
    async def read_within(self, seconds: float) -> AsyncIterator[Transaction]:
        """A transaction that can only read, in which a statement is stopped after so long."""
        async with self._connection(Share.AUDIENCES) as driver:
            with translated(self.location):
                await driver.execute(f"BEGIN READ ONLY; SET LOCAL statement_timeout = {max(1, int(seconds * 1000))}")
            try:
                yield _Connection(driver, self.location, seconds + 5)
            except Exception:
                await _roll_back(driver)
                raise
            await _roll_back(driver)

    @contextlib.asynccontextmanager
    async def _connection(self, share: Share) -> AsyncIterator[Any]:
        pool = await self._pool(share)
        with translated(self.location):
            driver = await self._acquire(pool, SHARES[share])
        try:
            yield driver
        except (asyncio.CancelledError, StoreUnreachable):
            # The server may still be running the cancelled statement. A new connection is cheaper than finding out.
            _terminate(driver)
            raise
        finally:
            # It closes connections that are broken or have a transaction open.
            with translated(self.location):
                await pool.release(driver)

    async def _acquire(self, pool: asyncpg.Pool, limits: Limits) -> Any:
        if pool.get_idle_size():
            return await pool.acquire()
        # A new connection may be opened, or others are opening theirs: neither is waited for without end.
        is_full = pool.get_size() >= limits.connections
        seconds = limits.wait_seconds if is_full else max(limits.wait_seconds, CONNECT_SECONDS)
        try:
            async with asyncio.timeout(seconds):
                return await pool.acquire()
        except TimeoutError:
            if not is_full:
                raise
            reason = f"all {limits.connections} connections for this were in use for {seconds:g} s"
            raise StoreBusy(f"{self.location}: {reason}") from None

    async def _pool(self, share: Share) -> asyncpg.Pool:
        if self._is_closed:
            raise StoreClosed(self.location)
        if share not in self._pools:
            limits = SHARES[share]
            pool = asyncpg.create_pool(
                self.url,
                min_size=0,
                max_size=limits.connections,
                max_inactive_connection_lifetime=IDLE_SECONDS,
                connection_class=_PooledConnection,
                timeout=CONNECT_SECONDS,
                # Later than the server's own limit: this one is for a server that does not answer.
                command_timeout=_statement_seconds(limits) + 5,
                server_settings=_server_settings(share, limits),
            )
            self._pools[share] = await pool  # connects nothing, and so does not let another task run in between
        return self._pools[share]

    async def close(self) -> None:
        self._is_closed = True
        for pool in self._pools.values():
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await pool.close()
            except _DRIVER_ERRORS:
                pool.terminate()

    def free_bytes(self) -> int | None:
        """The server does not say."""
        return None

    async def answers(self, seconds: float) -> bool:
        """A refusal is an answer too: only silence is none."""
        try:
            driver = await asyncpg.connect(self.url, timeout=seconds)
        except asyncpg.PostgresError:
            return True
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            return False
        try:
            await driver.execute("SELECT 1", timeout=seconds)
        except (OSError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            return False
        finally:
            driver.terminate()
        return True

    def terminate(self) -> None:
        """Drop all connections at once, without waiting for the server: every statement under way fails."""
        self._is_closed = True
        for pool in self._pools.values():
            pool.terminate()


def _statement_seconds(limits: Limits) -> float:
    return min(limits.statement_seconds, STATEMENT_SECONDS)


def _server_settings(share: Share, limits: Limits) -> dict[str, str]:
    settings = {
        "application_name": f"bongsu {share}",
        "statement_timeout": f"{int(_statement_seconds(limits) * 1000)}ms",
        "lock_timeout": f"{int(limits.lock_seconds * 1000)}ms",
        "idle_in_transaction_session_timeout": f"{int(_statement_seconds(limits) * 2000)}ms",
        "timezone": "UTC",
        "jit": "off",
        # The notice that a temporary table exists already is of no use.
        "client_min_messages": "warning",
        # Our statements look up many rows one by one, and nearly always in memory. With the default of four the planner
        # would rather read the whole of a table than a few hundred rows of it by their index.
        "random_page_cost": "1.1",
    }
    if share in (Share.INGEST, Share.WORK):
        # Steps, claims and inserts are many and alike: to plan each time takes as long as to run it.
        settings["plan_cache_mode"] = "force_generic_plan"
    return settings


class _PooledConnection(asyncpg.Connection):  # type: ignore[misc]
    def get_reset_query(self) -> str:
        """We leave no session state behind, so a connection that is given back needs no round trip to clean it."""
        return ""


class _Connection:
    """asyncpg's connection as a Transaction."""

    dialect = POSTGRES

    def __init__(self, driver: Any, location: str, timeout: float | None = None) -> None:
        self._driver = driver
        self._location = location
        # Of a statement, in place of the pool's own.
        self._timeout = timeout

    async def fetch(self, *queries: Query) -> Sequence[Row]:
        *first, last = queries
        if first:
            await self.execute(*first)
        with translated(self._location):
            arguments = _arguments(last.parameters)
            rows: Sequence[Row] = await self._driver.fetch(last.statement.postgres, *arguments, timeout=self._timeout)
            return rows

    async def execute(self, *queries: Query) -> list[int]:
        with translated(self._location):
            return [
                _row_count(await self._driver.execute(query.statement.postgres, *_arguments(query.parameters)))
                for query in queries
            ]


async def _roll_back(driver: Any) -> None:
    """Or end the connection, which does the same."""
    try:
        await driver.execute("ROLLBACK")
    except Exception:
        _terminate(driver)


def _terminate(driver: Any) -> None:
    # A connection that was lost has left the pool by itself, and raises.
    with contextlib.suppress(asyncpg.InterfaceError):
        driver.terminate()


def _arguments(parameters: tuple[Any, ...]) -> Sequence[Any]:
    return [value.to_json() if type(value) is Table else value for value in parameters]


def _row_count(status: str) -> int:
    """PostgreSQL answers "UPDATE 3", "INSERT 0 3", or only what it did."""
    count = status.rpartition(" ")[2]
    return int(count) if count.isdecimal() else 0


# What asyncpg itself takes behind the question mark is more than we want to promise.
_URL_OPTIONS = ("sslmode", "sslrootcert", "host")
_SSL_MODES = {"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}


def _checked(url: str) -> str:
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    if unknown := set(options) - set(_URL_OPTIONS):
        raise BadSettings(f"BONGSU_DATABASE_URL has ?{min(unknown)}=, and only {' and '.join(_URL_OPTIONS)} may stand there")
    if options.get("sslmode", "prefer") not in _SSL_MODES:
        raise BadSettings(f"BONGSU_DATABASE_URL has an sslmode that is none of {', '.join(sorted(_SSL_MODES))}")
    return url
