"""A deadlock on purpose. Whoever provokes one says so to the server first, or the run fails: `expect_deadlocks`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg


def provoke(url: str) -> None:
    """Two transactions that lock two rows, each in an order of its own; one of them is the victim."""
    with psycopg.connect(url) as one, psycopg.connect(url) as other, ThreadPoolExecutor(2) as pool:
        one.execute("CREATE TABLE pair (name text PRIMARY KEY, count integer)")
        one.execute("INSERT INTO pair VALUES ('left', 0), ('right', 0)")
        one.commit()
        orders = {one: ("left", "right"), other: ("right", "left")}
        for connection, (first, _) in orders.items():
            connection.execute("SET LOCAL deadlock_timeout = '20ms'")
            connection.execute("UPDATE pair SET count = count + 1 WHERE name = %s", [first])
        calls = [
            pool.submit(connection.execute, "UPDATE pair SET count = count + 1 WHERE name = %s", [second])
            for connection, (_, second) in orders.items()
        ]
        assert [type(call.exception()) for call in calls].count(psycopg.errors.DeadlockDetected) == 1
