"""Claims that a dead process left on the embedded store.

A claim is held until its lease ends, because a server cannot know whether a process on another machine still runs. An
embedded store is a file of this machine: while the service runs it holds a shared lock beside the file. A start that can
have that lock alone is the only process there is, so every open claim is a dead one's, and need not wait for its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from bongsu.store.core.query import in_both
from bongsu.store.core.sqlite import SqliteDatabase
from bongsu.store.core.store import Store

# End every lease now, and clear the owner of deliveries. Epoch and claims stay: the claims did end without a result. Locks
# those rows.
_END_EVENT_LEASES = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_events SET due = {d.now}
    WHERE status = 'PENDING' AND leased_by IS NOT NULL AND due > {d.now}"""
    )
)
_END_DELIVERY_LEASES = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_deliveries SET due = CASE WHEN due > {d.now} THEN {d.now} ELSE due END, leased_by = NULL
    WHERE status IN ('READY', 'SENDING') AND leased_by IS NOT NULL"""
    )
)
_END_RUN_LEASES = in_both(lambda d: f"UPDATE bongsu_runs SET due = {d.now} WHERE finished_at IS NULL AND due > {d.now}")


@contextlib.asynccontextmanager
async def release_dead_claims(store: Store) -> AsyncIterator[int]:
    """Mark an embedded store as in use by this process; yield how many claims of dead processes were released before.

    Enter it before anything is claimed.
    """
    if not isinstance(store.database, SqliteDatabase):
        yield 0
        return
    with Path(f"{store.database.path}-in-use").open("ab") as file:  # noqa: ASYNC230 (one small file at the start)
        # Under the exclusive lock no other process begins to claim meanwhile: it waits for its shared one.
        released = await _release_all(store) if _is_alone(file) else 0
        await asyncio.to_thread(fcntl.flock, file, fcntl.LOCK_SH)
        yield released


def _is_alone(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


async def _release_all(store: Store) -> int:
    async with store.transaction() as tx:
        return sum(await tx.execute(_END_EVENT_LEASES(), _END_DELIVERY_LEASES(), _END_RUN_LEASES()))
