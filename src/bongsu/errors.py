"""Every error Bongsu raises on purpose. The docstring is the message: what is wrong and what cures it."""

from __future__ import annotations


class BongsuError(Exception):
    """Something in Bongsu went wrong."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        message = " ".join((type(self).__doc__ or "").split())
        return f"{self.detail.rstrip('.')}. {message}" if self.detail else message


class BadSettings(BongsuError):
    """Correct the environment or bongsu.toml and start again."""


class KeysMissing(BongsuError):
    """With PostgreSQL, keys are shared by every process: set BONGSU_JWT_SECRET and BONGSU_API_KEYS."""


class StoreUnreachable(BongsuError):
    """The store does not answer. Start the database, or correct BONGSU_DATABASE_URL."""


class StoreNotMigrated(BongsuError):
    """The tables are missing or old. Run `bongsu migrate` with the same BONGSU_DATABASE_URL."""


class StoreTooNew(BongsuError):
    """A newer Bongsu has migrated this store. Install that version here; nothing was changed."""


class StoreBusy(BongsuError):
    """Another process has kept the SQLite file locked. Try again; for many writers use PostgreSQL."""


class BadEvent(BongsuError):
    """The event cannot be stored as it is. Correct it and publish it again; nothing was stored."""


class NotATransaction(BongsuError):
    """publish() writes inside a transaction of yours. Hand it an open SQLAlchemy Session, AsyncSession, Connection or
    AsyncConnection, a psycopg 3, asyncpg, sqlite3 or aiosqlite connection, or Django's connection."""


class NoTransactionOpen(BongsuError):
    """The connection is in autocommit mode with no transaction open, so the event would not share the fate of your own
    rows. Begin a transaction first."""


class BadKey(BongsuError):
    """Send `Authorization: Bearer <key>` with an API key (server calls) or a member token (member calls)."""


class WrongKind(BongsuError):
    """The key is valid, but of the other kind: server calls take an API key, member calls a member token."""


class TooBusy(BongsuError):
    """More is waiting to be stored than fits. Send it again in a moment; nothing was stored."""


class AddressTaken(BongsuError):
    """Stop what listens there, or choose another with --host and --port."""


class RedisUnreachable(BongsuError):
    """Start Redis, or correct BONGSU_REDIS_URL."""


class BrokerUnreachable(BongsuError):
    """Start the broker, or correct its setting."""


class BadCredentials(BongsuError):
    """BONGSU_FCM_CREDENTIALS takes the service-account file that the Firebase console gives out."""
