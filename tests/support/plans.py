"""How the databases run a statement: its steps whatever the parameters are, and on PostgreSQL the rows it really reads.

That no step is a Seq Scan says little: an index can be read from end to end as well. Where an index is the point, count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from bongsu.store import Query, Statement, Store, Table, Transaction
from bongsu.store.core.query import same


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


# --- rows that are read on PostgreSQL ---------------------------------------------------------------------------------


async def keep_statistics(store: Store) -> None:
    """Analyse now and never again: of what is stored later the planner knows nothing, as in a campaign that has just begun.

    No effect on SQLite, which has no statistics.
    """
    if store.dialect.name == "sqlite":
        return
    async with store.single() as tx:
        tables = await tx.fetch(same("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'bongsu%'")())
        for table in tables:
            await tx.execute(same(f"ALTER TABLE {table['relname']} SET (autovacuum_enabled = false)")())
        await tx.execute(same("ANALYZE")())


async def rows_read(store: Store, query: Query) -> int:
    """How many rows it reads from tables and indexes, wanted or not, under the worse of the two plans that a connection may
    have for it: the one for these values, and the one for any. What it changes is rolled back."""
    return max([await _rows_read(store, query, mode) for mode in ("force_custom_plan", "force_generic_plan")])


async def rows_read_so_far(tx: Transaction, table: str) -> int:
    """Of a table, by the statements of this transaction: as PostgreSQL counts them."""
    counted = "SELECT seq_tup_read + idx_tup_fetch AS rows FROM pg_stat_xact_user_tables WHERE relname = $1"
    (row,) = await tx.fetch(same(counted)(table))
    return int(row["rows"])


class _Undo(Exception):
    pass


async def _rows_read(store: Store, query: Query, mode: str) -> int:
    literals = ", ".join(_literal(one) for one in query.parameters)
    try:
        async with store.transaction() as tx:
            await tx.execute(same(f"SET LOCAL plan_cache_mode = {mode}")())
            await tx.execute(same(f"PREPARE counted AS {query.statement.postgres}")())
            run = f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE counted{f'({literals})' if literals else ''}"
            ((plan,),) = await tx.fetch(same(run)())
            await tx.execute(same("DEALLOCATE counted")())
            raise _Undo
    except _Undo:
        (explained,) = json.loads(plan)
        return sum(_read_by(step) for step in _steps(explained["Plan"]))


def _steps(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for step in plan.get("Plans", ()):
        yield from _steps(step)


def _read_by(step: dict[str, Any]) -> int:
    """Of a step that reads a table or an index: what it gave and what it threw away, each time it ran."""
    if ("Relation Name" not in step and "Index Name" not in step) or "Scan" not in step["Node Type"]:
        return 0
    rows = step["Actual Rows"] + step.get("Rows Removed by Filter", 0) + step.get("Rows Removed by Index Recheck", 0)
    return int(rows * step["Actual Loops"])


def _literal(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool() | int() | float():
            return str(value)
        case Table():
            value = value.to_json()
    return "'" + str(value).replace("'", "''") + "'"
