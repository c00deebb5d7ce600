"""The outbox in PostgreSQL: one connection of asyncpg's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from bongsu.errors import OutboxDiffers, OutboxMissing, OutboxTooOld, SourceAway, SourceError, SourceLoginRefused
from bongsu.ingress.relay.outbox import (
    INLINE_BYTES,
    SHOWN_CHARACTERS,
    STALLED_SECONDS,
    OutboxRow,
    RejectedCursor,
    RejectedFilter,
    RejectedRow,
    as_source_error,
    check_settled,
    is_fetched_apart,
    within_bytes,
)

CONNECT_SECONDS = 5
# A batch takes a fraction of a second. Longer only delays the report that the server hangs.
ANSWER_SECONDS = 10

# Create the outbox. Its columns are text, also what is JSON or a UUID, so that a mistake in an event is found by the relay
# and does not fail the caller's transaction.
CREATE = """
    CREATE TABLE IF NOT EXISTS bongsu_outbox (
        event_id text PRIMARY KEY DEFAULT CAST(gen_random_uuid() AS text),
        event_type text NOT NULL,
        occurred_at timestamptz,
        actor_id text,
        target_id text,
        ref_id text,
        payload text,
        created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        failed_at timestamptz,
        error text
    )"""

# The waiting rows from the oldest to the newest, and the rejected ones, of which there are few.
CREATE_INDEXES = (
    "CREATE INDEX IF NOT EXISTS bongsu_outbox_waiting ON bongsu_outbox (created_at, event_id) WHERE failed_at IS NULL",
    "CREATE INDEX IF NOT EXISTS bongsu_outbox_failed ON bongsu_outbox (failed_at, event_id) WHERE failed_at IS NOT NULL",
)

# Whether the table is there.
EXISTS = "SELECT to_regclass('bongsu_outbox') IS NOT NULL"

# Whether a row waits: one entry of the index, no lock.
HAS_WAITING = "SELECT true FROM bongsu_outbox WHERE failed_at IS NULL LIMIT 1"

# For this transaction alone: behind a pooler the connection is not ours.
END_IF_STALLED = "SELECT set_config('idle_in_transaction_session_timeout', $1, true)"

# A time, with and without a zone (UTC then), that Python has too: PostgreSQL's reach farther, and to infinity.
_MOMENT = "CAST(least(greatest({}, '0001-01-02'), '9999-12-30') AS timestamptz)"
_PAYLOAD = "coalesce(CAST(payload AS text), '')"

# Locks the oldest rows that are not locked. The columns may have other types, such as uuid, bigint and jsonb.
LOCK_BATCH = f"""
    SELECT CAST(event_id AS text),
        CAST(json_build_object(
            'eventId', event_id, 'eventType', event_type,
            'occurredAt',
            to_char(coalesce(occurred_at, created_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            'actorId', CAST(actor_id AS text), 'targetId', CAST(target_id AS text), 'refId', CAST(ref_id AS text)) AS text),
        CASE WHEN octet_length({_PAYLOAD}) <= {INLINE_BYTES} THEN coalesce(CAST(payload AS text), '{{}}') END,
        octet_length({_PAYLOAD}), {_MOMENT.format("created_at")}
    FROM bongsu_outbox WHERE failed_at IS NULL ORDER BY created_at, event_id LIMIT $1 FOR UPDATE SKIP LOCKED"""

# A long payload of a row that this transaction has locked.
PAYLOAD = "SELECT CAST(payload AS text) FROM bongsu_outbox WHERE CAST(event_id AS text) = $1"

# Deletes rows that this transaction has locked.
DELETE = "DELETE FROM bongsu_outbox WHERE CAST(event_id AS text) = ANY(CAST($1 AS text[]))"

# Sets rows aside that this transaction has locked. $1 ids, $2 reasons.
SET_ASIDE = """
    UPDATE bongsu_outbox SET failed_at = clock_timestamp(), error = given.reason
    FROM unnest(CAST($1 AS text[]), CAST($2 AS text[])) AS given (event_id, reason)
    WHERE CAST(bongsu_outbox.event_id AS text) = given.event_id"""

_REJECTED = """failed_at IS NOT NULL
    AND (CAST($1 AS text) IS NULL OR CAST(event_id AS text) = $1) AND (CAST($2 AS text) IS NULL OR event_type = $2)
    AND (CAST($3 AS timestamptz) IS NULL OR failed_at >= $3) AND (CAST($4 AS timestamptz) IS NULL OR failed_at < $4)"""

# Rejected rows, newest first. No lock.
FIND_REJECTED = f"""
    SELECT CAST(event_id AS text), event_type, coalesce(error, ''), {_MOMENT.format("created_at")},
        {_MOMENT.format("failed_at")}, left({_PAYLOAD}, {SHOWN_CHARACTERS})
    FROM bongsu_outbox
    WHERE {_REJECTED} AND (CAST($5 AS timestamptz) IS NULL OR (failed_at, CAST(event_id AS text)) < ($5, CAST($6 AS text)))
    ORDER BY failed_at DESC, CAST(event_id AS text) DESC LIMIT $7"""

# How many there are. No lock.
COUNT_REJECTED = f"SELECT count(*) FROM bongsu_outbox WHERE {_REJECTED}"

# Lets the relay try rejected rows again. Locks them; those that wait again already are not touched.
REPLAY = """
    UPDATE bongsu_outbox SET failed_at = NULL, error = NULL
    WHERE CAST(event_id AS text) = ANY(CAST($1 AS text[])) AND failed_at IS NOT NULL"""

# By the beginning of SQLSTATE, the first that fits. What is not listed is reported as it is.
_BY_STATE: dict[str, type[SourceError]] = {
    "42501": SourceLoginRefused,
    "25006": SourceLoginRefused,  # read-only
    "28": SourceLoginRefused,
    "3D": SourceLoginRefused,  # no such database
    "42P01": OutboxMissing,
    "42703": OutboxDiffers,  # a column is missing
    "42804": OutboxDiffers,
    "42883": OutboxDiffers,  # no function for such a type
    "08": SourceAway,
    "25P03": SourceAway,
    "40": SourceAway,
    "53": SourceAway,
    "55P03": SourceAway,
    "57": SourceAway,
    "58": SourceAway,
    "XX": SourceAway,
}


class PostgresOutbox:
    """An OutboxDatabase."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._url = url
        self.location = f"postgresql://{parts.hostname or 'localhost'}:{parts.port or 5432}{parts.path}"
        self._connection: Any = None
        self._transaction: Any = None

    async def create(self) -> bool:
        async with self._connected() as connection:
            is_there: bool = await connection.fetchval(EXISTS)
            for text in (CREATE, *CREATE_INDEXES):
                await connection.execute(text)
            return not is_there

    async def check(self) -> str:
        """Also whether the user may do all that the relay does, on no rows."""
        await self.has_waiting()
        await self.lock_batch(0)
        async with self._connected() as connection:
            await connection.execute(DELETE, [])
            await connection.execute(SET_ASIDE, [], [])
        return f"{self.location} answers and has its outbox"

    async def has_waiting(self) -> bool:
        async with self._connected() as connection:
            return bool(await connection.fetchval(HAS_WAITING))

    async def lock_batch(self, limit: int) -> list[OutboxRow]:
        await self.roll_back()
        async with self._connected() as connection:
            self._transaction = connection.transaction(isolation="read_committed")
            await self._transaction.start()
            if connection.get_server_version() >= (9, 6):
                await connection.execute(END_IF_STALLED, str(STALLED_SECONDS * 1_000))
            found = [
                OutboxRow(event_id, fields.encode(), None if payload is None else payload.encode(), size, written)
                for event_id, fields, payload, size, written in await connection.fetch(LOCK_BATCH, limit)
            ]
            rows = []
            for row in within_bytes(found):
                if is_fetched_apart(row):
                    payload = await connection.fetchval(PAYLOAD, row.event_id)
                    rows.append(row._replace(payload=payload.encode()))
                else:
                    rows.append(row)
        if not rows:
            await self.roll_back()
        return rows

    async def settle(self, stored: Sequence[str], rejected: Sequence[tuple[str, str]]) -> None:
        async with self._connected() as connection:
            transaction, self._transaction = self._transaction, None
            if transaction is None:
                raise SourceAway(f"{self.location}: the connection was lost")
            settled = _count(await connection.execute(DELETE, stored))
            if rejected:
                settled += _count(await connection.execute(SET_ASIDE, *map(list, zip(*rejected, strict=True))))
            await transaction.commit()
            check_settled(self.location, settled, len(stored) + len(rejected))

    async def roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            async with self._connected():
                await transaction.rollback()

    async def close(self) -> None:
        connection, self._connection, self._transaction = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1):
                    await connection.close()
            connection.terminate()

    async def find_rejected(self, asked: RejectedFilter, after: RejectedCursor | None, limit: int) -> list[RejectedRow]:
        async with self._connected() as connection:
            found = await connection.fetch(FIND_REJECTED, *_parameters(asked), *(after or (None, None)), limit)
        return [RejectedRow(*row) for row in found]

    async def count_rejected(self, asked: RejectedFilter) -> int:
        async with self._connected() as connection:
            return int(await connection.fetchval(COUNT_REJECTED, *_parameters(asked)))

    async def replay(self, event_ids: Sequence[str]) -> int:
        async with self._connected() as connection:
            return _count(await connection.execute(REPLAY, event_ids))

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """The connection. It is dropped if the block fails: a transaction of it is rolled back by that."""
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection, self._transaction = await self._open(), None
            yield self._connection
        except SourceError:
            await self.close()
            raise
        except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, ValueError) as error:
            await self.close()
            raise as_source_error(_kind_of(error), self.location, error) from error
        except BaseException:
            # Cancelled in the middle of a statement.
            self._abandon()
            raise

    def _abandon(self) -> None:
        connection, self._connection, self._transaction = self._connection, None, None
        if connection is not None:
            connection.terminate()

    async def _open(self) -> Any:
        connection = await asyncpg.connect(
            self._url,
            timeout=CONNECT_SECONDS,
            command_timeout=ANSWER_SECONDS,
            # A time without a zone is UTC.
            server_settings={"application_name": "bongsu relay", "timezone": "UTC"},
        )
        if connection.get_server_version() < (9, 5):
            raise OutboxTooOld(f"The server is PostgreSQL {connection.get_server_version().major}")
        return connection


def _kind_of(error: Exception) -> type[SourceError]:
    if isinstance(error, OSError | asyncpg.InternalClientError):
        return SourceAway
    if isinstance(error, asyncpg.InterfaceError):
        return SourceAway
    state = str(getattr(error, "sqlstate", None) or "")
    return next((ours for beginning, ours in _BY_STATE.items() if state.startswith(beginning)), SourceError)


def _count(status: str) -> int:
    """Rows, of `DELETE 12`."""
    return int(status.rpartition(" ")[2])


def _parameters(asked: RejectedFilter) -> tuple[str | None, str | None, datetime | None, datetime | None]:
    return asked.event_id, asked.event_type, asked.since, asked.until
