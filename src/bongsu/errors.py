"""Every error Bongsu raises on purpose. The docstring is the message: what is wrong and what cures it."""

from __future__ import annotations


class BongsuError(Exception):
    """Something in Bongsu went wrong."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        message = " ".join((type(self).__doc__ or "").split())
        if not self.detail:
            return message
        return f"{self.detail if self.detail.endswith('?') else self.detail.rstrip('.') + '.'} {message}"


class BadSettings(BongsuError):
    """Correct the environment or bongsu.toml and start again."""


class BadCommand(BongsuError):
    """`bongsu --help` and `bongsu COMMAND --help` list commands and options."""


class KeysMissing(BongsuError):
    """With PostgreSQL, keys are shared by every process: set BONGSU_JWT_SECRET and BONGSU_API_KEYS."""


class StoreError(BongsuError):
    """The store cannot be used now. Nothing is wrong with the data."""


class StoreUnreachable(StoreError):
    """The store does not answer. Start the database, or correct BONGSU_DATABASE_URL."""


class StoreClosed(StoreUnreachable):
    """This process has closed the store: it is stopping. What is unfinished is taken up after its lease."""


class StoreLoginRefused(StoreError):
    """The server refuses the login, or has no such database. Correct BONGSU_DATABASE_URL."""


class StoreRefused(StoreError):
    """The database denies permission. Give the user of BONGSU_DATABASE_URL the right to use, and for `bongsu migrate` to
    create, tables in its schema."""


class StoreFull(StoreUnreachable):
    """The disk under the store is full. Free some space on it; nothing was stored."""


class StoreDamaged(StoreError):
    """The SQLite file cannot be used as it is: the disk is full or read-only, or the file is not a database."""


class StoreNotMigrated(StoreError):
    """The tables are missing or old. Run `bongsu migrate` with the same BONGSU_DATABASE_URL."""


class StoreTooNew(StoreError):
    """A newer Bongsu has migrated this store. Install that version here; nothing was changed."""


class StoreTooOld(StoreError):
    """The tables are of a version before the first release, which is not upgraded. Start with an empty database; nothing was
    changed."""


class StoreBusy(StoreError):
    """Rows were locked by others for too long. Try again; nothing was stored."""


class StoreRolledBack(StoreBusy):
    """The database rolled the transaction back: it and others waited for each other. Try again; nothing was stored."""


class StoreTooSlow(StoreBusy):
    """A statement took longer than is allowed and was stopped. If it is your own SELECT, check that it uses an index."""


class BadAudience(BongsuError):
    """The SELECT of an audience cannot be run. Try it against the store with the rights Bongsu has."""


class BadEvent(BongsuError):
    """The event cannot be stored as it is. Correct it and publish it again; nothing was stored."""


class NotATransaction(BongsuError):
    """publish() writes inside a transaction of yours. Pass an open SQLAlchemy Session, AsyncSession, Connection or
    AsyncConnection, a psycopg 3, asyncpg, sqlite3, aiosqlite, PyMySQL, mysqlclient, aiomysql or asyncmy connection, or
    Django's connection."""


class NoTransactionOpen(BongsuError):
    """The connection is in autocommit mode with no transaction open, so the event would not commit or roll back with
    your own rows. Begin a transaction first."""


class NothingToPublishTo(BongsuError):
    """Run `bongsu migrate` if this database is Bongsu's store. In a database of your own create the outbox, with
    `bongsu migrate --outbox URL` or the SQL of docs/howto/outbox-sql.md."""


class BadKey(BongsuError):
    """Send `Authorization: Bearer <key>` with an API key for server calls (`bongsu apikey` prints it), or a member token for
    member calls (`bongsu token MEMBER`)."""


class KeyServerUnreachable(BongsuError):
    """Member tokens of the sign-in cannot be checked now. Start the server of BONGSU_JWKS_URL, or correct it."""


class RateLimited(BongsuError):
    """Send fewer calls, after the time that Retry-After names. BONGSU_MEMBER_RATE and BONGSU_MEMBER_BURST set the limit."""

    def __init__(self, detail: str = "", retry_after: int = 1) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class ChatRateLimited(RateLimited):
    """Send fewer messages. BONGSU_CHAT_RATE sets how many a member may send in a second."""


class NotInRoom(BongsuError):
    """Only members of a room read and write it: one of them, or a server call, adds a member with POST
    /api/chat/rooms/{id}/members/{memberId}."""


class NoSuchRoom(BongsuError):
    """`POST /api/chat/rooms` answers with the id of the room it creates; `GET /api/chat/rooms` lists those of a member."""


class NoSuchMessage(BongsuError):
    """`GET /api/chat/rooms/{id}/messages` lists the messages of a room with their seq."""


class NotYourMessage(BongsuError):
    """A message is edited and deleted by its sender only."""


class MessageDeleted(BongsuError):
    """Its text was deleted. Send a new message."""


class BadChatMessage(BongsuError):
    """Correct the text and send it again; nothing was stored."""


class TooManyRooms(BongsuError):
    """Leave a room first: DELETE /api/chat/rooms/{id}/members/{memberId}."""


