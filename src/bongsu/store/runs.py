"""Runs of jobs: begin one, take an abandoned one over, save its progress, finish it.

A run is a row that one process holds at a time. The lease ends by the store's clock. `epoch` grows with each takeover: every
write of an owner names the epoch of its claim, and finds no row once another process has taken the run over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from bongsu.store.core.query import Dialect, Row, Transaction, fetch_one, in_both, optional_time, same

# Abandoned runs that are found at a time.
ABANDONED_LIMIT = 100


@dataclass(frozen=True)
class RunRow:
    """One run. Without `finished_at` it is under way, or abandoned if its lease has ended; else it has a result or an
    error."""

    run_id: int
    job: str
    subject: str
    slot: datetime | None
    requested_by: str
    input: Any
    epoch: int
    leased_by: str
    claim_count: int
    cursor: Any
    counts: Mapping[str, int]
    done: int
    total: int | None
    is_made_up: bool
    skipped: int
    started_at: datetime
    finished_at: datetime | None
    result: str | None
    error: str | None
    # By the store's clock when it was read.
    is_lease_over: bool
    age_seconds: float

    @property
    def scheduled_for(self) -> datetime:
        """The slot, or when a run by hand was started."""
        return self.slot or self.started_at

    @property
    def is_abandoned(self) -> bool:
        return self.finished_at is None and self.is_lease_over


@dataclass(frozen=True)
class NewRun:
    """A run to begin: for a slot, or requested by hand."""

    job: str
    requested_by: str
    subject: str = ""
    slot: datetime | None = None
    input: Any = None
    is_made_up: bool = False
    skipped: int = 0


@dataclass(frozen=True)
class Progress:
    """What a step saves: how far the run has come."""

    cursor: Any = None
    counts: Mapping[str, int] = field(default_factory=dict)
    done: int = 0
    total: int | None = None


def _lease_end(d: Dialect, seconds: str) -> str:
    return f"clock_timestamp() + make_interval(secs => {seconds})" if d.name == "postgresql" else d.after(seconds)


def _columns(d: Dialect) -> str:
    return f"""run_id, job, subject, slot, requested_by, input, epoch, leased_by, claim_count, cursor, counts, done, total,
        is_made_up, skipped, started_at, finished_at, result, error, due <= {d.clock} AS is_lease_over,
        {d.seconds_since("started_at")} AS age_seconds"""


# --- begin and take over ----------------------------------------------------------------------------------------------

# Insert a run unless the slot has one or another of the same job and subject is unfinished. Waits for a transaction that
# inserts the same. $1 job, $2 subject, $3 slot, $4 requested by, $5 input, $6 owner, $7 lease in seconds, $8 whether it
# makes up for a missed slot, $9 skipped slots.
_BEGIN = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_runs (job, subject, slot, requested_by, input, leased_by, due, is_made_up, skipped, started_at)
    VALUES ($1, $2, $3, $4, $5, $6, {_lease_end(d, "$7")}, $8, $9, {d.now})
    ON CONFLICT DO NOTHING RETURNING {_columns(d)}"""
    )
)
# The unfinished run of a job ($1) and subject ($2), if there is one. Locks nothing.
FIND_OPEN = in_both(
    lambda d: (
        f"""
    SELECT {_columns(d)} FROM bongsu_runs {d.index_hint("bongsu_runs_open")}
    WHERE job = $1 AND subject = $2 AND finished_at IS NULL"""
    )
)
# Unfinished runs whose leases have ended, oldest first, up to a limit ($1), among the few unfinished ones. Locks nothing.
FIND_ABANDONED = in_both(
    lambda d: (
        f"""
    SELECT {_columns(d)} FROM bongsu_runs {d.index_hint("bongsu_runs_open")}
    WHERE finished_at IS NULL AND due <= {d.clock} ORDER BY run_id LIMIT $1"""
    )
)
# Make another process ($3) the owner of a run ($1) that is abandoned and still has the epoch ($2) it was found with, for a
# lease of $4 seconds. Locks the row; passes over one that a step has locked, for its owner lives.
_TAKE_OVER = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_runs
    SET epoch = epoch + 1, leased_by = $3, due = {_lease_end(d, "$4")}, claim_count = claim_count + 1
    WHERE run_id = (
        SELECT r.run_id FROM bongsu_runs AS r
        WHERE r.run_id = $1 AND r.epoch = $2 AND r.finished_at IS NULL AND r.due <= {d.clock} {d.skip_locked})
    RETURNING {_columns(d)}"""
    )
)


async def begin(tx: Transaction, new: NewRun, owner: str, lease_seconds: float) -> RunRow | None:
    """The run, held by this process; None if another has or had that slot, or runs the job at this moment."""
    given = (new.job, new.subject, new.slot, new.requested_by, _to_json(new.input))
    query = _BEGIN(*given, owner, float(lease_seconds), new.is_made_up, new.skipped)
    return _read_one(tx.dialect, await fetch_one(tx, query))


async def find_open(tx: Transaction, job: str, subject: str = "") -> RunRow | None:
    """The run that is under way or abandoned."""
    return _read_one(tx.dialect, await fetch_one(tx, FIND_OPEN(job, subject)))


async def find_abandoned(tx: Transaction) -> list[RunRow]:
    return [_read(tx.dialect, row) for row in await tx.fetch(FIND_ABANDONED(ABANDONED_LIMIT))]


async def take_over(tx: Transaction, found: RunRow, owner: str, lease_seconds: float) -> RunRow | None:
    """The run as it was saved last, held by this process; None if its owner or another process was faster."""
    row = await fetch_one(tx, _TAKE_OVER(found.run_id, found.epoch, owner, float(lease_seconds)))
    return _read_one(tx.dialect, row)


# --- what an owner does -----------------------------------------------------------------------------------------------


# The process that claimed run $1 with epoch $2 holds it until its lease ends.
def _is_held(d: Dialect) -> str:
    return f"run_id = $1 AND epoch = $2 AND finished_at IS NULL AND due > {d.clock}"


# The run ($1) if its owner (epoch $2) still holds it. Locks the row until the transaction ends: it is not taken over before.
_HOLD = in_both(lambda d: f"SELECT {_columns(d)} FROM bongsu_runs WHERE {_is_held(d)} {d.lock_row}")

# Save how far run $1 (epoch $2) has come, and renew its lease: $3 cursor, $4 counts, $5 done, $6 total, $7 lease in seconds.
# The row was locked by _HOLD in the same transaction, so the lease need not be asked for: it may have ended meanwhile.
_SAVE = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_runs
    SET cursor = $3, counts = $4, done = $5, total = $6, due = {_lease_end(d, "$7")}, claim_count = 0
    WHERE run_id = $1 AND epoch = $2 AND finished_at IS NULL"""
    )
)
# Replace the input of run $1 by $2. The row was locked by _HOLD in the same transaction.
_REPLACE_INPUT = same("UPDATE bongsu_runs SET input = $2 WHERE run_id = $1")
# Renew the lease of run $1 (epoch $2) for $3 seconds, and return it as it was saved last. Locks the row; waits for a step.
_RENEW = in_both(lambda d: f"UPDATE bongsu_runs SET due = {_lease_end(d, '$3')} WHERE {_is_held(d)} RETURNING {_columns(d)}")
# End the lease of run $1 (epoch $2) now: its process stops, and another may go on. Such a claim does not count as a crash.
# Locks the row.
_RELEASE = in_both(lambda d: f"UPDATE bongsu_runs SET due = {d.clock}, claim_count = claim_count - 1 WHERE {_is_held(d)}")
# Record how run $1 (epoch $2) ended: $3 result, $4 error. Forgets the cursor, which may have a member's id in it. Locks the
# row. Also past the lease, if the run was not taken over: its last step may have taken longer than that, and another
# process would only do the same again.
_FINISH = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_runs SET finished_at = {d.clock}, result = $3, error = $4, cursor = NULL
    WHERE run_id = $1 AND epoch = $2 AND finished_at IS NULL RETURNING {_columns(d)}"""
    )
)


async def hold(tx: Transaction, run_id: int, epoch: int) -> RunRow | None:
    """The first statement of a step: the run as it was saved last, locked; None if this process no longer holds it."""
    return _read_one(tx.dialect, await fetch_one(tx, _HOLD(run_id, epoch)))


async def save(tx: Transaction, run_id: int, epoch: int, progress: Progress, lease_seconds: float) -> bool:
    """The last statement of a step, which commits with it. False if this process no longer holds the run."""
    cursor = None if progress.cursor is None else _to_json(progress.cursor)
    given = (cursor, _to_json(progress.counts), progress.done, progress.total, float(lease_seconds))
    (saved,) = await tx.execute(_SAVE(run_id, epoch, *given))
    return saved == 1


async def replace_input(tx: Transaction, run_id: int, value: Any) -> None:
    """In a step that ends the work: what was requested is no longer needed, and must not be kept."""
    await tx.execute(_REPLACE_INPUT(run_id, _to_json(value)))


async def renew(tx: Transaction, run_id: int, epoch: int, lease_seconds: float) -> RunRow | None:
    """The run, with its lease renewed; None if this process no longer holds it."""
    return _read_one(tx.dialect, await fetch_one(tx, _RENEW(run_id, epoch, float(lease_seconds))))


async def release(tx: Transaction, run_id: int, epoch: int) -> bool:
    """Let another process go on at once."""
    (released,) = await tx.execute(_RELEASE(run_id, epoch))
    return released == 1


async def finish(tx: Transaction, run_id: int, epoch: int, result: str | None, error: str | None) -> RunRow | None:
    """Record how it ended; None if another process has taken it over."""
    return _read_one(tx.dialect, await fetch_one(tx, _FINISH(run_id, epoch, result, error)))


# --- find -------------------------------------------------------------------------------------------------------------

# A run by its id ($1). Locks nothing.
_FIND = in_both(lambda d: f"SELECT {_columns(d)} FROM bongsu_runs WHERE run_id = $1")

# The newest runs of a job ($1), up to a limit ($2), by the index of its runs. Locks nothing.
FIND_NEWEST = in_both(
    lambda d: (
        f"""
    SELECT {_columns(d)} FROM bongsu_runs {d.index_hint("bongsu_runs_by_job")}
    WHERE job = $1 ORDER BY run_id DESC LIMIT $2"""
    )
)

# The newest run of a job ($1) that was scheduled for or requested at $2 or before, by the same index. Locks nothing.
FIND_LAST_UNTIL = in_both(
    lambda d: (
        f"""
    SELECT {_columns(d)} FROM bongsu_runs {d.index_hint("bongsu_runs_by_job")}
    WHERE job = $1 AND coalesce(slot, started_at) <= $2 ORDER BY run_id DESC LIMIT 1"""
    )
)


async def find(tx: Transaction, run_id: int) -> RunRow | None:
    return _read_one(tx.dialect, await fetch_one(tx, _FIND(run_id)))


async def find_newest(tx: Transaction, job: str, limit: int) -> list[RunRow]:
    """The last runs, newest first, whether scheduled or requested by hand."""
    return [_read(tx.dialect, row) for row in await tx.fetch(FIND_NEWEST(job, limit))]


async def find_last(tx: Transaction, job: str, until: datetime | None = None) -> RunRow | None:
    """The last run; with `until`, of those that were scheduled or requested by then."""
    if until is not None:
        return _read_one(tx.dialect, await fetch_one(tx, FIND_LAST_UNTIL(job, until)))
    return next(iter(await find_newest(tx, job, 1)), None)


def _read_one(dialect: Dialect, row: Row | None) -> RunRow | None:
    return None if row is None else _read(dialect, row)


def _read(dialect: Dialect, row: Row) -> RunRow:
    return RunRow(
        run_id=row["run_id"],
        job=row["job"],
        subject=row["subject"],
        slot=optional_time(dialect, row["slot"]),
        requested_by=row["requested_by"],
        input=orjson.loads(row["input"]),
        epoch=row["epoch"],
        leased_by=row["leased_by"],
        claim_count=row["claim_count"],
        cursor=None if row["cursor"] is None else orjson.loads(row["cursor"]),
        counts=orjson.loads(row["counts"]),
        done=row["done"],
        total=row["total"],
        is_made_up=bool(row["is_made_up"]),
        skipped=row["skipped"],
        started_at=dialect.time(row["started_at"]),
        finished_at=optional_time(dialect, row["finished_at"]),
        result=row["result"],
        error=row["error"],
        is_lease_over=bool(row["is_lease_over"]),
        age_seconds=float(row["age_seconds"]),
    )


def _to_json(value: Any) -> str:
    return orjson.dumps(value).decode()
