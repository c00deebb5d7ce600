"""Three processes on one PostgreSQL write about the same members while campaigns to all of them are decided: no 503."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import httpx
import pytest

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from tests.chaos.shop import report, until
from tests.simulator.running import Simulator
from tests.support.cancellations import add_members_with_devices
from tests.support.decisions import unread_is_exact
from tests.support.processes import KEY, Served, serving

pytestmark = [pytest.mark.timeout(600), pytest.mark.parametrize("settings", ["postgresql"], indirect=True)]

IS_LONG = "CHAOS_FAULT_SECONDS" in os.environ
MEMBERS = 30_000 if IS_LONG else 5_000
WRITES = 12_000 if IS_LONG else 600
WRITERS = 6


def campaign(members: Sequence[str]) -> dict[str, object]:
    return {"type": "MARKETING", "userIds": members, "title": "봄 할인", "body": "b", "channels": ["IN_APP"]}


def write(process: Served, settings: Settings, members: Sequence[str], seed: int, answers: Counter[str]) -> None:
    """A share of the writes: profiles, devices, inboxes and notices of members chosen at random."""
    dice, keys = random.Random(seed), Keys.load(settings)
    with httpx.Client(base_url=process.address, timeout=60) as client:
        for number in range(WRITES // WRITERS):
            member = dice.choice(members)
            token = {"Authorization": f"Bearer {keys.member_token(member, timedelta(hours=1))}"}
            kind = dice.randrange(4)
            if kind == 0:
                answer = client.put(f"/api/members/{member}", json={"email": f"{number}@example.org"}, headers=KEY)
            elif kind == 1:
                device = {"token": f"{member}-{number}", "platform": "ANDROID", "pushConsent": True}
                answer = client.put(f"/api/members/{member}/devices/phone", json=device, headers=KEY)
            elif kind == 2:
                answer = client.post("/api/notifications/read-all", headers=token)
            else:
                some = dice.sample(members, 20)
                answer = client.post("/api/notifications", json=campaign(some), headers=KEY)
            answers[f"{answer.status_code} {answer.text if answer.is_error else ''}".strip()] += 1


async def test_overlapping_writes_on_three_processes_are_all_answered(
    environment: dict[str, str], settings: Settings, simulator: Simulator
) -> None:
    store = Store.open(settings)
    await migrate(store)
    members = await add_members_with_devices(store, MEMBERS)
    environment |= {"BONGSU_FCM_URL": simulator.address, "BONGSU_FCM_PROJECT": "demo"}
    answers = Counter[str]()
    with serving(environment) as one, serving(environment) as two, serving(environment) as three:
        processes = (one, two, three)
        writers = [
            threading.Thread(target=write, args=(processes[seed % 3], settings, members, seed, answers))
            for seed in range(WRITERS)
        ]
        for writer in writers:
            writer.start()
        with one.client(**KEY) as client:
            while any(writer.is_alive() for writer in writers):
                assert client.post("/api/notifications", json=campaign(members)).status_code == 202
                writers[0].join(timeout=2)
            for writer in writers:
                writer.join()
            until(lambda: client.get("/api/admin/stats").json()["events"]["pending"] == 0, "all decided")
        report("overlapping writes", **answers)
        assert answers.keys() <= {"200", "202", "204"}, answers
        for process in processes:
            assert process.terminate() == 0
            process.wait_for("stopped")
            assert [line for line in process.lines if "crashed" in line["event"] or "rolled back" in line["event"]] == []
    assert await unread_is_exact(store)
    await store.close()
