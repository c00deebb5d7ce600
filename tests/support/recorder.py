"""A transaction that only remembers its queries, so that a test can look at how the database plans them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bongsu.store import Query, Row, Statement, Transaction
from bongsu.store.core.query import Dialect, same


class Recorder:
    """Runs nothing and finds nothing."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.queries: list[Query] = []

    async def fetch(self, *queries: Query) -> Sequence[Row]:
        self.queries += queries
        return []

    async def execute(self, *queries: Query) -> list[int]:
        self.queries += queries
        return [0] * len(queries)


async def sqlite_plan(tx: Transaction, query: Query) -> list[str]:
    """The steps of SQLite's plan."""
    explain = Statement(postgres="", sqlite=f"EXPLAIN QUERY PLAN {query.statement.sqlite}")
    return [row["detail"] for row in await tx.fetch(explain(*query.parameters))]


async def postgres_plans(tx: Transaction, query: Query) -> list[str]:
    """PostgreSQL's plan for these parameters, and its plan for any parameters. Only texts and numbers can be explained."""
    values = ", ".join(_literal(one) for one in query.parameters)
    await tx.execute(same(f"PREPARE explained AS {query.statement.postgres}")())
    plans = []
    for mode in ("force_custom_plan", "force_generic_plan"):
        await tx.execute(same(f"SET LOCAL plan_cache_mode = {mode}")())
        rows = await tx.fetch(same(f"EXPLAIN EXECUTE explained ({values})")())
        plans.append("\n".join(row["QUERY PLAN"] for row in rows))
    await tx.execute(same("DEALLOCATE explained")())
    return plans


def _literal(value: Any) -> str:
    assert isinstance(value, str | int)
    return repr(value)