class CounterOverflow(BongsuError):
    """A counter holds a 64-bit integer. Nothing was counted; send a smaller delta."""


class NoSuchCounter(BongsuError):
    """`comments` is built in. Others are known once a rule has counted them, or when `app.counter` or
    BONGSU_COUNTER_TARGETS declares them."""


class BadCounterTarget(BongsuError):
    """Correct BONGSU_COUNTER_TARGETS: each statement is tried against the store with the rights Bongsu has."""


class NotFlushed(BongsuError):
    """Start a process with the role worker, or look for `counter target` in its log. Nothing is lost, and GET is exact."""


class WrongKind(BongsuError):
    """The key is valid, but of the other kind: server calls take an API key, member calls a member token."""


class TooBusy(BongsuError):
    """The queue is full. Send it again in a moment; nothing was stored."""


class PublishInterrupted(BongsuError):
    """The store went away in the middle of the file. Run the same command again: what is stored is not stored twice."""


class AddressTaken(BongsuError):
    """Stop what listens there, or choose another with --host and --port."""


class NotForDemo(BongsuError):
    """The demo writes into members' inboxes: name an empty database in BONGSU_DATABASE_URL, or none for SQLite."""


class DemoExposed(BongsuError):
    """Anyone who reaches the demo may use it without a key: leave --host and BONGSU_HOST at 127.0.0.1, or add --demo-public
    if that is intended."""


class FilesExposed(BongsuError):
    """Other users of this machine can read members' data or keys: the command above removes that right."""


class NoSuchJob(BongsuError):
    """`bongsu job list` and `GET /api/admin/jobs` list the jobs; those of your own are there with `--app`."""


class JobRunning(BongsuError):
    """A job is run by one process at a time. `bongsu job show` and `GET /api/admin/jobs/{name}` show how far it is."""


class RunLost(BongsuError):
    """Its lease has ended: another process may have taken it over and goes on from the last saved step. `bongsu job show`
    shows which."""


class NoSuchDeadLetter(BongsuError):
    """`bongsu dead list` and `GET /api/admin/dead` list the dead letters. One that was replayed or recovered
    is no longer listed."""


class NoSuchEvent(BongsuError):
    """`bongsu event list` and `GET /api/admin/events` list the events."""


class ReplayWithoutFilter(BongsuError):
    """So that not everything is replayed by mistake, name what to replay by at least one of source, id, kind, state, code,
    channel, type, userId, eventId, queue, from and to."""


class NothingToCancel(BongsuError):
    """`GET /api/admin/events/{eventId}` and `bongsu event show` show its state."""


class ClockSkewed(BongsuError):
    """Correct that machine's clock (NTP). Notifications use the store's time; tokens and log lines use the machine's own."""


class ProviderUnreachable(BongsuError):
    """Start the service at that address, or correct its setting."""


class RedisUnreachable(BongsuError):
    """Start Redis, or correct BONGSU_REDIS_URL."""


class BrokerUnreachable(BongsuError):
    """Start the broker, or correct its setting."""


class SourceError(BongsuError):
    """A source of events (an outbox, a broker) cannot be used now. Nothing is lost: its messages wait there."""

    # Whether the log has it already: a broken connection concerns all that share it.
    is_reported = False


class SourceAway(SourceError):
    """The source does not answer. Start it, or correct its URL in the settings; its messages wait there."""


class SourceLoginRefused(SourceError):
    """The source refuses the login, or the user may not do that. Correct the user and password in its URL, or its rights."""


class SourceDiffers(SourceError):
    """It exists with other arguments, and RabbitMQ changes none. Empty the queue or exchange that is named, delete it
    (`rabbitmqctl delete_queue NAME`), and Bongsu declares it again; RabbitMQ must be 3.10 or newer."""


class BadCursor(BongsuError):
    """It is not a cursor of this list: take the one that the previous page ended with, or leave it out to begin at the first
    page."""


class DeadLettersBusy(SourceError):
    """Another list or replay reads these dead letters now. Try again in a moment."""


class OutboxMissing(SourceError):
    """Create it with `bongsu migrate --outbox URL` and the URL of that database, or with the SQL of
    docs/howto/outbox-sql.md."""


class OutboxDiffers(SourceError):
    """The table bongsu_outbox is not as the relay needs it. Compare its columns and its index with the SQL of
    docs/howto/outbox-sql.md."""


class OutboxTooOld(SourceError):
    """The relay needs SKIP LOCKED and JSON_TABLE: MariaDB 10.6, MySQL 8.0.4 or PostgreSQL 9.5, or newer."""


class DriverMissing(SourceError):
    """The worker, `bongsu doctor` and every command about this source need it."""


class SourceNotConfigured(BongsuError):
    """Set BONGSU_OUTBOX_URLS for `outbox`, BONGSU_RABBITMQ_URL for `rabbitmq`, as for the workers."""


class BadCredentials(BongsuError):
    """BONGSU_FCM_CREDENTIALS takes the service-account file from the Firebase console."""


class BadApp(BongsuError):
    """Correct the module that --app names; `docs/howto/rules.md` shows one that works."""


class BadTemplate(BongsuError):
    """Correct the template file; `bongsu doctor` checks them all. Then replay the event."""
