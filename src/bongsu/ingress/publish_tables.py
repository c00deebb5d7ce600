"""Which table publish writes to, and the INSERT for it: bongsu_events where that is, else bongsu_outbox."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

from bongsu.errors import NothingToPublishTo
from bongsu.model import Event
from bongsu.store.core.postgres import POSTGRES
from bongsu.store.outbox.insert import insert_values, values_for
from bongsu.store.outbox.rows import NEW_EVENT, as_rows

MYSQL = "mysql"


class Target(StrEnum):
    EVENTS = "bongsu_events"
    OUTBOX = "bongsu_outbox"


# Which of the two are there, by the caller's search path. It does not fail where one is missing: on PostgreSQL an INSERT
# that fails would end the caller's transaction.
FIND_POSTGRES = "SELECT to_regclass('bongsu_events') IS NOT NULL, to_regclass('bongsu_outbox') IS NOT NULL"
# The same on SQLite.
FIND_SQLITE = """
    SELECT count(CASE name WHEN 'bongsu_events' THEN 1 END), count(CASE name WHEN 'bongsu_outbox' THEN 1 END)
    FROM sqlite_master WHERE type = 'table'"""


def choose(found: Sequence[Any]) -> Target:
    """From the answer of one of the two statements."""
    has_events, has_outbox = found
    if not has_events and not has_outbox:
        raise NothingToPublishTo("There is neither bongsu_events nor bongsu_outbox in this database")
    return Target.EVENTS if has_events else Target.OUTBOX


# By the driver's connection: it is looked up once for each. A search path that is changed later is not looked at again.
known_targets: WeakKeyDictionary[Any, Target] = WeakKeyDictionary()


def insert_text(database: str, style: str, events: Sequence[Event], target: Target, *, returning: bool) -> str:
    if target is Target.EVENTS:
        return insert_values(database, style, len(events), returning=returning)
    return outbox_text(database, style, len(events), returning=returning)


def insert_parameters(database: str, events: Sequence[Event], target: Target) -> list[Any]:
    return values_for(database, events) if target is Target.EVENTS else outbox_values(database, events)


@cache
def outbox_text(database: str, style: str, count: int, *, returning: bool) -> str:
    """INSERT … VALUES into bongsu_outbox for so many events. On MySQL a row whose id is there is an error: the number of
    rows that ON DUPLICATE KEY UPDATE reports depends on the connection's flags."""
    width = len(NEW_EVENT)
    placeholders = [f"${number}" if style == "$" else style for number in range(1, width * count + 1)]
    rows = ", ".join(f"({', '.join(placeholders[start : start + width])})" for start in range(0, width * count, width))
    text = f"INSERT INTO bongsu_outbox ({', '.join(NEW_EVENT)}) VALUES {rows}"
    if database == MYSQL:
        return text
    text = f"{text} ON CONFLICT (event_id) DO NOTHING"
    return f"{text} RETURNING event_id" if returning else text


def outbox_values(database: str, events: Sequence[Event]) -> list[Any]:
    as_time = _AS_TIME[database]
    return [
        value
        for row in as_rows(events)
        for value in (str(row.event_id), row.event_type, as_time(row.occurred_at), *row[3 : len(NEW_EVENT)])
    ]


def _naive_text(moment: datetime) -> str:
    """MySQL's datetime has no zone: it is UTC."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ")


def _iso_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


_AS_TIME = {MYSQL: _naive_text, POSTGRES.name: lambda moment: moment, "sqlite": _iso_text}
