"""The outbox in MySQL 8.0.4 or MariaDB 10.6, or newer: PyMySQL, in a thread of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from bongsu.errors import (
    DriverMissing,
    OutboxDiffers,
    OutboxMissing,
    OutboxTooOld,
    SourceAway,
    SourceError,
    SourceLoginRefused,
)
from bongsu.ingress.relay.outbox import (
    INLINE_BYTES,
    SHOWN_CHARACTERS,
    STALLED_SECONDS,
    OutboxRow,
    RejectedCursor,
    RejectedFilter,
    RejectedRow,
    as_source_error,
    as_utc,
    check_settled,
    is_fetched_apart,
    within_bytes,
)
from bongsu.runtime.driver_thread import DriverThread

CONNECT_SECONDS = 5
# A batch takes a fraction of a second. Longer only delays the report that the server hangs, and a stop of this process.
ANSWER_SECONDS = 10
_T = TypeVar("_T")

# Create the outbox. Its text columns take what an event may have and more, so that a mistake in an event is found here and
# does not fail the caller's transaction. The index has the waiting rows from the oldest to the newest.
CREATE = """
    CREATE TABLE IF NOT EXISTS bongsu_outbox (
        event_id varchar(64) CHARACTER SET ascii NOT NULL DEFAULT (uuid()),
        event_type varchar(255) NOT NULL,
        occurred_at datetime(6) NULL,
        actor_id varchar(255) NULL,
        target_id varchar(255) NULL,
        ref_id varchar(255) NULL,
        payload longtext NULL,
        created_at datetime(6) NOT NULL DEFAULT (utc_timestamp(6)),
        failed_at datetime(6) NULL,
        error varchar(1000) NULL,
        PRIMARY KEY (event_id),
        KEY bongsu_outbox_waiting (failed_at, created_at)
    ) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4"""

# Whether the table is there.
EXISTS = """
    SELECT count(*) FROM information_schema.tables WHERE table_schema = database() AND table_name = 'bongsu_outbox'"""

# Whether a row waits: one entry of the index, no lock.
HAS_WAITING = "SELECT 1 FROM bongsu_outbox FORCE INDEX (bongsu_outbox_waiting) WHERE failed_at IS NULL LIMIT 1"

# Locks the oldest rows that are not locked, in index order. READ COMMITTED, and the index is forced: another plan would
# sort, and lock every row of the table. Ids may be numbers.
LOCK_BATCH = f"""
    SELECT event_id,
        json_object(
            'eventId', event_id, 'eventType', event_type,
            'occurredAt', date_format(coalesce(occurred_at, created_at), '%%Y-%%m-%%dT%%H:%%i:%%s.%%fZ'),
            'actorId', CAST(actor_id AS char), 'targetId', CAST(target_id AS char), 'refId', CAST(ref_id AS char)),
        CASE WHEN octet_length(coalesce(payload, '')) <= {INLINE_BYTES} THEN coalesce(payload, '{{}}') END,
        octet_length(coalesce(payload, '')), created_at
    FROM bongsu_outbox FORCE INDEX (bongsu_outbox_waiting)
    WHERE failed_at IS NULL ORDER BY created_at, event_id LIMIT %s FOR UPDATE SKIP LOCKED"""

# A long payload of a row that this transaction has locked.
PAYLOAD = "SELECT payload FROM bongsu_outbox WHERE event_id = %s"

# Rows by their ids, each by a look into the primary key. With IN (…) a small table is scanned, and the scan waits for rows
# that others have locked.
_GIVEN = """json_table(%s, '$[*]' COLUMNS (event_id varchar(64) CHARACTER SET ascii PATH '$')) AS given
    STRAIGHT_JOIN bongsu_outbox AS o FORCE INDEX (PRIMARY) ON o.event_id = given.event_id"""

# Deletes rows that this transaction has locked. Locks no others.
DELETE = f"DELETE o FROM {_GIVEN}"

# Sets a row aside that this transaction has locked.
SET_ASIDE = "UPDATE bongsu_outbox SET failed_at = utc_timestamp(6), error = %s WHERE event_id = %s"

_REJECTED = """failed_at IS NOT NULL
    AND (%(event_id)s IS NULL OR event_id = %(event_id)s) AND (%(event_type)s IS NULL OR event_type = %(event_type)s)
    AND (%(since)s IS NULL OR failed_at >= %(since)s) AND (%(until)s IS NULL OR failed_at < %(until)s)"""

# Rejected rows, newest first. No lock.
FIND_REJECTED = f"""
    SELECT event_id, event_type, error, created_at, failed_at, left(coalesce(payload, ''), {SHOWN_CHARACTERS})
    FROM bongsu_outbox
    WHERE {_REJECTED}
      AND (%(last)s IS NULL OR failed_at < %(last)s OR (failed_at = %(last)s AND event_id < %(last_id)s))
    ORDER BY failed_at DESC, event_id DESC LIMIT %(limit)s"""

# How many there are. No lock.
COUNT_REJECTED = f"SELECT count(*) FROM bongsu_outbox WHERE {_REJECTED}"

# Lets the relay try rejected rows again. Locks them; those that wait again already are not touched.
REPLAY = f"UPDATE {_GIVEN} SET o.failed_at = NULL, o.error = NULL WHERE o.failed_at IS NOT NULL"

# By the server's or PyMySQL's error number. What is not listed is reported as it is.
_BY_NUMBER: dict[int, type[SourceError]] = {
    1044: SourceLoginRefused,  # no access to the database
    1045: SourceLoginRefused,  # user or password
    1142: SourceLoginRefused,  # no right to the table
    1143: SourceLoginRefused,
    1227: SourceLoginRefused,
    1698: SourceLoginRefused,
    1049: SourceLoginRefused,  # no such database
    1046: SourceLoginRefused,  # no database named
    1146: OutboxMissing,
    1054: OutboxDiffers,  # a column is missing
    1176: OutboxDiffers,  # the index is missing
    1040: SourceAway,  # too many connections
    1053: SourceAway,  # shutting down
    1205: SourceAway,  # a lock was waited for too long
    1213: SourceAway,  # rolled back as the victim of a deadlock
    1927: SourceAway,  # the connection was killed
    2003: SourceAway,
    2006: SourceAway,
    2013: SourceAway,
}


class MysqlOutbox:
    """An OutboxDatabase."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._options = {
            "host": parts.hostname or "127.0.0.1",
            "port": parts.port or 3306,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "database": unquote(parts.path.lstrip("/")),
            **_tls(dict(parse_qsl(parts.query))),
        }
        self.location = f"mysql://{parts.hostname}:{parts.port or 3306}/{self._options['database']}"
        self._thread: DriverThread[Any] = DriverThread(self._open, "bongsu-relay-mysql")

    async def create(self) -> bool:
        return await self._run(_create)

    async def check(self) -> str:
        """Also whether the user may do all that the relay does, on no rows."""
        await self._run(_try_everything)
        return f"{self.location} answers and has its outbox"

    async def has_waiting(self) -> bool:
        return bool(await self._run(lambda connection: _rows(connection, HAS_WAITING)))

    async def lock_batch(self, limit: int) -> list[OutboxRow]:
        return await self._run(_lock_batch, limit)

    async def settle(self, stored: Sequence[str], rejected: Sequence[tuple[str, str]]) -> None:
        settled = await self._run(_settle, stored, rejected)
        check_settled(self.location, settled, len(stored) + len(rejected))

    async def roll_back(self) -> None:
        await self._thread.roll_back()

    async def close(self) -> None:
        await self._thread.close()
        self._thread = DriverThread(self._open, "bongsu-relay-mysql")

    async def find_rejected(self, asked: RejectedFilter, after: RejectedCursor | None, limit: int) -> list[RejectedRow]:
        last, last_id = after or (None, None)
        given = _parameters(asked) | {"last": _naive(last), "last_id": last_id, "limit": limit}
        rows = await self._run(lambda connection: _rows(connection, FIND_REJECTED, given))
        return [
            RejectedRow(
                _text(event_id), _text(kind), _text(error or b""), _moment(written), _moment(rejected), _text(payload)
            )
            for event_id, kind, error, written, rejected, payload in rows
        ]

    async def count_rejected(self, asked: RejectedFilter) -> int:
        ((count,),) = await self._run(lambda connection: _rows(connection, COUNT_REJECTED, _parameters(asked)))
        return int(count)

    async def replay(self, event_ids: Sequence[str]) -> int:
        return await self._run(_replay, event_ids) if event_ids else 0

    async def _run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        try:
            return await self._thread.run(call, *arguments)
        except SourceError:
            await self._thread.disconnect()
            raise
        except Exception as error:
            await self._thread.disconnect()
            raise as_source_error(_kind_of(error), self.location, error) from error

    def _open(self) -> Any:
        """In the thread."""
        try:
            import pymysql  # noqa: PLC0415
        except ImportError:
            raise DriverMissing(f"{self.location}: PyMySQL is not installed: `pip install 'bongsu[mysql]'`") from None
        try:
            connection = pymysql.connect(
                **self._options,
                charset="utf8mb4",
                # JSON is decoded from bytes.
                use_unicode=False,
                autocommit=True,
                connect_timeout=CONNECT_SECONDS,
                read_timeout=ANSWER_SECONDS,
                write_timeout=ANSWER_SECONDS,
            )
        except RuntimeError as error:
            # PyMySQL, without cryptography: a password of MySQL's kind on a connection without TLS.
            raise DriverMissing(f"{self.location}: {error}: `pip install 'bongsu[mysql]'`") from None
        try:
            _check_version(_text(_rows(connection, "SELECT version()")[0][0]))
            # Gap locks of a stricter level would make callers wait for the relay.
            _execute(connection, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            # Of a column with the type timestamp, which is shown in it.
            _execute(connection, "SET SESSION time_zone = '+00:00'")
            _execute(connection, f"SET SESSION wait_timeout = {STALLED_SECONDS}")
            _execute(connection, f"SET SESSION innodb_lock_wait_timeout = {ANSWER_SECONDS // 2}")
            # For a table that is being altered. The server does not notice that who waits for it has gone: each try would
            # leave a connection there.
            _execute(connection, f"SET SESSION lock_wait_timeout = {ANSWER_SECONDS // 2}")
        except BaseException:
            connection.close()
            raise
        return connection


def _tls(options: dict[str, str]) -> dict[str, Any]:
    return options | {"ssl_verify_cert": True, "ssl_verify_identity": True} if "ssl_ca" in options else options


def _check_version(version: str) -> None:
    numbers = tuple(map(int, re.findall(r"\d+", version.removeprefix("5.5.5-"))[:3]))
    is_mariadb = "mariadb" in version.lower()
    if numbers < ((10, 6) if is_mariadb else (8, 0, 4)):
        raise OutboxTooOld(f"The server is {'MariaDB' if is_mariadb else 'MySQL'} {version}")


def _kind_of(error: Exception) -> type[SourceError]:
    if isinstance(error, OSError):
        return SourceAway
    number = error.args[0] if error.args else None
    if number == 0:
        return SourceAway  # PyMySQL: the connection is closed
    return _BY_NUMBER.get(number, SourceError) if isinstance(number, int) else SourceError


# --- in the thread ----------------------------------------------------------------------------------------------------


def _execute(connection: Any, text: str, parameters: Any = None) -> int:
    with connection.cursor() as cursor:
        return int(cursor.execute(text, parameters))


def _rows(connection: Any, text: str, parameters: Any = None) -> Sequence[Any]:
    with connection.cursor() as cursor:
        cursor.execute(text, parameters)
        rows: Sequence[Any] = cursor.fetchall()
        return rows


def _create(connection: Any) -> bool:
    if _rows(connection, EXISTS)[0][0]:
        _rows(connection, HAS_WAITING)  # it has our columns and index
        return False
    _execute(connection, CREATE)
    return True


def _lock_batch(connection: Any, limit: int) -> list[OutboxRow]:
    # Also ends a transaction that a cancelled receive has left open.
    connection.rollback()
    connection.begin()
    found = [
        OutboxRow(_text(event_id), fields, payload, size, _moment(written))
        for event_id, fields, payload, size, written in _rows(connection, LOCK_BATCH, (limit,))
    ]
    rows = [
        row._replace(payload=_rows(connection, PAYLOAD, (row.event_id,))[0][0]) if is_fetched_apart(row) else row
        for row in within_bytes(found)
    ]
    if not rows:
        connection.rollback()
    return rows


def _settle(connection: Any, stored: Sequence[str], rejected: Sequence[tuple[str, str]]) -> int:
    """How many rows there were."""
    settled = _execute(connection, DELETE, (json.dumps(stored),)) if stored else 0
    settled += sum(_execute(connection, SET_ASIDE, (reason, event_id)) for event_id, reason in rejected)
    connection.commit()
    return settled


def _try_everything(connection: Any) -> None:
    _rows(connection, HAS_WAITING)
    connection.begin()
    _rows(connection, LOCK_BATCH, (0,))
    _execute(connection, DELETE, ("[]",))
    _execute(connection, SET_ASIDE, ("", ""))
    connection.rollback()


def _replay(connection: Any, event_ids: Sequence[str]) -> int:
    return _execute(connection, REPLAY, (json.dumps(event_ids),))


def _parameters(asked: RejectedFilter) -> dict[str, Any]:
    return {
        "event_id": asked.event_id,
        "event_type": asked.event_type,
        "since": _naive(asked.since),
        "until": _naive(asked.until),
    }


def _naive(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC).replace(tzinfo=None)


def _moment(value: Any) -> datetime:
    """PyMySQL returns text for what is no date, as 0000-00-00, which a server may accept: then it is as old as can be."""
    return as_utc(value) if isinstance(value, datetime) else datetime(1970, 1, 1, tzinfo=UTC)


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
