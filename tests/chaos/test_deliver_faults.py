"""Faults around sending under a running service: known outcomes are recorded, nothing is sent twice, others go on."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from bongsu.settings import Settings
from tests.chaos.shop import Shop, opened, report, until
from tests.chaos.test_faults import FAULT_SECONDS, last
from tests.simulator.account import write_account
from tests.simulator.running import Simulator
from tests.support.read_only_store import read_only

pytestmark = pytest.mark.timeout(400)

MEMBERS = [f"m{number:03}" for number in range(100)]
GUARANTEES = ("at_most_once", "at_least_once")
# Twice the send timeout and the pause between polls is the shortest lease there is.
LEASE_SECONDS = 8.0
SHORT_LEASE = {"BONGSU_SEND_TIMEOUT_SECONDS": "3.9", "BONGSU_LEASE_SECONDS": str(LEASE_SECONDS)}


def add_devices(shop: Shop, platform: str = "ANDROID") -> None:
    for member in MEMBERS:
        device = {"token": f"token-{member}", "platform": platform, "pushConsent": True}
        assert shop.client.put(f"/api/members/{member}/devices/phone", json=device).status_code == 200


def notify(shop: Shop, title: str, members: list[str], **more: str) -> None:
    body = {"type": "NEWS", "userIds": members, "title": title, "body": "b", "channels": ["PUSH"], "idempotencyKey": title,
            "critical": True, **more}  # fmt: skip
    assert shop.client.post("/api/notifications", json=body).status_code == 202


def ends(settings: Settings) -> Counter[tuple[str, str | None]]:
    """How many deliveries have which status and code. The table is read directly: a fault must not stand between."""
    query = "SELECT status, code FROM bongsu_deliveries WHERE member_id <> 'mina'"
    if settings.is_embedded:
        store = sqlite3.connect(settings.data_dir / "bongsu.db")
        found = store.execute(query).fetchall()
        store.close()
        return Counter(found)
    with psycopg.connect(settings.database_url) as connection:
        return Counter(connection.execute(query).fetchall())


def accepted(shop: Shop) -> Counter[int]:
    """How many messages to the members were accepted how often."""
    messages = shop.simulator.ledger()["messages"]
    return Counter(one["accepted"] for one in messages if one["token"] != "token-mina")


# --- a store that takes no writes for longer than a lease -------------------------------------------------------------


def test_known_outcomes_survive_read_only(migrated: dict[str, str], settings: Settings, simulator: Simulator) -> None:
    with opened({**migrated, **SHORT_LEASE}, simulator) as shop:
        add_devices(shop)
        # The answers come when the store is read-only already.
        simulator.configure(latency={"medianMs": 1500})
        for guarantee in GUARANTEES:
            notify(shop, guarantee, MEMBERS, guarantee=guarantee)
        until(lambda: ends(settings)["SENDING", None] == 2 * len(MEMBERS), "all being sent")
        with read_only(settings):
            last(LEASE_SECONDS + FAULT_SECONDS)
        ended = time.monotonic()
        until(lambda: {status for status, _ in ends(settings)}.isdisjoint({"READY", "SENDING"}), "all recorded")
        assert ends(settings) == {("SUCCESS", None): 2 * len(MEMBERS)}
        report("read-only store, recorded", seconds=round(time.monotonic() - ended, 2))
        simulator.configure()
        shop.notify()
        shop.heal(f"read-only store for longer than a lease, {'SQLite' if settings.is_embedded else 'PostgreSQL'}", ended)
        assert accepted(shop) == {1: 2 * len(MEMBERS)}


# --- OAuth ------------------------------------------------------------------------------------------------------------


def test_pushes_go_again_soon_after_an_outage_of_oauth(
    migrated: dict[str, str], simulator: Simulator, tmp_path: Path
) -> None:
    oauth = {"required": True, "seconds": 4}
    account = write_account(tmp_path, f"{simulator.address}/token")
    simulator.configure(oauth=oauth)
    with opened({**migrated, "BONGSU_FCM_CREDENTIALS": account}, simulator) as shop:
        simulator.configure(oauth={**oauth, "fault": "unavailable"})
        until(lambda: shop.notify().status_code == 202, "an event accepted")
        last()
        for _ in range(10):
            shop.notify()
        last()
        # The first answers after it are ordinary failures: they too prove that we were let in.
        simulator.configure(oauth=oauth, faults={"unavailable": 0.3})
        shop.heal(f"OAuth unavailable for {2 * FAULT_SECONDS:g} s")
        shop.assert_each_once()
    assert "HTTP_401" not in simulator.stats()["answers"], "an access token that had ended was used"


# --- one bad device among many ----------------------------------------------------------------------------------------


def test_one_misconfigured_device_stops_no_other(migrated: dict[str, str], settings: Settings, simulator: Simulator) -> None:
    with opened(migrated, simulator) as shop:
        add_devices(shop, "IOS")
        bad = {"token": "third-party-1", "platform": "IOS", "pushConsent": True}
        assert shop.client.put("/api/members/bad/devices/phone", json=bad).status_code == 200
        began = time.monotonic()
        for number, member in enumerate(MEMBERS[:20]):
            notify(shop, f"bad {number}", ["bad"])
            notify(shop, f"one {number}", [member])
        notify(shop, "all", [*MEMBERS, "bad"])
        until(lambda: ends(settings)["SUCCESS", None] == 20 + len(MEMBERS), "all others pushed")
        report("one misconfigured device: all others pushed", seconds=round(time.monotonic() - began, 2))
        until(lambda: ends(settings)["FAIL", "THIRD_PARTY_AUTH_ERROR"] == 21, "the bad ones failed")
        assert accepted(shop)[1] == 20 + len(MEMBERS)
