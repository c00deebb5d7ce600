"""Statements about runs of jobs. A run's row is its lock: whoever inserts it runs it, and nobody else does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.store.databases import dialect_named
from bongsu.store.dialect import Dialect, as_text


@dataclass(frozen=True)
class Run:
    """A run begun and, unless it is under way or its process has died, ended: with a result or with an error."""

    job: str
    slot: datetime
    worker: str
    started_at: datetime
    finished_at: datetime | None
    result: str | None
    error: str | None


_RUN = "job, slot, worker, started_at, finished_at, result, error"


async def take(tx: AsyncConnection, job: str, slot: datetime, worker: str) -> bool:
    """Whether this slot is ours to run. Waits for a rival who is taking the same one."""
    dialect = dialect_named(tx.dialect.name)
    taken = await tx.execute(
        as_text(f"""
            INSERT INTO bongsu_job_runs (job, slot, worker, started_at) VALUES (:job, :slot, :worker, {dialect.now})
            ON CONFLICT (job, slot) DO NOTHING RETURNING job"""),
        {"job": job, "slot": dialect.stored(slot), "worker": worker},
    )
    return taken.one_or_none() is not None


async def finish(tx: AsyncConnection, job: str, slot: datetime, result: str | None, error: str | None) -> Run:
    """Write down what came of a run that was taken."""
    dialect = dialect_named(tx.dialect.name)
    finished = await tx.execute(
        as_text(f"""
            UPDATE bongsu_job_runs SET finished_at = {dialect.now}, result = :result, error = :error
            WHERE job = :job AND slot = :slot RETURNING {_RUN}"""),
        {"job": job, "slot": dialect.stored(slot), "result": result, "error": error},
    )
    return _run(dialect, finished.one())


async def find_last(connection: AsyncConnection, job: str) -> Run | None:
    """The run of the newest slot, by the clock or by hand."""
    dialect = dialect_named(connection.dialect.name)
    found = await connection.execute(
        as_text(f"SELECT {_RUN} FROM bongsu_job_runs WHERE job = :job ORDER BY slot DESC LIMIT 1"), {"job": job}
    )
    row = found.one_or_none()
    return None if row is None else _run(dialect, row)


def _run(dialect: Dialect, row: Sequence[Any]) -> Run:
    job, slot, worker, started_at, finished_at, result, error = row
    ended = None if finished_at is None else dialect.moment(finished_at)
    return Run(job, dialect.moment(slot), worker, dialect.moment(started_at), ended, result, error)
