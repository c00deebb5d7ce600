"""A campaign cancelled at a random moment, while its workers, dispatchers and cancellers are killed: every delivery is
accounted for, nothing is sent that was not on the wire, and inboxes and counts are right.

`make chaos` runs many more seeds.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest

from bongsu.model import Event
from bongsu.settings import Settings
from bongsu.store import Store
from tests.deliver.test_killed_dispatchers import FAULTS
from tests.desk.killed_campaign import KINDS, Answer, cancel_later, work
from tests.simulator.running import Simulator
from tests.support.cancellations import add_members_with_devices, counts_are_exact, event_status, in_inboxes
from tests.support.decisions import rows
from tests.support.killed_processes import kill_at_random
from tests.support.long_runs import seeds
from tests.support.outbox import add_events
from tests.support.processes import WAIT_SECONDS, forks

SEEDS = seeds(1)
MEMBERS = 10 * int(os.environ.get("CHAOS_MEMBERS", "120"))
DEATHS = 12
# A fast machine may have cancelled everything before the others; and where it is cancelled early, before any.
LEAST_DEATHS = 2
LEASE_SECONDS = 1.5


@pytest.mark.parametrize("withdraw", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
async def test_cancelled_among_killed_processes_every_delivery_is_accounted_for(
    store: Store, settings: Settings, simulator: Simulator, seed: int, withdraw: bool
) -> None:
    dice = random.Random(seed * 2 + withdraw)
    simulator.configure(seed=seed, faults=FAULTS, retryAfter={"form": "seconds", "seconds": 1}, latency={"medianMs": 5})
    changes = {
        "fcm_url": simulator.address,
        "fcm_project": "chaos",
        "lease_seconds": LEASE_SECONDS,
        "send_timeout_seconds": 0.7,
        "retry_base_seconds": 0.05,
        "poll_seconds": 0.02,
    }
    mortal = settings.model_copy(update=changes)
    await add_members_with_devices(store, MEMBERS)
    kind = dice.choice(sorted(KINDS))
    event = Event(event_type="campaign", payload={"kind": kind})
    await add_events(store, event)

    here, there = forks.Pipe()
    ended = dice.randrange(MEMBERS * 2 // 3)
    canceller = forks.Process(target=cancel_later, args=(mortal, event.event_id, ended, withdraw, there), daemon=True)
    canceller.start()
    processes = 3 if store.dialect.name == "postgresql" else 1
    deaths = max(kill_at_random(work, mortal, dice, processes=processes, deaths=DEATHS, pause=(0.2, 0.6)))
    assert here.poll(WAIT_SECONDS)
    answer: Answer = here.recv()
    canceller.join()

    assert deaths >= LEAST_DEATHS or ended < MEMBERS // 4
    assert await event_status(store, event.event_id) == "CANCELLED"
    deliveries = await rows(store, "SELECT member_id, status, attempts FROM bongsu_deliveries")
    states = Counter(row["status"] for row in deliveries)
    # Nobody was decided after the answer, and every delivery has ended.
    assert sorted(row["member_id"] for row in deliveries) == sorted(one for one, _, _ in answer.deliveries)
    assert states.keys() <= {"SUCCESS", "FAIL", "UNKNOWN", "CANCELLED"}
    failed = sum(status == "FAIL" for _, status, _ in answer.deliveries)
    assert answer.done.cancelled + answer.done.sent + failed == len(deliveries)

    entries = {entry["token"]: entry for entry in simulator.ledger()["messages"]}
    on_the_wire = {f"token-{one}" for one, status, attempts in answer.deliveries if status != "READY" or attempts}
    assert entries.keys() <= on_the_wire, "sent though it was claimed after the answer"
    for member_id, status, _ in deliveries:
        check(kind, status, entries.get(f"token-{member_id}"))

    members = len(await rows(store, "SELECT 1 FROM bongsu_notifications"))
    assert members == len(deliveries)
    assert await in_inboxes(store) == (0 if withdraw else members)
    assert answer.done.withdrawn == (members if withdraw else 0)
    assert await counts_are_exact(store)


def check(kind: str, status: str, entry: dict[str, Any] | None) -> None:
    """What is stored of a delivery agrees with the provider's ledger."""
    accepted = entry["accepted"] if entry else 0
    if kind == "SALE":
        # At most once.
        assert accepted <= 1, f"sent twice: {entry}"
        assert status in ("SUCCESS", "UNKNOWN") or not accepted, f"{status}, and yet it arrived: {entry}"
    if status == "SUCCESS":
        assert accepted >= 1, f"lost: {entry}"
