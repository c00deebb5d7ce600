"""Every error by which a driver reports that the store cannot be used, translated once into our own errors."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator

import asyncpg

from bongsu.errors import (
    BadSettings,
    BongsuError,
    StoreBusy,
    StoreDamaged,
    StoreFull,
    StoreLoginRefused,
    StoreNotMigrated,
    StoreRefused,
    StoreRolledBack,
    StoreTooSlow,
    StoreUnreachable,
)

# By the beginning of SQLSTATE, the first that fits. What is not listed is a fault of the statement, and ours to correct.
_BY_STATE: dict[str, type[BongsuError]] = {
    "42501": StoreRefused,  # insufficient privilege
    "25006": StoreRefused,  # read-only transaction
    "40P01": StoreRolledBack,  # victim of a deadlock
    "40001": StoreRolledBack,  # could not be serialised
    "23503": StoreRolledBack,  # the member was erased between two statements; repeated, the first inserts it again
    "40": StoreBusy,
    "55P03": StoreBusy,  # lock_timeout
    "57014": StoreTooSlow,  # statement_timeout
    "08": StoreUnreachable,
    "25P03": StoreUnreachable,  # idle_in_transaction_session_timeout
    "53100": StoreFull,  # disk_full
    "53": StoreUnreachable,  # out of connections or memory
    "57P": StoreUnreachable,  # shutting down or starting
    "58": StoreUnreachable,  # the server's own I/O failed
    "XX": StoreUnreachable,  # a fault of the server: for example, on a full disk it cannot open a connection
    "28": StoreLoginRefused,
    "3D": StoreLoginRefused,  # no such database
}
_BY_SQLITE_CODE: dict[int, type[BongsuError]] = {
    sqlite3.SQLITE_BUSY: StoreBusy,
    sqlite3.SQLITE_LOCKED: StoreBusy,
    sqlite3.SQLITE_INTERRUPT: StoreTooSlow,
    sqlite3.SQLITE_CANTOPEN: StoreUnreachable,
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_IOERR: StoreDamaged,
    sqlite3.SQLITE_READONLY: StoreDamaged,
    sqlite3.SQLITE_NOTADB: StoreDamaged,
    sqlite3.SQLITE_CORRUPT: StoreDamaged,
}

# Parts of asyncpg's messages about a connection lost between two statements, and about a closed pool.
_LOST = ("is closed", "is closing", "released back to the pool", "closed in the middle")


class Location(str):
    """Where a store is, for messages, and when its disk last failed, for readiness."""

    __slots__ = ("failed_at",)

    def __init__(self, _name: str) -> None:
        self.failed_at: float | None = None


@contextlib.contextmanager
def translated(location: str) -> Iterator[None]:
    """Errors that are about the store become ours; those about a statement are the bugs they look like."""
    try:
        yield
    except (sqlite3.Error, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        if (ours := _translation(error)) is None:
            raise
        if issubclass(ours, StoreFull | StoreDamaged) and isinstance(location, Location):
            location.failed_at = time.monotonic()
        raise ours(f"{location}: {first_line(error)}") from error


def _translation(error: Exception) -> type[BongsuError] | None:
    match error:
        case sqlite3.Error():
            # The low byte is the primary result code, the rest the extended one.
            return _BY_SQLITE_CODE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
        case OSError() | asyncpg.InternalClientError():
            # Refused, unreachable, timed out, a name that does not resolve; or the driver lost its place in an answer that
            # broke off.
            return StoreUnreachable
        case asyncpg.ClientConfigurationError():
            return BadSettings  # a certificate that is not there, for example
        case asyncpg.InterfaceError():
            return StoreUnreachable if any(words in str(error) for words in _LOST) else None
    state = str(getattr(error, "sqlstate", None) or "")
    if state == "42P01" and '"bongsu_' in str(error):
        return StoreNotMigrated  # a table of ours is missing, not one of a user's own statement
    return next((ours for beginning, ours in _BY_STATE.items() if state.startswith(beginning)), None)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
