"""The outbox's statements: add, claim, record, look.

An event is PENDING and due, or PENDING and leased (its due time is the end of the lease), or finished. So new, retrying and
abandoned events are found by one predicate over one index. Every claim raises the epoch, and only the claim that holds
the newest epoch can record an outcome: a worker that was thought dead finishes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar
from uuid import UUID, SafeUUID

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.model import Event, EventStatus, no_payload, read_payload, utc_now
from bongsu.store.databases import dialect_named
from bongsu.store.dialect import Dialect, Placeholder, Statement, as_text
from bongsu.store.engine import Store

_ADDED = {
    "event_id": "uuid",
    "event_type": "text",
    "occurred_at": "timestamptz",
    "actor_id": "text",
    "target_id": "text",
    "ref_id": "text",
    "payload": "jsonb",
}
_EVENT = ", ".join(_ADDED)
# As the text it is: what a driver would make of JSON is its own affair and differs.
_READ = ", ".join(f"bongsu_events.{column}" for column in _ADDED if column != "payload") + ", CAST(payload AS text)"

# Parameters of one statement: 700 of them, which every SQLite takes (older ones stop at 999).
STATEMENT_EVENTS = 100
# From here on loading and, now and then, doing it over is quicker than asking for each id. What is less is one statement.
LOAD_FROM = 50

# A worker that dies takes a whole batch of claims with it, so a count of claims alone would condemn the innocent beside the
# culprit. From the third death on an event is a suspect, claimed alone; when it has died alone this often it is the culprit.
SUSPECT_AFTER = 3
DEATHS_ALONE = 3


class Claimed(NamedTuple):  # like Verdict, made for every event: a frozen dataclass takes four times as long to make
    """An event in a worker's hands until its lease ends."""

    event: Event
    epoch: int
    attempts: int
    claims: int
    unreadable: str | None = None

    @property
    def hopeless(self) -> str | None:
        """Why trying it again would change nothing, if so."""
        if self.unreadable:
            return self.unreadable
        if self.claims > SUSPECT_AFTER + DEATHS_ALONE:
            return f"every worker that took it has died, {self.claims - 1} in a row"
        return None


class Verdict(NamedTuple):
    """What becomes of a claimed event. PENDING means: again, after that many seconds."""

    event_id: UUID
    epoch: int
    status: EventStatus
    error: str | None = None
    after_seconds: float = 0.0


@dataclass(frozen=True)
class EventRow:
    """An event and its fate, for those who ask."""

    event: Event
    status: EventStatus
    attempts: int
    error: str | None
    created_at: datetime
    finished_at: datetime | None


class Row(NamedTuple):
    """A new event as it is stored: what an `Event` is to the store. Whoever makes one answers for what is in it."""

    event_id: UUID
    event_type: str
    occurred_at: datetime
    actor_id: str | None
    target_id: str | None
    ref_id: str | None
    payload_text: str


# --- add ------------------------------------------------------------------------------------------------------------


_E = TypeVar("_E", Event, Event | Row)


@cache
def insert_statement(dialect: Dialect, count: int, placeholder: Placeholder, returning: bool = True) -> str:
    """Insert so many events; answer the ids that were new, if asked. Waits for a rival transaction with the same id."""
    row = len(_ADDED)
    rows = (
        ", ".join(dialect.typed(kind, placeholder(row * place + column)) for column, kind in enumerate(_ADDED.values()))
        for place in range(count)
    )
    return f"""
        INSERT INTO bongsu_events ({_EVENT}) VALUES {", ".join(f"({one})" for one in rows)}
        ON CONFLICT (event_id) DO NOTHING{" RETURNING event_id" if returning else ""}"""


def insert_parameters(dialect: Dialect, events: Sequence[Event | Row]) -> list[Any]:
    return [value for row in dialect.plain(_ADDED, _rows(events)) for value in row]


def _rows(events: Sequence[Event | Row]) -> list[tuple[Any, ...]]:
    return [
        e if type(e) is Row else (e.event_id, e.event_type, e.occurred_at, e.actor_id, e.target_id, e.ref_id, e.payload_text)
        for e in events
    ]


def _number(event: Event | Row) -> int:
    return event.event_id.int  # numbers are compared in C, UUIDs are not


def parts(events: Sequence[_E]) -> list[Sequence[_E]]:
    """The events in statements' worths, in the order of their ids, so that two transactions with the same events wait for
    each other instead of locking up."""
    if len(events) > 1:
        events = sorted(events, key=_number)
    return [events[start : start + STATEMENT_EVENTS] for start in range(0, len(events), STATEMENT_EVENTS)]


