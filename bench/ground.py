"""What benchmarks stand on: a durable PostgreSQL of their own, SQLite files, and our tables in each."""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
from tests.support.servers import PostgresServer, start_postgres

from bongsu.settings import Settings
from bongsu.store import Store, migrate

KEYS = {"jwt_secret": "a benchmark's secret, longer than thirty-two bytes", "api_keys": "bench-key"}


class Ground:
    """Databases made by our own migration, so that a baseline's table is equal to ours, checks and indexes too."""

    def __init__(self, postgres: PostgresServer, home: Path, is_quick: bool = False) -> None:
        # Whether a first impression is enough: benchmarks with much to set up then set up less, and say so.
        self.is_quick = is_quick
        self._postgres = postgres
        self._home = home
        self._numbers = count()

    async def postgres(self) -> Settings:
        """A new PostgreSQL database with our tables."""
        return await self._migrated(self._postgres.create_database())

    async def sqlite(self) -> Settings:
        """A new SQLite file with our tables."""
        return await self._migrated("")

    async def _migrated(self, database_url: str) -> Settings:
        settings = Settings(data_dir=self._home / str(next(self._numbers)), database_url=database_url, **KEYS)
        settings.data_dir.mkdir()
        store = Store.open(settings)
        await migrate(store)
        await store.close()
        return settings

    def machine(self) -> dict[str, str]:
        """What the numbers depend on, and nothing that tells whose machine it is."""
        with psycopg.connect(self._postgres.url) as connection:
            version = connection.info.server_version
        return {
            "cores": str(os.cpu_count()),
            "Python": platform.python_version(),
            "PostgreSQL": f"{version // 10000}.{version % 10000}",
            "SQLite": sqlite3.sqlite_version,
        }


@contextlib.contextmanager
def prepared(is_quick: bool = False) -> Iterator[Ground]:
    """Everything is gone when the block ends."""
    postgres = start_postgres(durable=True)
    try:
        with tempfile.TemporaryDirectory(prefix="bongsu-bench-") as home:
            yield Ground(postgres, Path(home), is_quick)
    finally:
        postgres.stop()
