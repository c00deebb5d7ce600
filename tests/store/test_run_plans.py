"""The clock looks for abandoned runs every second: among the unfinished ones, however many are finished."""

from __future__ import annotations

from bongsu.store import Store, runs
from bongsu.store.core.query import same
from tests.support.plans import generic_plan
from tests.support.rows import NOW, Sql, add_many

FINISHED = 5_000


async def test_runs_are_found_by_their_indexes(store: Store) -> None:
    async with store.transaction() as tx:
        job = Sql("'job-' || CAST(number % 20 AS text)")
        await add_many(tx, "runs", FINISHED, job=job, finished_at=NOW)
        await add_many(tx, "runs", 3, job=Sql("'open-' || CAST(number AS text)"))
    async with store.transaction() as tx:
        await tx.execute(same("ANALYZE")())
    for statement, index in (
        (runs.FIND_ABANDONED, "bongsu_runs_open"),
        (runs.FIND_OPEN, "bongsu_runs_open"),
        (runs.FIND_NEWEST, "bongsu_runs_by_job"),
        (runs.FIND_LAST_UNTIL, "bongsu_runs_by_job"),
    ):
        steps = await generic_plan(store, statement)
        assert index in steps, steps
        assert "Seq Scan" not in steps, steps
