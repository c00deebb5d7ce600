"""A store that takes no writes for a while, and answers reads."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

import psycopg

from bongsu.settings import Settings

TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@contextlib.contextmanager
def read_only(settings: Settings) -> Iterator[None]:
    """PostgreSQL: as after a failover to a standby. SQLite: another process holds the write lock."""
    if settings.is_embedded:
        rival = sqlite3.connect(settings.data_dir / "bongsu.db", isolation_level=None, check_same_thread=False)
        rival.execute("BEGIN IMMEDIATE")
        yield
        rival.execute("COMMIT")
        rival.close()
        return
    with psycopg.connect(settings.database_url, autocommit=True) as operator:
        [name] = operator.execute("SELECT current_database()").fetchone() or [""]
        operator.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        operator.execute(TERMINATE)
        yield
        operator.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        operator.execute(TERMINATE)
