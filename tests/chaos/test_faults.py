"""Faults of the store under a running service: nothing is lost, nothing is doubled, and it heals by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from tests.chaos.shop import Shop, opened, report, until
from tests.conftest import KEYS
from tests.simulator.running import Simulator
from tests.support.processes import KEY, bongsu, serving
from tests.support.servers import PostgresServer, start_postgres

# How long a fault lasts: longer than the shortest timeouts of the store, so that what waits runs into them. `make chaos` has
# it last longer.
FAULT_SECONDS = float(os.environ.get("CHAOS_FAULT_SECONDS", "6"))

pytestmark = pytest.mark.timeout(400)


def last(seconds: float = FAULT_SECONDS) -> None:
    threading.Event().wait(seconds)


def member_headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {Keys.load(Settings(**KEYS)).member_token('mina', timedelta(days=2))}"}


# --- a locked table ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(settings: Settings) -> Iterator[None]:
    """The inbox table (PostgreSQL) or the file (SQLite) is locked by somebody else."""
    if settings.is_embedded:
        rival = sqlite3.connect(settings.data_dir / "bongsu.db", isolation_level=None)
        rival.execute("BEGIN IMMEDIATE")
        yield
        rival.execute("COMMIT")
        rival.close()
        return
    with psycopg.connect(settings.database_url) as operator:
        operator.execute("LOCK TABLE bongsu_notifications IN ACCESS EXCLUSIVE MODE")
        yield


def test_a_locked_table_stops_only_what_needs_it(migrated: dict[str, str], settings: Settings, simulator: Simulator) -> None:
    with opened(migrated, simulator) as shop:
        with ThreadPoolExecutor(24) as pool:
            with locked(settings):
                calls = [pool.submit(_read_all, shop.served.address) for _ in range(24)]
                if not settings.is_embedded:
                    # Ingestion has connections of its own and does not need the locked table.
                    until(lambda: shop.notify().status_code == 202, "an event accepted beside the lock")
                last()
            began = time.monotonic()
            answers = [call.result() for call in calls]
        # Refused with a problem that says to come back, or served once the lock was gone; never a fault of ours.
        assert set(answers) <= {200, 204, 503}, answers
        report("locked table: member calls answered", seconds=round(time.monotonic() - began, 2))
        shop.notify()
        shop.heal(f"locked table for {FAULT_SECONDS:g} s, {'SQLite' if settings.is_embedded else 'PostgreSQL'}", began)
        shop.assert_each_once()
        _assert_no_traceback(shop)


def _read_all(address: str) -> int:
    return httpx.post(f"{address}/api/notifications/read-all", headers=member_headers(), timeout=60).status_code


def _assert_no_traceback(shop: Shop) -> None:
    assert shop.served.terminate() == 0
    shop.served.wait_for("stopped")
    crashed = [line for line in shop.served.lines if "exception" in line]
    assert crashed == []


# --- a full disk ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    filler = disk / "filler"
    with filler.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(65_536))
            file.flush()
    yield
    filler.unlink()


def test_a_full_disk_under_sqlite_loses_nothing_that_was_accepted(small_disk: Path, simulator: Simulator) -> None:
    environment = {"BONGSU_DATA_DIR": str(small_disk / "data"), "BONGSU_POLL_SECONDS": "0.05", **_keys()}
    with opened(environment, simulator) as shop:
        with full(small_disk):
            until(lambda: shop.notify().status_code == 503, "an event refused")
            last()
        ended = time.monotonic()
        until(lambda: shop.notify().status_code == 202, "an event accepted again")
        shop.heal(f"full disk for {FAULT_SECONDS:g} s, SQLite", ended)
        shop.assert_each_once()
        _assert_no_traceback(shop)


def test_a_full_disk_under_postgresql_loses_nothing_that_was_accepted(
    small_disk: Path, postgres: PostgresServer, simulator: Simulator
) -> None:
    with on_small_disk(postgres, small_disk) as url:
        environment = {"BONGSU_DATABASE_URL": url, "BONGSU_POLL_SECONDS": "0.05", **_keys()}
        assert bongsu("migrate", environment=environment).returncode == 0
        with opened(environment, simulator) as shop:
            with full(small_disk):
                # Small rows find room on pages that are there already: large ones do not.
                until(lambda: shop.notify(data={"filler": os.urandom(20_000).hex()}).status_code == 503, "an event refused")
                last()
            ended = time.monotonic()
            until(lambda: shop.notify().status_code == 202, "an event accepted again")
            shop.heal(f"full disk for {FAULT_SECONDS:g} s, PostgreSQL", ended)
            shop.assert_each_once()
            _assert_no_traceback(shop)


def _keys() -> dict[str, str]:
    return {f"BONGSU_{name.upper()}": value for name, value in KEYS.items()}


@contextlib.contextmanager
def on_small_disk(postgres: PostgresServer, disk: Path) -> Iterator[str]:
    """A database whose tables are on the small disk; the server's log of writes is not, so that the server itself lives."""
    with psycopg.connect(postgres.url, autocommit=True) as operator:
        [directory] = operator.execute("SELECT current_setting('data_directory')").fetchone() or [""]
        owner = Path(directory).stat()
        tables = disk / "tables"
        tables.mkdir()
        os.chown(tables, owner.st_uid, owner.st_gid)
        operator.execute(f"CREATE TABLESPACE bongsu_test_small LOCATION '{tables}'")
        operator.execute("CREATE DATABASE bongsu_test_small TABLESPACE bongsu_test_small")
        try:
            yield postgres.url.rsplit("/", 1)[0] + "/bongsu_test_small"
        finally:
            operator.execute("DROP DATABASE bongsu_test_small WITH (FORCE)")
            operator.execute("DROP TABLESPACE bongsu_test_small")