async def add(tx: AsyncConnection, events: Sequence[Event | Row]) -> set[UUID]:
    """Store the events; return the ids that were not there before."""
    dialect = dialect_named(tx.dialect.name)
    new: set[UUID] = set()
    for part in parts(events):
        statement = insert_statement(dialect, len(part), dialect.placeholder)
        rows = await dialect.rows(tx, statement, tuple(insert_parameters(dialect, part)))
        new.update(as_uuid(row[0]) for row in rows)
    return new


class _NotAllNew(Exception):
    """Some of the events were there."""


async def add_many(store: Store, events: Sequence[Event | Row]) -> list[bool]:
    """Store the events in a transaction of their own; tell of each whether its id was new.

    Ids are hardly ever repeated, so many events are first taken to be new, and asked for one by one only when some are not.
    """
    if len(events) < LOAD_FROM:
        async with store.single() as connection:
            return told_apart(events, await add(connection, events))
    with contextlib.suppress(_NotAllNew):
        async with store.write_once() as tx:
            if not await store.dialect.load(tx, "bongsu_events", _ADDED, _rows(sorted(events, key=_number))):
                raise _NotAllNew
        return [True] * len(events)
    async with store.write() as tx:
        return told_apart(events, await add(tx, events))


def told_apart(events: Sequence[Event | Row], new: set[UUID]) -> list[bool]:
    """For each event whether its id is among the new ones; of several with one id, the first was it."""
    answers = []
    for event in events:
        is_new = event.event_id in new
        if is_new:
            new.remove(event.event_id)
        answers.append(is_new)
    return answers


# --- claim ----------------------------------------------------------------------------------------------------------


@cache
def claim_statement(dialect: Dialect, suspects: bool) -> str:
    """Lease due events, oldest first; rows another worker is claiming at this moment are passed over, not waited for."""
    index, sign = ("bongsu_events_suspect", ">=") if suspects else ("bongsu_events_due", "<")
    return f"""
        WITH due AS MATERIALIZED (
            SELECT event_id FROM bongsu_events {dialect.by_index(index)}
            WHERE status = 'PENDING' AND due <= {dialect.now} AND claims {sign} {SUSPECT_AFTER}
            ORDER BY due LIMIT {dialect.placeholder(0)} {dialect.skip_locked})
        UPDATE bongsu_events
        SET epoch = epoch + 1, claims = claims + 1, due = {dialect.after(dialect.placeholder(1))},
            leased_by = {dialect.placeholder(2)}
        FROM due WHERE bongsu_events.event_id = due.event_id
        RETURNING {_READ}, epoch, attempts, claims"""


async def claim(tx: AsyncConnection, limit: int, lease_seconds: float, worker: str) -> list[Claimed]:
    return await _claim(tx, limit, lease_seconds, worker, suspects=False)


async def claim_suspect(tx: AsyncConnection, lease_seconds: float, worker: str) -> list[Claimed]:
    """One event that several workers have died with, alone, so that it cannot harm others again."""
    return await _claim(tx, 1, lease_seconds, worker, suspects=True)


async def _claim(tx: AsyncConnection, limit: int, lease_seconds: float, worker: str, *, suspects: bool) -> list[Claimed]:
    dialect = dialect_named(tx.dialect.name)
    rows = await dialect.rows(tx, claim_statement(dialect, suspects), (limit, float(lease_seconds), worker))
    claimed = []
    # RETURNING has no order of its own; ids that were made in the order of time put the oldest first again.
    for row in sorted(rows, key=itemgetter(0)):
        event, unreadable = _read(dialect, row)
        claimed.append(Claimed(event, row[7], row[8], row[9], unreadable))
    return claimed


# --- record ---------------------------------------------------------------------------------------------------------

# SQLite's own name for the primary key's index. Left to itself it would read the whole table to find a few rows of it.
_BY_ID = "sqlite_autoindex_bongsu_events_1"
_VERDICT = {"event_id": "uuid", "epoch": "integer", "status": "text", "error": "text", "seconds": "double precision"}


@cache
def record_statement(dialect: Dialect) -> str:
    """Write outcomes where the epoch is still the claim's. A stale claim changes nothing."""
    return f"""
        UPDATE bongsu_events {dialect.by_index(_BY_ID)}
        SET status = given.status,
            attempts = bongsu_events.attempts + CASE WHEN given.error IS NULL THEN 0 ELSE 1 END,
            claims = 0, leased_by = NULL, error = given.error,
            due = CASE WHEN given.status = 'PENDING' THEN {dialect.after("given.seconds")} ELSE bongsu_events.due END,
            finished_at = CASE WHEN given.status = 'PENDING' THEN NULL ELSE {dialect.now} END
        {dialect.of_claims("bongsu_events", dialect.table(_VERDICT), "event_id")} AND bongsu_events.status = 'PENDING'"""


def recording(dialect: Dialect, verdicts: Sequence[Verdict]) -> Statement:
    """The same with its parameters."""
    rows = [(v.event_id, v.epoch, v.status, v.error, float(v.after_seconds)) for v in verdicts]
    return record_statement(dialect), tuple(dialect.parameters(_VERDICT, rows))


