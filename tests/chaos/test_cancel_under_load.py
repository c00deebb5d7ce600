"""Campaigns are cancelled while two processes send them and members read: no deadlock, no error, every count right."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta

import httpx
import psycopg
import pytest

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from tests.chaos.shop import until
from tests.simulator.running import Simulator
from tests.support.cancellations import add_members_with_devices, counts_are_exact
from tests.support.processes import KEY, Served, serving

pytestmark = [pytest.mark.timeout(600), pytest.mark.parametrize("settings", ["postgresql"], indirect=True)]

MEMBERS = 100 * int(os.environ.get("CHAOS_MEMBERS", "60"))
CAMPAIGNS = 12 if "CHAOS_SEEDS" in os.environ else 4
READERS = 4


@contextlib.contextmanager
def reading(processes: Sequence[Served], settings: Settings, members: Sequence[str]) -> Iterator[Counter[int]]:
    """Members mark all as read, one call after the other, until the block ends. How often they got which answer."""
    keys, answers, ends = Keys.load(settings), Counter[int](), threading.Event()

    def read(number: int) -> None:
        dice = random.Random(number)
        with httpx.Client(base_url=processes[number % len(processes)].address, timeout=60) as client:
            while not ends.is_set():
                token = keys.member_token(dice.choice(members), timedelta(hours=1))
                answer = client.post("/api/notifications/read-all", headers={"Authorization": f"Bearer {token}"})
                answers[answer.status_code] += 1

    readers = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
    for reader in readers:
        reader.start()
    try:
        yield answers
    finally:
        ends.set()
        for reader in readers:
            reader.join()


def has_any(settings: Settings, query: str) -> bool:
    with psycopg.connect(settings.database_url) as connection:
        return connection.execute(f"SELECT 1 FROM {query} LIMIT 1".encode()).fetchone() is not None


def cancel_a_campaign(
    client: httpx.Client, simulator: Simulator, members: Sequence[str], dice: random.Random, withdraw: bool
) -> None:
    sent_before = simulator.stats()["sends"]
    body = {"type": "MARKETING", "userIds": members, "title": "봄 할인", "body": "b", "channels": ["PUSH", "IN_APP"]}
    asked = client.post("/api/notifications", json=body)
    assert asked.status_code == 202, asked.text
    some = sent_before + dice.randrange(1, len(members) // 3)
    until(lambda: simulator.stats()["sends"] >= some, "some of it sent")
    answer = client.post(f"/api/admin/events/{asked.json()['eventId']}/cancel", json={"withdraw": withdraw})
    assert answer.status_code == 200, answer.text


async def test_cancelling_under_load_on_two_processes_never_deadlocks(
    environment: dict[str, str], settings: Settings, simulator: Simulator
) -> None:
    """A deadlock that a repeated transaction hides is found in the server's log, at the end of the run."""
    simulator.configure(latency={"medianMs": 20})
    store = Store.open(settings)
    await migrate(store)
    members = await add_members_with_devices(store, MEMBERS)
    environment |= {"BONGSU_FCM_URL": simulator.address, "BONGSU_FCM_PROJECT": "demo", "BONGSU_DAILY_LIMIT": "100000"}
    dice = random.Random(1)
    with serving(environment) as one, serving(environment) as other, one.client(**KEY) as client:
        with reading([one, other], settings, members) as answers:
            for number in range(CAMPAIGNS):
                cancel_a_campaign(client, simulator, members, dice, withdraw=bool(number % 2))
                until(lambda: not has_any(settings, "bongsu_cancellations WHERE finished_at IS NULL"), "all steps taken")
        until(lambda: not has_any(settings, "bongsu_deliveries WHERE status IN ('READY', 'SENDING')"), "all ended")
        assert answers.keys() == {200}
        for process in (one, other):
            assert process.terminate() == 0
            process.wait_for("stopped")
            assert [line for line in process.lines if "crashed" in line["event"] or "rolled back" in line["event"]] == []
    assert await counts_are_exact(store)
    ended = "SELECT count(*) FROM bongsu_deliveries WHERE status = 'SUCCESS'"
    with psycopg.connect(settings.database_url) as connection:
        assert connection.execute(ended).fetchone() == (simulator.stats()["accepted"],)
    await store.close()
