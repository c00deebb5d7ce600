"""A program that inserts an order, publishes an event and commits. It stops where it is told to, for the test to end it.

Run as: python -m tests.ingress.caller <database> <where> <ref> <event id> <before-commit | after-commit>
"""

from __future__ import annotations

import sqlite3
import sys

import psycopg

from bongsu import Event, Published, publish


def main(database: str, where: str, ref: str, event_id: str, stop: str) -> None:
    event = Event.model_validate({"event_type": "order.paid", "event_id": event_id, "ref_id": ref})
    connection: sqlite3.Connection | psycopg.Connection
    published: Published
    if database == "sqlite":
        connection, backend = sqlite3.connect(where), 0
        connection.execute("INSERT INTO orders VALUES (?)", [ref])
    else:
        connection = psycopg.connect(where)
        backend = connection.info.backend_pid
        connection.execute("INSERT INTO orders VALUES (%s)", [ref])
    published = publish(connection, event)
    assert published.accepted == (event.event_id,)
    if stop == "before-commit":
        wait_here(stop, backend)
    connection.commit()
    wait_here(stop, backend)


def wait_here(name: str, backend: int) -> None:
    """Until we are killed; or until the test's end of the pipe is gone, so that we never outlive it."""
    print(name, backend, flush=True)
    sys.stdin.read()
    sys.exit("nobody killed me")


if __name__ == "__main__":
    main(*sys.argv[1:])