async def record(tx: AsyncConnection, verdicts: Sequence[Verdict]) -> set[UUID]:
    """Store what became of claimed events; return those that were still ours to judge."""
    ours = await _record(tx, verdicts)
    # Nearly always all of them. What is missing is another's, or was changed while it was looked for.
    missed = [one for one in verdicts if one.event_id not in ours]
    return ours | await _record(tx, missed) if missed else ours


async def _record(tx: AsyncConnection, verdicts: Sequence[Verdict]) -> set[UUID]:
    dialect = dialect_named(tx.dialect.name)
    statement, parameters = recording(dialect, verdicts)
    ours = await dialect.rows(tx, f"{statement} RETURNING bongsu_events.event_id", parameters)
    # Their ids are at hand, and need not be read.
    return {v.event_id for v in verdicts} if len(ours) == len(verdicts) else {as_uuid(row[0]) for row in ours}


async def give_back(tx: AsyncConnection, claimed: Sequence[Claimed], after_seconds: float) -> None:
    """Claims that came to nothing through no fault of the events: they were never made, and are due again soon."""
    dialect = dialect_named(tx.dialect.name)
    columns = {"event_id": "uuid", "epoch": "integer"}
    rows = [(one.event.event_id, one.epoch) for one in claimed]
    # The wait is a number of ours, not a value from outside.
    await tx.exec_driver_sql(
        f"""
        UPDATE bongsu_events {dialect.by_index(_BY_ID)}
        SET claims = bongsu_events.claims - 1, leased_by = NULL, due = {dialect.after(str(float(after_seconds)))}
        {dialect.of_claims("bongsu_events", dialect.table(columns), "event_id")} AND bongsu_events.status = 'PENDING'""",
        tuple(dialect.parameters(columns, rows)),
    )


# --- look -----------------------------------------------------------------------------------------------------------


async def find(connection: AsyncConnection, event_id: UUID) -> EventRow | None:
    dialect = dialect_named(connection.dialect.name)
    result = await connection.execute(
        as_text(
            f"SELECT {_READ}, status, attempts, error, created_at, finished_at FROM bongsu_events WHERE event_id = :event_id"
        ),
        {"event_id": event_id if dialect.name == "postgresql" else str(event_id)},
    )
    row = result.one_or_none()
    if row is None:
        return None
    event, unreadable = _read(dialect, row)
    finished_at = row[11] and dialect.moment(row[11])
    return EventRow(event, EventStatus(row[7]), row[8], row[9] or unreadable, dialect.moment(row[10]), finished_at)


async def count_unfinished(connection: AsyncConnection) -> dict[EventStatus, int]:
    """How many events wait and how many have failed. Both have an index; the DONE ones do not and are not counted."""
    counts = {}
    for status in (EventStatus.PENDING, EventStatus.FAILED):
        query = f"SELECT count(*) FROM bongsu_events WHERE status = '{status.value}'"
        counts[status] = int((await connection.execute(as_text(query))).scalar_one())
    return counts


def as_uuid(value: Any) -> UUID:
    """An id as UUID: drivers answer their own kinds of it, SQLite answers text."""
    return value if isinstance(value, UUID) else UUID(str(value))


_set_number, _set_safety = vars(UUID)["int"].__set__, vars(UUID)["is_safe"].__set__


def _uuid_of(stored: str) -> UUID:
    """The id that SQLite keeps. Its table has checked how it is written, so the half of the time that UUID() would look at
    that again is spared."""
    uuid = UUID.__new__(UUID)
    _set_number(uuid, int(stored.replace("-", ""), 16))
    _set_safety(uuid, SafeUUID.unknown)
    return uuid


def _read(dialect: Dialect, row: Sequence[Any]) -> tuple[Event, str | None]:
    """The Event a row begins with, not checked a second time; or as much of it as can be read, and why not the rest.

    A row written by plain SQL may hold what Python cannot read. That is one event's fault, not its batch's.
    """
    event_id, event_type, occurred_at, actor_id, target_id, ref_id, text_of_payload = row[:7]
    unreadable = None
    try:
        payload = read_payload(text_of_payload)
        moment = dialect.moment(occurred_at)
    except (ValueError, OverflowError, RecursionError) as error:
        unreadable = f"the row cannot be read: {type(error).__name__}: {error}"[:500]
        payload, moment = no_payload(), utc_now()
    event = Event.trusted(
        {
            "event_type": event_type,
            "event_id": event_id if isinstance(event_id, UUID) else _uuid_of(event_id),
            "occurred_at": moment,
            "actor_id": actor_id,
            "target_id": target_id,
            "ref_id": ref_id,
            "payload": payload,
        }
    )
    return event, unreadable
