"""Two processes that send, and a store that is away for longer than a lease; and a stop while mails wait for a slow server.

Short faults here; `make chaos` has longer ones.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import psycopg
import pytest

from bongsu.settings import Settings
from tests.chaos.shop import report, until
from tests.chaos.test_faults import FAULT_SECONDS, _keys, frozen, last
from tests.simulator.running import Simulator
from tests.support.processes import KEY, bongsu, serving
from tests.support.providers.scripted import Scripted
from tests.support.read_only_store import read_only
from tests.support.servers import start_postgres

pytestmark = pytest.mark.timeout(400)

MEMBERS = [f"m{number:03}" for number in range(40)]
GUARANTEES = ("at_most_once", "at_least_once")
# How many notices of each guarantee go to each of the two processes.
ROUNDS = 3
TOTAL = 2 * ROUNDS * len(GUARANTEES) * len(MEMBERS)
# So many are on the wire when the fault begins, at least.
SOME = TOTAL // 8
# The shortest lease there is: twice the send timeout and the pause between polls. The timeout is long enough for an answer
# on a busy machine: one that comes too late is UNKNOWN by right.
SHORT_LEASE = {"BONGSU_SEND_TIMEOUT_SECONDS": "4", "BONGSU_LEASE_SECONDS": "8.1", "BONGSU_POLL_SECONDS": "0.05"}
# Longer than a lease.
AWAY_SECONDS = 8.1 + (FAULT_SECONDS if "CHAOS_FAULT_SECONDS" in os.environ else 2)


def deliveries(settings: Settings) -> Counter[tuple[str, str | None]]:
    """How many have which status and code. The table is read directly: a fault must not stand between."""
    query = "SELECT status, code FROM bongsu_deliveries"
    if settings.is_embedded:
        with contextlib.closing(sqlite3.connect(settings.data_dir / "bongsu.db")) as store:
            return Counter(store.execute(query).fetchall())
    with psycopg.connect(settings.database_url) as connection:
        return Counter(connection.execute(query).fetchall())


def are_all_done(settings: Settings, total: int) -> bool:
    """All are decided, and none is left to send."""
    counts = deliveries(settings)
    return counts.total() == total and {status for status, _ in counts}.isdisjoint({"READY", "SENDING"})


def accepted(simulator: Simulator) -> Counter[int]:
    """How many messages were accepted how often."""
    return Counter(one["accepted"] for one in simulator.ledger()["messages"])


@contextlib.contextmanager
def two_workers(environment: Mapping[str, str], simulator: Simulator) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    environment = {**environment, **SHORT_LEASE, "BONGSU_FCM_URL": simulator.address, "BONGSU_FCM_PROJECT": "demo"}
    with (
        serving(environment) as first,
        serving(environment) as second,
        first.client(**KEY) as ours,
        second.client(**KEY) as theirs,
    ):
        for member in MEMBERS:
            device = {"token": f"token-{member}", "platform": "ANDROID", "pushConsent": True}
            assert ours.put(f"/api/members/{member}/devices/phone", json=device).status_code == 200
        yield ours, theirs


def notify_all(*clients: httpx.Client) -> None:
    for number in range(ROUNDS):
        for client in clients:
            for guarantee in GUARANTEES:
                notify(client, f"{guarantee} {number} {client.base_url}", ["PUSH"], guarantee=guarantee)


def notify(client: httpx.Client, title: str, channels: list[str], **more: Any) -> None:
    body = {"type": "NEWS", "userIds": MEMBERS, "title": title, "body": "b", "channels": channels, "idempotencyKey": title,
            "critical": True, **more}  # fmt: skip
    assert client.post("/api/notifications", json=body).status_code == 202


def test_two_workers_forget_no_outcome_while_the_store_is_read_only(
    migrated: dict[str, str], settings: Settings, simulator: Simulator
) -> None:
    with two_workers(migrated, simulator) as clients:
        # The answers come when the store is read-only already.
        simulator.configure(latency={"medianMs": 600})
        notify_all(*clients)
        until(lambda: deliveries(settings)["SENDING", None] >= SOME, "some being sent")
        with read_only(settings):
            last(AWAY_SECONDS)
        ended = time.monotonic()
        until(lambda: are_all_done(settings, TOTAL), "all recorded")
        report("read-only store, two workers, recorded", seconds=round(time.monotonic() - ended, 2))
        assert deliveries(settings) == {("SUCCESS", None): TOTAL}
        assert accepted(simulator) == {1: TOTAL}


def test_two_workers_forget_no_outcome_while_postgresql_is_frozen(simulator: Simulator) -> None:
    server = start_postgres()
    try:
        settings = Settings(database_url=server.create_database())
        environment = {"BONGSU_DATABASE_URL": settings.database_url, **_keys()}
        assert bongsu("migrate", environment=environment).returncode == 0
        with two_workers(environment, simulator) as clients:
            simulator.configure(latency={"medianMs": 600})
            notify_all(*clients)
            until(lambda: deliveries(settings)["SENDING", None] >= SOME, "some being sent")
            with frozen(server):
                last(AWAY_SECONDS)
            ended = time.monotonic()
            until(lambda: are_all_done(settings, TOTAL), "all recorded")
            report("frozen PostgreSQL, two workers, recorded", seconds=round(time.monotonic() - ended, 2))
            assert deliveries(settings) == {("SUCCESS", None): TOTAL}
            assert accepted(simulator) == {1: TOTAL}
    finally:
        server.stop()


# --- SIGTERM ----------------------------------------------------------------------------------------------------------

# More than the connections to the server can send while a stop waits.
MAILS_EACH = 3


def test_a_stop_loses_no_mail_that_waits_for_a_slow_server(migrated: dict[str, str], settings: Settings) -> None:
    with Scripted("smtp_server.py") as mail_server:
        environment = {
            **migrated,
            "BONGSU_SMTP_URL": f"smtp://127.0.0.1:{mail_server.port}",
            "BONGSU_EMAIL_FROM": "shop@example.org",
            "BONGSU_SEND_TIMEOUT_SECONDS": "2",
        }
        with serving(environment) as served, served.client(**KEY) as client:
            for member in MEMBERS:
                assert client.put(f"/api/members/{member}", json={"email": f"slow-{member}@example.org"}).status_code == 200
            for number in range(MAILS_EACH):
                notify(client, f"mail {number}", ["EMAIL"])
            until(lambda: bool(mail_server.ledger()), "mails being sent")
            assert served.terminate() == 0
        stopped = deliveries(settings)
        assert {status for status, _ in stopped} <= {"SUCCESS", "READY"}
        assert stopped["SUCCESS", None] == len(mail_server.ledger())
        assert stopped["SUCCESS", None] < MAILS_EACH * len(MEMBERS), "all were sent before the stop"
        with serving(environment):
            until(lambda: are_all_done(settings, MAILS_EACH * len(MEMBERS)), "the others sent")
        assert deliveries(settings) == {("SUCCESS", None): MAILS_EACH * len(MEMBERS)}
        assert Counter(to for row in mail_server.ledger() for to in row["to"]) == {
            f"slow-{member}@example.org": MAILS_EACH for member in MEMBERS
        }
