"""How the databases run a statement, whatever its parameters are."""

from __future__ import annotations

import re

from bongsu.store import Statement, Store
from bongsu.store.query import same


async def generic_plan(store: Store, statement: Statement) -> str:
    """The steps, one per line. On PostgreSQL the plan that connections for work keep for all values of the parameters."""
    if store.dialect.name == "sqlite":
        explained = same(f"EXPLAIN QUERY PLAN {statement.sqlite}")
        async with store.read() as tx:
            rows = await tx.fetch(explained(*[None] * _count_parameters(statement.sqlite)))
        return "\n".join(row["detail"] for row in rows)
    async with store.transaction() as tx:
        nulls = ", ".join(["NULL"] * _count_parameters(statement.postgres))
        await tx.execute(same(f"PREPARE explained AS {statement.postgres}")())
        rows = await tx.fetch(same(f"EXPLAIN EXECUTE explained{f'({nulls})' if nulls else ''}")())
        await tx.execute(same("DEALLOCATE explained")())
    return "\n".join(row["QUERY PLAN"] for row in rows)


def _count_parameters(text: str) -> int:
    return max((int(number) for number in re.findall(r"\$(\d+)", text)), default=0)
