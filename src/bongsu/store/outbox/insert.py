"""New events into the outbox: through our own store, and the text of an INSERT for a caller's own connection."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar
from uuid import UUID

from bongsu.model import Event
from bongsu.store.core.query import Row, Statement, Table, Transaction, as_uuid
from bongsu.store.core.sqlite import to_microseconds
from bongsu.store.core.store import Store, repeat_if_rolled_back
from bongsu.store.outbox import postgres, sqlite
from bongsu.store.outbox.rows import ENDED_EVENT, NEW_EVENT, SCHEDULED_EVENT, EndedEvent, NewEvent, as_rows

_INSERT = Statement(postgres.INSERT, sqlite.INSERT)
_INSERT_ENDED = Statement(postgres.INSERT_ENDED, sqlite.INSERT_ENDED)

_E = TypeVar("_E", Event, Event | NewEvent, EndedEvent)


async def add(tx: Transaction, events: Sequence[Event | NewEvent]) -> set[UUID]:
    """Insert the events; return the ids that were not there before."""
    return {as_uuid(row["event_id"]) for row in await _insert(tx, events)}


async def add_many(store: Store, events: Sequence[Event | NewEvent]) -> list[bool]:
    """Insert the events in a transaction of their own; return for each whether its id was new."""

    async def insert() -> Sequence[Row]:
        async with store.single() as tx:
            return await _insert(tx, events)

    # We insert in id order; a caller's own transaction may insert the same ids in another order.
    rows = await repeat_if_rolled_back(insert)
    # Nearly always all of them are new, and then their ids need not be read.
    if len(rows) == len(events):
        return [True] * len(events)
    return match_new(events, {as_uuid(row["event_id"]) for row in rows})


async def _insert(tx: Transaction, events: Sequence[Event | NewEvent]) -> Sequence[Row]:
    return await tx.fetch(_INSERT(Table(SCHEDULED_EVENT, as_rows(in_lock_order(events))))) if events else ()


async def add_ended(tx: Transaction, events: Sequence[EndedEvent]) -> set[UUID]:
    """Insert events that have ended; return the ids that were not there before."""
    rows = await tx.fetch(_INSERT_ENDED(Table(ENDED_EVENT, in_lock_order(events))))
    return {as_uuid(row["event_id"]) for row in rows}


def match_new(events: Sequence[Event | NewEvent], new: set[UUID]) -> list[bool]:
    """For each event whether its id is among the new ones; of several with one id, the first was inserted."""
    left = set(new)
    answers = []
    for event in events:
        is_new = event.event_id in left
        if is_new:
            left.remove(event.event_id)
        answers.append(is_new)
    return answers


def in_lock_order(events: Sequence[_E]) -> Sequence[_E]:
    """In id order, so that two transactions with the same events wait for each other instead of deadlocking."""
    # By the UUIDs' numbers, which are compared in C.
    return sorted(events, key=lambda event: event.event_id.int) if len(events) > 1 else events


# --- on a caller's connection -----------------------------------------------------------------------------------------

# 700 parameters, which every SQLite takes (older ones stop at 999).
STATEMENT_EVENTS = 100


def statement_parts(events: Sequence[_E]) -> list[Sequence[_E]]:
    """The events in id order, cut into what one statement takes."""
    events = in_lock_order(events)
    return [events[start : start + STATEMENT_EVENTS] for start in range(0, len(events), STATEMENT_EVENTS)]


@cache
def insert_values(database: str, style: str, count: int, *, returning: bool) -> str:
    """INSERT … VALUES for so many events, with parameters in the style of the caller's library: "?", "%s" or "$".

    The one text that is put together at run time, because its placeholders belong to the caller's library: it cannot be a
    Statement. It inserts the events whose id is not there yet, and returns those ids if asked.
    """
    width = len(NEW_EVENT)
    # JSON goes as text: the caller's connection may encode JSON itself, and would do so a second time.
    last = "CAST(CAST({} AS text) AS jsonb)" if database == "postgresql" else "{}"
    row = ", ".join([*["{}"] * (width - 1), last])
    rows = ", ".join(f"({row})" for _ in range(count))
    placeholders = [f"${number}" if style == "$" else style for number in range(1, width * count + 1)]
    values = rows.format(*placeholders)
    text = f"INSERT INTO bongsu_events ({', '.join(NEW_EVENT)}) VALUES {values} ON CONFLICT (event_id) DO NOTHING"
    return f"{text} RETURNING event_id" if returning else text


def values_for(database: str, events: Sequence[Event]) -> list[Any]:
    """The parameters of `insert_values`."""
    rows = as_rows(events)
    if database == "postgresql":
        return [value for row in rows for value in row[: len(NEW_EVENT)]]
    return [
        value
        for row in rows
        for value in (str(row.event_id), row[1], to_microseconds(row.occurred_at), *row[3 : len(NEW_EVENT)])
    ]
