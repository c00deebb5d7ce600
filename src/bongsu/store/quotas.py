"""Quotas that processes share: a bucket in a row, which fills by the store's own clock, and from which each draws."""

from __future__ import annotations

from functools import cache

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.store.databases import dialect_named
from bongsu.store.dialect import Dialect, as_text


@cache
def draw_statement(dialect: Dialect) -> str:
    """Pour in what has flown since the last draw and what is given back, up to the brim; take out what is asked for, or what
    there is. Locks the quota's row for the one statement it is."""
    asked, back, capacity, flow = (f"CAST(:{name} AS double precision)" for name in ("asked", "back", "capacity", "flow"))
    # Who has waited for the row comes with a moment before the last draw.
    since = f"{dialect.greatest}(0, {dialect.seconds_since('q.at')})"
    available = f"{dialect.least}({capacity}, q.tokens + {back} + {flow} * {since})"
    granted = f"{dialect.least}({asked}, {available})"
    first = f"{dialect.least}({asked}, {capacity})"
    return f"""
        INSERT INTO bongsu_quotas AS q (name, tokens, granted, at)
        VALUES (:name, {capacity} - {first}, {first}, {dialect.now})
        ON CONFLICT (name) DO UPDATE
        SET tokens = {available} - {granted}, granted = {granted}, at = {dialect.greatest}(q.at, {dialect.now})
        RETURNING granted"""


async def draw(tx: AsyncConnection, name: str, asked: float, back: float, capacity: float, flow: float) -> float:
    """How many of those asked for may be used: all, some or none, and not always a whole number.

    Until this moment so many at most were ever granted and not given back: `capacity`, and `flow` for every second.
    """
    dialect = dialect_named(tx.dialect.name)
    values = {"name": name, "asked": asked, "back": back, "capacity": capacity, "flow": flow}
    drawn = await tx.execute(as_text(draw_statement(dialect)), values)
    return float(drawn.scalar_one())
