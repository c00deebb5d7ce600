"""How many deliveries wait, are on the wire, or are dead: those that an index holds. The sent ones are not counted."""

from __future__ import annotations

from functools import cache

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.store.databases import dialect_named
from bongsu.store.dialect import Dialect, as_text


@cache
def count_statements(dialect: Dialect) -> tuple[str, ...]:
    counted = (("bongsu_deliveries_due", "'READY', 'SENDING'"), ("bongsu_deliveries_dead", "'FAIL', 'UNKNOWN'"))
    return tuple(
        f"""
        SELECT status, count(*) FROM bongsu_deliveries {dialect.by_index(index)}
        WHERE status IN ({statuses}) GROUP BY status"""
        for index, statuses in counted
    )


async def count_deliveries(connection: AsyncConnection) -> dict[str, int]:
    counts = dict.fromkeys(("READY", "SENDING", "FAIL", "UNKNOWN"), 0)
    for statement in count_statements(dialect_named(connection.dialect.name)):
        counts |= {status: int(count) for status, count in await connection.execute(as_text(statement))}
    return counts
