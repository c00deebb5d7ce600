"""Shares of the store's connections, so that one kind of work cannot use up what another needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# All our statements are short. One that runs longer hangs, and a transaction that hangs keeps VACUUM from cleaning up.
STATEMENT_SECONDS = 30.0


class Share(StrEnum):
    # Storing events that come in.
    INGEST = "ingest"
    # Requests of members: refused after a moment, because the caller can try again.
    MEMBERS = "members"
    # Requests of operators, /api/admin/*: they read much, and members' requests must not wait for that.
    OPERATORS = "operators"
    # Workers, dispatchers, the clock, the gateway: what runs by itself and tries again.
    WORK = "work"
    # Users' own SELECTs of audiences, which may take long.
    AUDIENCES = "audiences"


@dataclass(frozen=True)
class Limits:
    """How many connections a share may have open (PostgreSQL), how long it waits for one and for a lock, and how long one
    of its statements may run. On SQLite statements that write have no such limit: they are ours and bounded."""

    connections: int
    wait_seconds: float
    lock_seconds: float
    statement_seconds: float = STATEMENT_SECONDS


# Users' SELECTs that one process runs at a time. More would take the database from everything else.
AUDIENCE_READERS = 2

# Two cores of database serve about twenty busy connections well; more would queue there instead of here. Each share has its
# own, so that one slow table (an index being built, a forgotten transaction) does not stop what has nothing to do with it.
# A member's call is refused after a moment; a worker's statement waits longer, as no caller waits for its answer. The wait
# for a lock ends before a statement's own limit, so that the error shows which of the two it was. Callers that send events
# get an error after 3 s if a lock is held: they can send again, and most give up after 5 or 10 s. An operator's page takes a
# fraction of a second; one that takes 5 s is stopped, and its connection is free for the next.
SHARES = {
    Share.INGEST: Limits(connections=4, wait_seconds=10, lock_seconds=3),
    Share.MEMBERS: Limits(connections=8, wait_seconds=3, lock_seconds=2),
    Share.OPERATORS: Limits(connections=3, wait_seconds=3, lock_seconds=2, statement_seconds=5),
    Share.WORK: Limits(connections=8, wait_seconds=10, lock_seconds=20),
    Share.AUDIENCES: Limits(connections=AUDIENCE_READERS, wait_seconds=10, lock_seconds=10),
}
