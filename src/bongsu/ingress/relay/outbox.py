"""An outbox table in another service's database: what the relay and an operator do with it, and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import msgspec

from bongsu.errors import OutboxDiffers, SourceError
from bongsu.ingress.consumer import Received
from bongsu.ingress.decode import Mistake, Rejected
from bongsu.ingress.ndjson import LINE_LIMIT

# A payload of at most so many bytes is read with its row; a longer one by a statement of its own. 2,000 rows fit in 16 MB.
INLINE_BYTES = 8_192
# Long payloads of one batch; the first may have more. The rest waits for the next batch.
BATCH_BYTES = 4 * 1024 * 1024
# A relay whose machine has vanished does not close its connection. The server ends it after so long without a statement, and
# the rows that it has locked are relayed by others. The store commits a batch in a fraction of this.
STALLED_SECONDS = 60
# Of a payload that `bongsu dead show` prints.
SHOWN_CHARACTERS = 10_000


class OutboxRow(NamedTuple):
    event_id: str
    # Everything but the payload, as a JSON object with the names of an Event.
    fields: bytes
    # None while it is not read: it is longer than INLINE_BYTES.
    payload: bytes | None
    size: int
    written_at: datetime


@dataclass(frozen=True)
class RejectedRow:
    """A row that cannot be an event."""

    event_id: str
    event_type: str
    error: str
    written_at: datetime
    rejected_at: datetime
    payload: str


@dataclass(frozen=True)
class RejectedFilter:
    event_id: str | None = None
    event_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class RejectedCursor(NamedTuple):
    """The last row of a page of rejected ones, which go from the newest to the oldest."""

    rejected_at: datetime
    event_id: str


class OutboxDatabase(Protocol):
    """One connection at a time, opened when it is needed. Everything raises SourceError and nothing else."""

    # For messages: the URL without its password.
    location: str

    async def create(self) -> bool:
        """Create the table; return False if it is there already. Nothing else in the database is touched."""

    async def check(self) -> str:
        """What was found, if the relay can work with it."""

    async def has_waiting(self) -> bool:
        """Whether there may be rows to relay. Cheap: for polling."""

    async def lock_batch(self, limit: int) -> list[OutboxRow]:
        """Begin a transaction, and lock and read the oldest rows that no other transaction has locked."""

    async def settle(self, stored: Sequence[str], rejected: Sequence[tuple[str, str]]) -> None:
        """Delete the stored rows, set the rejected ones aside with their reasons, and commit."""

    async def roll_back(self) -> None:
        """Hand the locked rows back."""

    async def close(self) -> None:
        """Disconnect. The next use connects again."""

    async def find_rejected(self, asked: RejectedFilter, after: RejectedCursor | None, limit: int) -> list[RejectedRow]: ...

    async def count_rejected(self, asked: RejectedFilter) -> int: ...

    async def replay(self, event_ids: Sequence[str]) -> int:
        """Let the relay try these rows again; return how many still were set aside."""


# --- a row as a message -----------------------------------------------------------------------------------------------

_is_one_value = msgspec.json.Decoder(msgspec.Raw).decode


def as_message(row: OutboxRow) -> Received:
    return Received(_body_of(row), row.event_id, written_at=row.written_at)


def _body_of(row: OutboxRow) -> bytes | Rejected:
    """The event as JSON. The payload stands before the other fields, which so count, whatever the payload's text is."""
    if row.payload is None:
        return Rejected([Mistake(("payload",), f"is longer than {LINE_LIMIT} bytes")])
    try:
        _is_one_value(row.payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        return Rejected([Mistake(("payload",), f"is not JSON: {error}")])
    return b'{"payload":%b,%b' % (row.payload, row.fields[1:])


def within_bytes(rows: Sequence[OutboxRow]) -> list[OutboxRow]:
    """As many as fit into BATCH_BYTES, one at least; those that are too long to be an event count nothing."""
    size = 0
    kept: list[OutboxRow] = []
    for row in rows:
        size += row.size if INLINE_BYTES < row.size <= LINE_LIMIT else 0
        if kept and size > BATCH_BYTES:
            break
        kept.append(row)
    return kept


def is_fetched_apart(row: OutboxRow) -> bool:
    return row.payload is None and row.size <= LINE_LIMIT


# --- errors -----------------------------------------------------------------------------------------------------------


def as_source_error(kind: type[SourceError], location: str, error: BaseException) -> SourceError:
    text = (str(error).splitlines() or [""])[0][:200]
    return kind(f"{location}: {text or type(error).__name__}")


def check_settled(location: str, settled: int, asked: int) -> None:
    """After the commit. A row that its id does not find again would be relayed for ever, and without a pause."""
    if settled < asked:
        raise OutboxDiffers(
            f"{location}: of {asked} rows of bongsu_outbox, {asked - settled} are not found by their event_id"
        )


def as_utc(moment: datetime) -> datetime:
    """A database without zones keeps UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
