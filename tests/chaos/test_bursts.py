"""Much at once under a running service: a confirmation passes a burst of likes, and large payloads due together."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from bongsu.decide.worker import MOST_LARGE
from bongsu.settings import Settings
from tests.chaos.shop import opened, report, until
from tests.simulator.running import Simulator

pytestmark = pytest.mark.timeout(400)

# `make chaos` has as many as it took to see confirmations wait for a minute.
IS_LONG = "CHAOS_FAULT_SECONDS" in os.environ
LIKES = 60_000 if IS_LONG else 3_000
SENDS, RECIPIENTS = (200, 100_000) if IS_LONG else (8, 20_000)


@contextlib.contextmanager
def connected(settings: Settings) -> Iterator[Any]:
    """The store by plain SQL, as a caller's own transaction writes it."""
    if settings.is_embedded:
        with contextlib.closing(sqlite3.connect(settings.data_dir / "bongsu.db", timeout=60)) as connection, connection:
            yield connection
        return
    with psycopg.connect(settings.database_url) as server:
        yield server


def publish(settings: Settings, rows: Sequence[tuple[str, str, str, dict[str, Any]]]) -> None:
    """Type, target, ref and payload of each."""
    text = "INSERT INTO bongsu_events (event_type, target_id, ref_id, payload) VALUES (%s, %s, %s, %s)"
    values = [(*row[:3], json.dumps(row[3])) for row in rows]
    with connected(settings) as connection:
        connection.cursor().executemany(text.replace("%s", "?") if settings.is_embedded else text, values)


def fetch(settings: Settings, query: str) -> list[Any]:
    with connected(settings) as connection:
        return list(connection.execute(query).fetchall())


def test_a_confirmation_passes_a_burst_of_likes(migrated: dict[str, str], settings: Settings, simulator: Simulator) -> None:
    kind = "SQLite" if settings.is_embedded else "PostgreSQL"
    publish(settings, [("post.liked", f"m{number % 500}", str(number), {}) for number in range(LIKES)])
    publish(settings, [("reservation.confirmed", "mina", "r1", {})])
    with opened(migrated, simulator) as shop:
        for _ in range(5):
            began = time.monotonic()
            assert shop.notify().status_code == 202
            accepted = time.monotonic() - began
            until(lambda: shop.sent[-1] in shop.pushed(), "pushed")
            pushed = time.monotonic() - began
            pending = shop.client.get("/api/admin/stats").json()["events"]["pending"]
            report(f"{LIKES} likes, {kind}", accepted=round(accepted, 3), pushed=round(pushed, 3), pending=pending)
        shop.heal(f"{LIKES} likes before a confirmation, {kind}")
        until(lambda: fetch(settings, "SELECT 1 FROM bongsu_events WHERE status = 'PENDING' LIMIT 1") == [], "all decided")
    # It was written after all of the likes, and decided before the first.
    order = (
        "SELECT n.notification_id, m.type FROM bongsu_notifications n JOIN bongsu_messages m USING (message_id) ORDER BY 1"
    )
    types = [name for _, name in fetch(settings, order) if name in ("POST_LIKE", "RESERVATION_CONFIRMED")]
    assert types[0] == "RESERVATION_CONFIRMED"
    assert types.count("POST_LIKE") + len(fetch(settings, "SELECT 1 FROM bongsu_suppressions")) == LIKES


def test_large_payloads_due_together_are_taken_a_few_at_a_time(
    migrated: dict[str, str], settings: Settings, simulator: Simulator
) -> None:
    """The service is ended before all are decided; the confirmations meanwhile are pushed once."""
    kind = "SQLite" if settings.is_embedded else "PostgreSQL"
    members = [f"member-{number:06}" for number in range(RECIPIENTS)]
    send = {"type": "SALE", "userIds": members, "title": "t", "body": "b", "channels": ["IN_APP"]}
    for _ in range(SENDS):
        publish(settings, [("bongsu.notification", "", "", send)])
    held = "SELECT count(*) FROM bongsu_events WHERE status = 'PENDING' AND leased_by IS NOT NULL AND is_large"
    with opened(migrated, simulator) as shop:
        slowest, most = 0.0, 0
        for _ in range(10):
            began = time.monotonic()
            assert shop.notify().status_code == 202
            until(lambda: shop.sent[-1] in shop.pushed(), "pushed")
            pushed = time.monotonic() - began
            began = time.monotonic()
            assert httpx.get(f"{shop.served.address}/healthz", timeout=60).status_code == 200
            slowest = max(slowest, time.monotonic() - began)
            most = max(most, fetch(settings, held)[0][0])
            report(f"{SENDS} sends to {RECIPIENTS}, {kind}", pushed=round(pushed, 3))
        assert most <= MOST_LARGE
        memory = psutil.Process(shop.served.process.pid).memory_info().rss >> 20
        report(f"{SENDS} sends to {RECIPIENTS}, {kind}", healthz=round(slowest, 3), megabytes=memory)
        shop.heal(f"{SENDS} sends to {RECIPIENTS} members due together, {kind}")
        shop.assert_each_once()
