"""Claims of processes that died on this machine.

A claim is held until its lease ends, because nobody can know whether a process on another machine still lives. On the
embedded store all processes are on this machine, so a start can see which owners are dead and need not wait for them.
"""

from __future__ import annotations

import os
import socket

from bongsu.store.query import Transaction, in_both, same

# Every owner of an open claim, each once. Locks nothing.
_FIND_OWNERS = same("""
    SELECT leased_by AS owner FROM bongsu_events WHERE status = 'PENDING' AND leased_by IS NOT NULL
    UNION
    SELECT leased_by AS owner FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING') AND leased_by IS NOT NULL""")

# End the leases of one owner ($1) now. Epoch and claims stay: the claim did end without an outcome. Locks those rows.
_END_EVENT_LEASES = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_events SET due = {d.now}
    WHERE status = 'PENDING' AND leased_by = $1 AND due > {d.now}"""
    )
)
_END_DELIVERY_LEASES = in_both(
    lambda d: (
        f"""
    UPDATE bongsu_deliveries SET due = {d.now}
    WHERE status IN ('READY', 'SENDING') AND leased_by = $1 AND due > {d.now}"""
    )
)


async def release_dead_owners(tx: Transaction) -> int:
    """End the leases of dead processes of this machine, before this process claims anything; return how many claims."""
    released = 0
    for row in await tx.fetch(_FIND_OWNERS()):
        if is_dead(row["owner"]):
            released += sum(await tx.execute(_END_EVENT_LEASES(row["owner"]), _END_DELIVERY_LEASES(row["owner"])))
    return released


def is_dead(owner: str) -> bool:
    """Whether an owner (`host:pid`) surely is. Its pid may be another process's by now: then its leases just run out."""
    host, _, pid = owner.rpartition(":")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    if int(pid) == os.getpid():
        return True  # a container's first process has the same id after each restart
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