# --- a frozen server --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def frozen(server: PostgresServer) -> Iterator[None]:
    """Every process of the server is stopped: it accepts connections (the kernel does) and answers nothing."""
    with psycopg.connect(server.url) as operator:
        [directory] = operator.execute("SELECT current_setting('data_directory')").fetchone() or [""]
    leader = psutil.Process(int(Path(directory, "postmaster.pid").read_text().splitlines()[0]))
    processes = [leader, *leader.children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def test_told_to_stop_while_postgresql_is_frozen_it_ends_in_time(tmp_path: Path, simulator: Simulator) -> None:
    server = start_postgres()
    try:
        environment = {"BONGSU_DATABASE_URL": server.create_database(), "BONGSU_POLL_SECONDS": "0.05", **_keys()}
        assert bongsu("migrate", environment=environment).returncode == 0
        with opened(environment, simulator) as shop, frozen(server):
            with ThreadPoolExecutor(4) as pool:
                # Requests under way too, which wait for the store.
                calls = [pool.submit(_try_to_notify, shop.served.address) for _ in range(4)]
                last(1)
                began = time.monotonic()
                shop.served.process.send_signal(signal.SIGTERM)
                # Orchestrators kill after 30 s.
                assert shop.served.process.wait(25) == 0
                report("frozen PostgreSQL at SIGTERM", seconds=round(time.monotonic() - began, 2))
                for call in calls:
                    call.result()
            shop.served.wait_for("stopped")
            assert [line for line in shop.served.lines if "exception" in line] == []
    finally:
        server.stop()


def _is_done(client: httpx.Client, event_id: str) -> bool:
    return bool(client.get(f"/api/events/{event_id}").json()["status"] == "DONE")


def _try_to_notify(address: str) -> None:
    body = {"type": "ORDER", "userIds": ["mina"], "title": "t", "body": "b"}
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(f"{address}/api/notifications", json=body, headers=KEY, timeout=60)


def test_a_server_that_thaws_is_used_again(tmp_path: Path, simulator: Simulator) -> None:
    server = start_postgres()
    try:
        environment = {"BONGSU_DATABASE_URL": server.create_database(), "BONGSU_POLL_SECONDS": "0.05", **_keys()}
        assert bongsu("migrate", environment=environment).returncode == 0
        with opened(environment, simulator) as shop:
            with frozen(server):
                last()
            ended = time.monotonic()
            until(lambda: shop.notify().status_code == 202, "an event accepted again")
            shop.heal(f"frozen PostgreSQL for {FAULT_SECONDS:g} s", ended)
            shop.assert_each_once()
            _assert_no_traceback(shop)
    finally:
        server.stop()


# --- few connections, a late server -----------------------------------------------------------------------------------


def test_a_process_that_starts_before_its_server_waits_and_says_so() -> None:
    server = start_postgres()
    try:
        environment = {"BONGSU_DATABASE_URL": server.create_database(), **_keys()}
        assert bongsu("migrate", environment=environment).returncode == 0
        server.crash()
        with serving(environment, is_ready=False) as served:
            served.wait_for("waiting for the store")
            server.start()
            served.until_ready()
            with served.client(**KEY) as client:
                assert client.get("/readyz").status_code == 200
            assert served.terminate() == 0
    finally:
        server.stop()


# --- kill -9 on the embedded store ------------------------------------------------------------------------------------


def test_after_kill_9_the_embedded_store_is_taken_up_at_once(tmp_path: Path, simulator: Simulator) -> None:
    """With a lease of an hour, only a start that sees that the owner is dead can send what it had claimed."""
    environment = {
        "BONGSU_DATA_DIR": str(tmp_path),
        "BONGSU_LEASE_SECONDS": "3600",
        "BONGSU_POLL_SECONDS": "0.05",
        "BONGSU_FCM_URL": simulator.address,
        "BONGSU_FCM_PROJECT": "demo",
        **_keys(),
    }
    simulator.configure(latency={"medianMs": 5000})
    with serving(environment) as served, served.client(**KEY) as client:
        client.put("/api/members/mina/devices/phone", json={"token": "token-mina", "platform": "IOS", "pushConsent": True})
        body = {"type": "ORDER", "userIds": ["mina"], "title": "t", "body": "b", "guarantee": "at_least_once"}
        assert client.post("/api/notifications", json=body).status_code == 202
        until(lambda: client.get("/api/admin/stats").json()["deliveries"]["sending"] == 1, "on the wire")
        served.process.kill()
    simulator.configure()
    with serving(environment) as served, served.client(**KEY) as client:
        until(lambda: client.get("/api/admin/stats").json()["deliveries"]["sending"] == 0, "sent again")
        assert client.get("/api/admin/stats").json()["deliveries"] == {"ready": 0, "sending": 0, "fail": 0, "unknown": 0}
        assert [line for line in served.lines if line["event"] == "released dead claims"]


# --- wrong clocks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", ["+2h", "-2h", *(["+30s"] if "CHAOS_FAULT_SECONDS" in os.environ else [])])
def test_a_process_with_a_wrong_clock_does_everything_at_the_right_time(
    postgres_url: str, libfaketime: str, simulator: Simulator, offset: str
) -> None:
    environment = {"BONGSU_DATABASE_URL": postgres_url, "BONGSU_POLL_SECONDS": "0.05", **_keys()}
    assert bongsu("migrate", environment=environment).returncode == 0
    wrong = {**environment, "LD_PRELOAD": libfaketime, "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with opened(wrong, simulator) as shop:
        began = time.monotonic()
        shop.notify()
        shop.heal(f"clock {offset}")
        # An hour ahead by the right clock is an hour ahead.
        later = shop.notify(sendAt=(datetime.now(UTC) + timedelta(hours=1)).isoformat(), idempotencyKey="later")
        assert later.json()["sendAt"] is not None
        # And what has passed by the right clock goes at once.
        shop.notify(idempotencyKey="past", sendAt=(datetime.now(UTC) - timedelta(minutes=1)).isoformat())
        shop.sent.append(f"n-{len(shop.sent)}")
        shop.notify()
        shop.heal(f"clock {offset}")
        shop.assert_each_once()
        metric = next(
            line for line in shop.client.get("/metrics").text.splitlines() if line.startswith("bongsu_clock_skew_seconds ")
        )
        skew = float(metric.split()[1])
        assert abs(skew - {"+2h": 7200, "-2h": -7200, "+30s": 30}[offset]) < 25
        # The doctor runs by the right clock and names the process.
        named = f":{shop.served.process.pid} (api, clock, gateway, worker) runs on a machine whose clock is "
        until(lambda: named in " ".join(bongsu("doctor", environment=environment).stdout.split()), "named by the doctor")
        report(f"clock {offset}: all of it", seconds=round(time.monotonic() - began, 2))


def test_the_dedup_window_is_as_long_for_a_worker_whose_clock_is_ahead(
    postgres_url: str, libfaketime: str, simulator: Simulator
) -> None:
    environment = {"BONGSU_DATABASE_URL": postgres_url, "BONGSU_POLL_SECONDS": "0.05", **_keys()}
    assert bongsu("migrate", environment=environment).returncode == 0
    wrong = {"LD_PRELOAD": libfaketime, "FAKETIME": "+2h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    told = []
    for clock in ({}, wrong):
        with serving({**environment, **clock}) as served, served.client(**KEY) as client:
            answer = client.post(
                "/api/notifications", json={"type": "T", "userIds": ["a"], "title": "t", "body": "b", "subject": "s"}
            )
            event_id = answer.json()["eventId"]
            until(partial(_is_done, client, event_id), "decided")
            [row] = client.get("/api/admin/history", params={"eventId": event_id}).json()["items"]
            told.append(row["status"])
    assert told == ["SENT", "DUPLICATE"]
