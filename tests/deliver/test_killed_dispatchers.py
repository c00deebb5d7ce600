"""Killed dispatchers against a provider that fails on purpose: its ledger shows what was lost and what was sent twice.

`make chaos` runs many more seeds.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest

from bongsu.model import Channel, Device, Guarantee, Listed, NoticeType, Platform
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.members.devices import put_device
from tests.deliver.killed_dispatcher import CONCURRENCY, work
from tests.simulator.running import Simulator
from tests.support.decisions import decide, rows, rules_notifying, trigger_event
from tests.support.killed_processes import kill_at_random
from tests.support.processes import forks

SEEDS = range(1, 1 + int(os.environ.get("CHAOS_SEEDS", "1")))
MEMBERS = int(os.environ.get("CHAOS_MEMBERS", "60"))
DEATHS = 12
# A fast machine may have sent everything before the others.
LEAST_DEATHS = 4
LEASE_SECONDS = 1.5
EVERYONE = [f"m{number:03}" for number in range(MEMBERS)]
GONE = EVERYONE[7::10]
MOST_ONCE = NoticeType("ONCE", (Channel.PUSH,))
LEAST_ONCE = NoticeType("AGAIN", (Channel.PUSH,), guarantee=Guarantee.AT_LEAST_ONCE)

FAULTS = {
    "unavailable": 0.05,
    "garbage": 0.02,
    "reset": 0.03,
    "acceptedReset": 0.05,
    "acceptedUnavailable": 0.04,
    "acceptedSilence": 0.01,
    "deviceQuota": 0.03,
}
# Answers after which a dispatcher cannot know whether the push was accepted.
AMBIGUOUS = {"BAD_GATEWAY", "GARBAGE", "RESET", "ACCEPTED_RESET", "ACCEPTED_UNAVAILABLE", "ACCEPTED_SILENCE", "SILENCE"}


@pytest.mark.parametrize("seed", SEEDS)
async def test_killed_dispatchers_lose_nothing_and_double_nothing_that_was_not_chosen(
    store: Store, settings: Settings, simulator: Simulator, seed: int
) -> None:
    dice = random.Random(seed)
    simulator.configure(seed=seed, faults=FAULTS, retryAfter={"form": "seconds", "seconds": 1})
    changes = {
        "fcm_url": simulator.address,
        "fcm_project": "chaos",
        "lease_seconds": LEASE_SECONDS,
        "send_timeout_seconds": 0.7,
        "retry_base_seconds": 0.05,
        "max_retries": 8,
    }
    mortal = settings.model_copy(update=changes)
    await fill(store, settings)
    processes = 3 if store.dialect.name == "postgresql" else 1
    deaths = max(kill_at_random(work, mortal, dice, processes=processes, deaths=DEATHS, pause=(0.2, 0.8)))

    ledger = simulator.ledger()
    entries = {entry["message"]: entry for entry in ledger["messages"]}
    found = await rows(
        store,
        """SELECT d.status, d.code, d.notification_id, m.type FROM bongsu_deliveries d
           JOIN bongsu_messages m USING (message_id)""",
    )
    assert deaths >= LEAST_DEATHS
    assert len(found) == 2 * MEMBERS - len(GONE)
    for status, code, notification_id, kind in found:
        check(status, code, kind, entries.get(str(notification_id)))
    states = Counter((row["status"], row["type"]) for row in found)
    assert states["SUCCESS", "ONCE"] > 0
    assert states["SUCCESS", "AGAIN"] > MEMBERS / 2
    abandoned = sum(row["code"] == "ABANDONED" for row in found)
    assert abandoned <= deaths * CONCURRENCY
    stats = simulator.stats()
    assert stats["differentCollapseIds"] == stats["sendsAfterUnregistered"] == 0
    # The provider's wait is kept, unless its answer was lost in a crash: then the lease, which began before the send, is.
    hasty = [gap for entry in ledger["messages"] for gap in entry["gaps"] if gap["isTooSoon"]]
    assert all(gap["seconds"] > LEASE_SECONDS / 2 for gap in hasty)
    await never_again(store, mortal, simulator)


async def never_again(store: Store, settings: Settings, simulator: Simulator) -> None:
    """Nothing is sent to a token that the provider reported as gone. Of abandoned deliveries the report was lost."""
    # Without faults: each would be a second send to a token whose report was lost.
    simulator.configure()
    unreported = await rows(store, "SELECT 1 FROM bongsu_devices WHERE token LIKE 'unregistered-%' AND status = 'ACTIVE'")
    await decide(store, settings, rules_notifying(Listed(tuple(GONE)), MOST_ONCE), trigger_event())
    one = forks.Process(target=work, args=(settings, 1, False), daemon=True)
    one.start()
    one.join()
    assert simulator.stats()["sendsAfterUnregistered"] <= len(unreported) < len(GONE)


def check(status: str, code: str | None, kind: str, entry: dict[str, Any] | None) -> None:
    """What is stored of a delivery agrees with the provider's ledger."""
    accepted = entry["accepted"] if entry else 0
    answers = set(entry["answers"]) if entry else set()
    if kind == "ONCE":
        assert accepted <= 1, f"sent twice: {entry}"
    match status:
        case "SUCCESS":
            assert accepted >= 1, f"lost: {entry}"
        case "FAIL" if code == "UNREGISTERED":
            assert accepted == 0
            assert "UNREGISTERED" in answers
        case "FAIL":
            assert code == "NO_ADDRESS" or kind == "AGAIN", f"given up: {code} {entry}"
        case "UNKNOWN":
            assert code == "ABANDONED" or answers & AMBIGUOUS, f"nothing was unknown: {code} {entry}"
        case _:
            pytest.fail(f"still {status}")


async def fill(store: Store, settings: Settings) -> None:
    """Two notifications for everyone, one to be sent at most once and one to be sent at least once.

    Tokens that are gone get only the former: the latter is sent again if a dispatcher died with the answer.
    """
    async with store.transaction() as tx:
        for one in EVERYONE:
            token = f"{'unregistered' if one in GONE else 'token'}-{one}"
            device = Device(token=token, platform=Platform.ANDROID, push_consent=True)
            await put_device(tx, one, "phone", device)
    await decide(store, settings, rules_notifying(Listed(tuple(EVERYONE)), MOST_ONCE), trigger_event())
    living = tuple(one for one in EVERYONE if one not in GONE)
    await decide(store, settings, rules_notifying(Listed(living), LEAST_ONCE), trigger_event())
