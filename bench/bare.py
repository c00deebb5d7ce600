"""The databases without us: what a careful program would do with the driver alone. These are the baselines.

The tables are made by our migration, so rows, checks and indexes are the same; only the way in and out is bare.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol

import asyncpg

from bench.sample import COLUMNS, Sample
from bongsu.settings import Settings
from bongsu.store.core.private_files import sqlite_path

TABLE = "bongsu_events"
_NAMES = ", ".join(COLUMNS)
# Finished events have ids below this, samples (version 7, of today) above: the ones can be cleared without the others.
BOUNDARY = "01000000-0000-0000-0000-000000000000"


class Bare(Protocol):
    """One database, reached directly."""

    name: str
    # Its fastest way in, and the most rows one transaction of it should carry.
    bulk: str
    bulk_limit: int

    def rows(self, sample: Sample) -> Sequence[Sequence[Any]]:
        """The sample as the driver takes it."""

    async def load(self, rows: Sequence[Sequence[Any]], batch: int) -> None:
        """Store the rows in transactions of `batch` by the fastest way the driver has."""

    async def insert_each(self, rows: Sequence[Sequence[Any]], connections: int) -> None:
        """Store the rows one by one, each in a transaction of its own, over that many connections."""

    async def add_finished(self, count: int) -> None:
        """Let that many events lie in the table that were finished long ago."""

    async def clear(self) -> None:
        """Remove the samples and what they left behind; finished events of old stay."""

    async def drain(self, batch: int) -> int:
        """Claim that many due events and complete them: two statements, two transactions."""


class BarePostgres:
    name = "PostgreSQL"
    bulk = "COPY"
    bulk_limit = 50_000

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    def rows(self, sample: Sample) -> Sequence[Sequence[Any]]:
        return sample.rows

    async def load(self, rows: Sequence[Sequence[Any]], batch: int) -> None:
        async with self._pool.acquire() as connection:
            for first in range(0, len(rows), batch):
                await connection.copy_records_to_table(TABLE, records=rows[first : first + batch], columns=COLUMNS)

    async def insert_each(self, rows: Sequence[Sequence[Any]], connections: int) -> None:
        places = ", ".join(f"${place}" for place in range(1, len(COLUMNS) + 1))
        statement = f"INSERT INTO {TABLE} ({_NAMES}) VALUES ({places})"
        waiting = iter(rows)

        async def insert() -> None:
            async with self._pool.acquire() as connection:
                for row in waiting:
                    await connection.execute(statement, *row)

        await asyncio.gather(*(insert() for _ in range(connections)))

    async def add_finished(self, count: int) -> None:
        await self._pool.execute(
            f"""INSERT INTO {TABLE} (event_id, event_type, occurred_at, ref_id, payload, status, due, epoch, created_at,
                                     finished_at)
                SELECT CAST(lpad(to_hex(n), 8, '0') || '-0000-7000-8000-000000000000' AS uuid), 'product.price_changed',
                       old.moment, 'sku-' || n, '{{"previousPrice": 129000, "currentPrice": 99000}}', 'DONE', old.moment, 1,
                       old.moment, old.moment
                FROM generate_series(1, $1) AS n, (SELECT now() - interval '1 day' AS moment) AS old""",
            count,
            timeout=300,
        )
        await self._pool.execute(f"VACUUM ANALYZE {TABLE}", timeout=300)

    async def clear(self) -> None:
        await self._pool.execute(f"DELETE FROM {TABLE} WHERE event_id > $1", BOUNDARY, timeout=60)
        await self._pool.execute(f"VACUUM ANALYZE {TABLE}", timeout=60)

    async def drain(self, batch: int) -> int:
        async with self._pool.acquire() as connection:
            claimed = await connection.fetch(
                f"""WITH due AS (
                        SELECT event_id FROM {TABLE} WHERE status = 'PENDING' AND due <= now()
                        ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED)
                    UPDATE {TABLE} AS event
                    SET epoch = epoch + 1, claims = claims + 1, due = now() + interval '1 minute', leased_by = 'bare'
                    FROM due WHERE event.event_id = due.event_id
                    RETURNING {", ".join(f"event.{column}" for column in COLUMNS)}, epoch, attempts, claims""",
                batch,
            )
            await connection.execute(
                f"""UPDATE {TABLE} AS event
                    SET status = 'DONE', claims = 0, leased_by = NULL, finished_at = now()
                    FROM unnest(CAST($1 AS uuid[]), CAST($2 AS integer[])) AS given(event_id, epoch)
                    WHERE event.event_id = given.event_id AND event.epoch = given.epoch""",
                [row["event_id"] for row in claimed],
                [row["epoch"] for row in claimed],
            )
        return len(claimed)


class BareSqlite:
    name = "SQLite"
    bulk = "executemany"
    bulk_limit = 1_000

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        for pragma in ("busy_timeout = 5000", "journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
        places = ", ".join("?" * len(COLUMNS))
        self._insert = f"INSERT INTO {TABLE} ({_NAMES}) VALUES ({places})"

    def rows(self, sample: Sample) -> Sequence[Sequence[Any]]:
        return sample.sqlite_rows

    async def load(self, rows: Sequence[Sequence[Any]], batch: int) -> None:
        for first in range(0, len(rows), batch):
            with self._transaction() as tx:
                tx.executemany(self._insert, rows[first : first + batch])

    async def insert_each(self, rows: Sequence[Sequence[Any]], connections: int) -> None:
        del connections  # one writer at a time is all there is
        await self.load(rows, 1)

    async def add_finished(self, count: int) -> None:
        with self._transaction() as tx:
            tx.execute(
                f"""WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < ?)
                    INSERT INTO {TABLE} (event_id, event_type, occurred_at, ref_id, payload, status, due, epoch, created_at,
                                         finished_at)
                    SELECT printf('%08x-0000-7000-8000-000000000000', n), 'product.price_changed', ?2, 'sku-' || n,
                           '{{"previousPrice":129000,"currentPrice":99000}}', 'DONE', ?2, 1, ?2, ?2 FROM series""",
                (count, 1_700_000_000_000_000),
            )
        self._connection.execute("ANALYZE")

    async def clear(self) -> None:
        with self._transaction() as tx:
            tx.execute(f"DELETE FROM {TABLE} WHERE event_id > ?", (BOUNDARY,))
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    async def drain(self, batch: int) -> int:
        now = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
        with self._transaction() as tx:
            claimed = tx.execute(
                f"""UPDATE {TABLE}
                    SET epoch = epoch + 1, claims = claims + 1, due = {now} + 60000000, leased_by = 'bare'
                    WHERE event_id IN (
                        SELECT event_id FROM {TABLE} WHERE status = 'PENDING' AND due <= {now} ORDER BY due LIMIT ?)
                    RETURNING {_NAMES}, epoch, attempts, claims""",
                (batch,),
            ).fetchall()
        with self._transaction() as tx:
            tx.executemany(
                f"""UPDATE {TABLE} SET status = 'DONE', claims = 0, leased_by = NULL, finished_at = {now}
                    WHERE event_id = ? AND epoch = ?""",
                [(row[0], row[7]) for row in claimed],
            )
        return len(claimed)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Never rolled back: a baseline that fails ends the benchmark."""
        self._connection.execute("BEGIN IMMEDIATE")
        yield self._connection
        self._connection.execute("COMMIT")


@contextlib.asynccontextmanager
async def bare(settings: Settings) -> AsyncIterator[Bare]:
    """The database behind the settings."""
    if settings.is_embedded:
        with contextlib.closing(sqlite3.connect(sqlite_path(settings), isolation_level=None)) as connection:
            yield BareSqlite(connection)
    else:
        # As many as the busiest baseline asks for; they are opened once and stay.
        async with asyncpg.create_pool(settings.database_url, min_size=1, max_size=32) as pool:
            yield BarePostgres(pool)
