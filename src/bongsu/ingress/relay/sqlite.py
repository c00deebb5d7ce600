"""The outbox in a SQLite file.

SQLite has one writer and no row locks. Rows are read without a lock, so that the relay does not keep the callers from
writing while the store commits, and deleted afterwards. Two relays of one file may read the same rows; the event id decides.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from bongsu.errors import OutboxDiffers, OutboxMissing, SourceAway, SourceError, SourceLoginRefused
from bongsu.ingress.relay.outbox import (
    INLINE_BYTES,
    SHOWN_CHARACTERS,
    OutboxRow,
    RejectedCursor,
    RejectedFilter,
    RejectedRow,
    as_source_error,
    is_fetched_apart,
    within_bytes,
)
from bongsu.runtime.driver_thread import DriverThread

# For another writer: callers' transactions are short.
BUSY_SECONDS = 5

_MICROSECONDS = re.compile(r"[0-9]{9,18}")

_T = TypeVar("_T")
_Connection = sqlite3.Connection

# Create the outbox. Times are text, in UTC.
CREATE = """
    CREATE TABLE IF NOT EXISTS bongsu_outbox (
        event_id text NOT NULL PRIMARY KEY DEFAULT (lower(
            hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8' ||
            substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))),
        event_type text NOT NULL,
        occurred_at text,
        actor_id text,
        target_id text,
        ref_id text,
        payload text,
        created_at text NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
        failed_at text,
        error text
    )"""

# The waiting rows from the oldest to the newest.
CREATE_INDEX = "CREATE INDEX IF NOT EXISTS bongsu_outbox_waiting ON bongsu_outbox (failed_at, created_at)"

# Whether the table is there.
EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'bongsu_outbox'"

# Whether a row waits: one entry of the index.
HAS_WAITING = "SELECT 1 FROM bongsu_outbox WHERE failed_at IS NULL LIMIT 1"

# The oldest rows. Ids may be numbers. Rows of one moment are in the order of their insertion.
FIND_BATCH = f"""
    SELECT event_id, event_type, coalesce(occurred_at, created_at) AS moment,
        CAST(actor_id AS text), CAST(target_id AS text), CAST(ref_id AS text),
        CASE WHEN length(CAST(coalesce(payload, '') AS blob)) <= {INLINE_BYTES} THEN coalesce(payload, '{{}}') END,
        length(CAST(coalesce(payload, '') AS blob)), created_at
    FROM bongsu_outbox WHERE failed_at IS NULL ORDER BY created_at, rowid LIMIT ?"""

# A long payload.
PAYLOAD = "SELECT payload FROM bongsu_outbox WHERE event_id = ?"

# Deletes a row that is stored.
DELETE = "DELETE FROM bongsu_outbox WHERE event_id = ?"

# Sets a row aside, unless another relay has done so.
SET_ASIDE = """
    UPDATE bongsu_outbox SET failed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), error = ?
    WHERE event_id = ? AND failed_at IS NULL"""

_REJECTED = """failed_at IS NOT NULL
    AND (:event_id IS NULL OR event_id = :event_id) AND (:event_type IS NULL OR event_type = :event_type)
    AND (:since IS NULL OR failed_at >= :since) AND (:until IS NULL OR failed_at < :until)"""

# Rejected rows, newest first.
FIND_REJECTED = f"""
    SELECT event_id, event_type, coalesce(error, '') AS error, created_at, failed_at,
        substr(coalesce(payload, ''), 1, {SHOWN_CHARACTERS}) AS payload
    FROM bongsu_outbox WHERE {_REJECTED} AND (:last IS NULL OR (failed_at, event_id) < (:last, :last_id))
    ORDER BY failed_at DESC, event_id DESC LIMIT :limit"""

# How many there are.
COUNT_REJECTED = f"SELECT count(*) FROM bongsu_outbox WHERE {_REJECTED}"

# Lets the relay try a rejected row again; one that waits again already is not touched.
REPLAY = "UPDATE bongsu_outbox SET failed_at = NULL, error = NULL WHERE event_id = ? AND failed_at IS NOT NULL"

_BY_CODE: dict[int, type[SourceError]] = {
    sqlite3.SQLITE_READONLY: SourceLoginRefused,
    sqlite3.SQLITE_PERM: SourceLoginRefused,
}


class SqliteOutbox:
    """An OutboxDatabase."""

    def __init__(self, url: str) -> None:
        # sqlite:///relative.db, sqlite:////absolute.db
        self._path = Path(unquote(urlsplit(url).path.removeprefix("/")))
        self.location = f"sqlite:///{self._path}"
        self._thread: DriverThread[_Connection] = self._new_thread()
        # Which file is open.
        self._file: tuple[int, int] | None = None

    async def create(self) -> bool:
        try:
            self._path.touch(mode=0o600)
        except OSError as error:
            raise as_source_error(_kind_of(error), self.location, error) from error
        return await self._run(_create)

    async def check(self) -> str:
        await self.lock_batch(0)
        await self.settle([], [])
        return f"{self.location} can be read and written and has its outbox"

    async def has_waiting(self) -> bool:
        return await self._run(lambda connection: connection.execute(HAS_WAITING).fetchone()) is not None

    async def lock_batch(self, limit: int) -> list[OutboxRow]:
        return await self._run(_find_batch, limit)

    async def settle(self, stored: Sequence[str], rejected: Sequence[tuple[str, str]]) -> None:
        await self._run(_settle, stored, rejected)

    async def roll_back(self) -> None:
        """Nothing is locked."""

    async def close(self) -> None:
        await self._thread.close()
        self._thread = self._new_thread()

    async def find_rejected(self, asked: RejectedFilter, after: RejectedCursor | None, limit: int) -> list[RejectedRow]:
        last, last_id = after or (None, None)
        given = _parameters(asked) | {"last": _stamp(last), "last_id": last_id, "limit": limit}
        rows = await self._run(lambda connection: connection.execute(FIND_REJECTED, given).fetchall())
        return [
            RejectedRow(str(event_id), str(kind), error, _moment(written), _moment(rejected), str(payload))
            for event_id, kind, error, written, rejected, payload in rows
        ]

    async def count_rejected(self, asked: RejectedFilter) -> int:
        (count,) = await self._run(lambda connection: connection.execute(COUNT_REJECTED, _parameters(asked)).fetchone())
        return int(count)

    async def replay(self, event_ids: Sequence[str]) -> int:
        return await self._run(_replay, event_ids)

    async def _run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        try:
            if self._file is not None and self._identify() != self._file:
                raise OSError("the file was replaced")
            return await self._thread.run(call, *arguments)
        except (sqlite3.Error, OSError) as error:
            await self._thread.disconnect()
            self._file = None
            raise as_source_error(_kind_of(error), self.location, error) from error

    def _new_thread(self) -> DriverThread[_Connection]:
        return DriverThread(self._open, "bongsu-relay-sqlite")

    def _identify(self) -> tuple[int, int]:
        """An open file that was removed or replaced can still be read, and would never have new rows."""
        status = self._path.stat()
        return status.st_dev, status.st_ino

    def _open(self) -> _Connection:
        """In the thread. A file that is not there is not created: it would be an empty outbox for ever."""
        uri = f"file:{quote(str(self._path.absolute()))}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        # Text that is not UTF-8 makes a row that cannot be an event, not a batch that cannot be read.
        self._file = self._identify()
        connection.text_factory = lambda text: text.decode(errors="replace")
        return connection


def _kind_of(error: Exception) -> type[SourceError]:
    text = str(error)
    if "no such table" in text:
        return OutboxMissing
    if "no such column" in text or "no column named" in text:
        return OutboxDiffers
    return _BY_CODE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, SourceAway)


# --- in the thread ----------------------------------------------------------------------------------------------------


def _create(connection: _Connection) -> bool:
    is_there = connection.execute(EXISTS).fetchone() is not None
    connection.execute(CREATE)
    connection.execute(CREATE_INDEX)
    return not is_there


def _find_batch(connection: _Connection, limit: int) -> list[OutboxRow]:
    rows = within_bytes([_as_row(found) for found in connection.execute(FIND_BATCH, (limit,)).fetchall()])
    return [_with_payload(connection, row) if is_fetched_apart(row) else row for row in rows]


def _as_row(found: Sequence[Any]) -> OutboxRow:
    event_id, event_type, moment, actor_id, target_id, ref_id, payload, size, written = found
    fields = {
        "eventId": event_id, "eventType": event_type, "occurredAt": _as_time(moment), "actorId": actor_id,
        "targetId": target_id, "refId": ref_id,
    }  # fmt: skip
    # A column may hold a blob, which JSON has no words for.
    text = json.dumps(fields, ensure_ascii=False, default=repr)
    return OutboxRow(event_id, text.encode(errors="replace"), _as_bytes(payload), size, _moment(written))


def _with_payload(connection: _Connection, row: OutboxRow) -> OutboxRow:
    found = connection.execute(PAYLOAD, (row.event_id,)).fetchone()
    return row._replace(payload=b"" if found is None else _as_bytes(found[0]))


def _as_bytes(payload: Any) -> bytes | None:
    return payload if payload is None or isinstance(payload, bytes) else str(payload).encode(errors="replace")


def _as_time(moment: Any) -> Any:
    """Also without a zone, which is UTC then, as SQLite's own functions write it; and as microseconds since 1970, as
    bongsu_events has them: the column makes digits of a number. Eight digits are a date."""
    try:
        if _MICROSECONDS.fullmatch(str(moment)):
            return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(moment))).isoformat()
        parsed = datetime.fromisoformat(moment)
    except (TypeError, ValueError, OverflowError):
        return moment
    return parsed.replace(tzinfo=UTC).isoformat() if parsed.tzinfo is None else moment


def _moment(text: Any) -> datetime:
    """Of created_at, which a caller may have written in its own way: then it is as old as can be."""
    try:
        moment = datetime.fromisoformat(_as_time(text))
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return datetime(1970, 1, 1, tzinfo=UTC)


def _settle(connection: _Connection, stored: Sequence[str], rejected: Sequence[tuple[str, str]]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.executemany(DELETE, [(event_id,) for event_id in stored])
        connection.executemany(SET_ASIDE, [(reason, event_id) for event_id, reason in rejected])
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _replay(connection: _Connection, event_ids: Sequence[str]) -> int:
    return sum(connection.execute(REPLAY, (event_id,)).rowcount for event_id in event_ids)


def _parameters(asked: RejectedFilter) -> dict[str, Any]:
    return {
        "event_id": asked.event_id,
        "event_type": asked.event_type,
        "since": _stamp(asked.since),
        "until": _stamp(asked.until),
    }


def _stamp(moment: datetime | None) -> str | None:
    """As strftime('%f') writes it: milliseconds."""
    if moment is None:
        return None
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
