"""The processes that use this store: each keeps a row with its roles and its clock's skew while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bongsu.store.core.query import Transaction, in_both, same


@dataclass(frozen=True)
class Process:
    """One process. `name` is `host:pid`, `skew_seconds` is by how much its clock is ahead of the store's."""

    name: str
    roles: tuple[str, ...]
    skew_seconds: float


# Insert or replace the process's row, seen now. Locks that row. $1 name, $2 roles, comma separated, $3 skew.
_PUT = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_processes (name, roles, skew_seconds, seen_at) VALUES ($1, $2, $3, {d.now})
    ON CONFLICT (name) DO UPDATE
    SET roles = excluded.roles, skew_seconds = excluded.skew_seconds, seen_at = excluded.seen_at"""
    )
)
# Delete the process's row. Locks that row. $1 name.
_REMOVE = same("DELETE FROM bongsu_processes WHERE name = $1")
# Delete the rows that were not seen for so long. Locks them and skips locked ones, so it never waits while the transaction
# holds its own process's row. $1 seconds.
_REMOVE_UNSEEN = in_both(
    lambda d: (
        f"""
    DELETE FROM bongsu_processes WHERE name IN (
        SELECT name FROM bongsu_processes WHERE {d.seconds_since("seen_at")} > $1 {d.skip_locked})"""
    )
)
# The processes that were seen within that time, the largest skew first. Locks nothing. $1 seconds.
_FIND_SEEN = in_both(
    lambda d: (
        f"""
    SELECT name, roles, skew_seconds FROM bongsu_processes WHERE {d.seconds_since("seen_at")} <= $1
    ORDER BY abs(skew_seconds) DESC, name"""
    )
)


async def put_process(tx: Transaction, name: str, roles: Iterable[str], skew_seconds: float) -> None:
    """Record that the process runs, and its skew."""
    await tx.execute(_PUT(name, ",".join(sorted(roles)), skew_seconds))


async def remove_process(tx: Transaction, name: str) -> None:
    """The process stops. It may have no row."""
    await tx.execute(_REMOVE(name))


async def remove_unseen(tx: Transaction, seconds: float) -> int:
    """Remove processes that ended without removing their row; return how many."""
    (removed,) = await tx.execute(_REMOVE_UNSEEN(seconds))
    return removed


async def find_seen(tx: Transaction, seconds: float) -> list[Process]:
    """The processes that were seen within that time, the largest skew first."""
    rows = await tx.fetch(_FIND_SEEN(seconds))
    return [Process(row["name"], tuple(row["roles"].split(",")), row["skew_seconds"]) for row in rows]
