"""Two processes on PostgreSQL and Redis under load, one of them killed: nothing is lost, nothing at_most_once is doubled.

The server's log is searched for deadlocks at the end of the run, as after every run of the tests.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from datetime import timedelta
from functools import partial

import httpx
import pytest

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from tests.chaos.shop import Page, until
from tests.chaos.test_two_workers import GUARANTEES, SHORT_LEASE, are_all_done, deliveries
from tests.simulator.running import Simulator
from tests.support.processes import KEY, Served, serving
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.timeout(600), pytest.mark.parametrize("settings", ["postgresql"], indirect=True)]

IS_LONG = "CHAOS_FAULT_SECONDS" in os.environ
MEMBERS = [f"m{number:04}" for number in range(500 if IS_LONG else 40)]
# Notices of each guarantee, each to all members.
NOTICES = 60 if IS_LONG else 10


class Callers:
    """They post notices to the processes by turns. A call that a killed process did not answer is repeated at the other."""

    def __init__(self, processes: list[Served]) -> None:
        self.processes = processes
        self.titles: list[str] = []
        self._thread = threading.Thread(target=self._post_all, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _post_all(self) -> None:
        for number in range(NOTICES):
            for guarantee in GUARANTEES:
                title = f"{guarantee} {number}"
                body = {"type": "NEWS", "userIds": MEMBERS, "title": title, "body": "b", "channels": ["PUSH", "IN_APP"],
                        "idempotencyKey": title, "critical": True, "guarantee": guarantee}  # fmt: skip
                until(partial(self._is_accepted, number, body), f"accepted: {title}")
                self.titles.append(title)

    def _is_accepted(self, turn: int, body: dict[str, object]) -> bool:
        process = self.processes[turn % len(self.processes)]
        try:
            return httpx.post(f"{process.address}/api/notifications", json=body, headers=KEY, timeout=10).status_code == 202
        except httpx.HTTPError:
            return False


def test_a_process_killed_under_load_loses_nothing(
    migrated: dict[str, str], settings: Settings, redis_server: RedisServer, simulator: Simulator
) -> None:
    environment = {**migrated, **SHORT_LEASE, "BONGSU_REDIS_URL": redis_server.url, "BONGSU_FCM_URL": simulator.address,
                   "BONGSU_FCM_PROJECT": "demo"}  # fmt: skip
    token = Keys.load(settings).member_token(MEMBERS[0], timedelta(hours=1))
    with serving(environment) as first, serving(environment) as second:
        register_devices(first)
        with Page(second.address, token).open() as page:
            callers = Callers([first, second])
            until(lambda: deliveries(settings)["SENDING", None] > 0, "some being sent")
            callers.processes = [second]
            first.process.kill()
            first.process.wait(30)
            with serving(environment) as third:
                callers.processes = [third, second]
                callers.join()
                total = len(callers.titles) * len(MEMBERS)
                assert total == NOTICES * len(GUARANTEES) * len(MEMBERS)
                until(lambda: are_all_done(settings, total), "all recorded")
                until(lambda: len(page.seen) >= len(callers.titles), "all shown")
        assert sorted(page.seen) == sorted(callers.titles)
    assert_none_lost_and_none_doubled(settings, simulator)


def register_devices(process: Served) -> None:
    with process.client(**KEY) as client:
        for member in MEMBERS:
            device = {"token": f"token-{member}", "platform": "ANDROID", "pushConsent": True}
            assert client.put(f"/api/members/{member}/devices/phone", json=device).status_code == 200


def assert_none_lost_and_none_doubled(settings: Settings, simulator: Simulator) -> None:
    """What was on its way when the process was killed: at_least_once is sent again, at_most_once is UNKNOWN."""
    times = Counter[tuple[str, str]]()
    for message in simulator.ledger()["messages"]:
        times[message["text"]["title"], message["token"]] += message["accepted"]
    repeated = {title for (title, _), accepted in times.items() if accepted > 1}
    assert all(title.startswith("at_least_once") for title in repeated)
    once = sum(1 for title, _ in times if title.startswith("at_least_once"))
    assert once == NOTICES * len(MEMBERS)
    sent_or_unknown = deliveries(settings)
    assert {status for status, _ in sent_or_unknown} <= {"SUCCESS", "UNKNOWN"}
    most_once = sum(1 for title, _ in times if title.startswith("at_most_once"))
    unknown = sum(count for (status, _), count in sent_or_unknown.items() if status == "UNKNOWN")
    assert NOTICES * len(MEMBERS) - unknown <= most_once <= NOTICES * len(MEMBERS)
