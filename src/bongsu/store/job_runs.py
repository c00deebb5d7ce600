"""Runs of jobs. The row of a run is its lock: the process that inserts it runs that slot, all others skip it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from bongsu.store.core.query import Dialect, Row, Transaction, fetch_one, in_both, same


@dataclass(frozen=True)
class Run:
    """One run of a job. Without `finished_at` it is still running, or its process died; else it has a result or an error."""

    job: str
    slot: datetime
    worker: str
    started_at: datetime
    finished_at: datetime | None
    result: str | None
    error: str | None


_COLUMNS = "job, slot, worker, started_at, finished_at, result, error"

# Insert the run unless the slot has one. Waits for a transaction that inserts the same slot. $1 job, $2 slot, $3 worker.
_CLAIM = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_job_runs (job, slot, worker, started_at) VALUES ($1, $2, $3, {d.now})
    ON CONFLICT (job, slot) DO NOTHING"""
    )
)
# Record how the run ended. $1 job, $2 slot, $3 result, $4 error.
_FINISH = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_job_runs SET finished_at = {d.now}, result = $3, error = $4
    WHERE job = $1 AND slot = $2 RETURNING {_COLUMNS}"""
    )
)
# The run of the newest slot, by the primary key. $1 job.
_LAST = same(f"SELECT {_COLUMNS} FROM bongsu_job_runs WHERE job = $1 ORDER BY slot DESC LIMIT 1")


async def claim(tx: Transaction, job: str, slot: datetime, worker: str) -> bool:
    """Whether this process is to run the slot: no other has claimed it."""
    (inserted,) = await tx.execute(_CLAIM(job, slot, worker))
    return inserted == 1


async def finish(tx: Transaction, job: str, slot: datetime, result: str | None, error: str | None) -> Run:
    """Record the end of a run that was claimed."""
    (row,) = await tx.fetch(_FINISH(job, slot, result, error))
    return _run(tx.dialect, row)


async def find_last(tx: Transaction, job: str) -> Run | None:
    """The run of the newest slot, whether scheduled or started by hand."""
    row = await fetch_one(tx, _LAST(job))
    return None if row is None else _run(tx.dialect, row)


def _run(dialect: Dialect, row: Row) -> Run:
    return Run(
        job=row["job"],
        slot=dialect.time(row["slot"]),
        worker=row["worker"],
        started_at=dialect.time(row["started_at"]),
        finished_at=None if row["finished_at"] is None else dialect.time(row["finished_at"]),
        result=row["result"],
        error=row["error"],
    )
