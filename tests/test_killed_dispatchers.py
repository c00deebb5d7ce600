"""Killed dispatchers against a provider that fails on purpose: its ledger says what was lost, and what was sent twice.

`make chaos` runs many more seeds.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from bongsu.model import Channel, Device, Guarantee, Listed, NoticeType, Platform
from bongsu.settings import Settings
from bongsu.store import Store, people
from tests.deciding import decide, rows, said, says
from tests.killed_dispatcher import CONCURRENCY, work
from tests.killing import killing
from tests.processes import forks
from tests.simulator.running import Simulator, simulating

SEEDS = range(1, 1 + int(os.environ.get("CHAOS_SEEDS", "1")))
MEMBERS = int(os.environ.get("CHAOS_MEMBERS", "60"))
DEATHS = 12
# A machine may be so quick that all is carried before the others.
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
# An answer after which nobody can know whether it was taken on.
AMBIGUOUS = {"BAD_GATEWAY", "GARBAGE", "RESET", "ACCEPTED_RESET", "ACCEPTED_UNAVAILABLE", "ACCEPTED_SILENCE", "SILENCE"}


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with simulating() as running:
        yield running


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
    deaths = max(killing(work, mortal, dice, processes=processes, deaths=DEATHS, pause=(0.2, 0.8)))

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
    states = Counter((row[0], row[3]) for row in found)
    assert states["SUCCESS", "ONCE"] > 0
    assert states["SUCCESS", "AGAIN"] > MEMBERS / 2
    abandoned = sum(row[1] == "ABANDONED" for row in found)
    assert abandoned <= deaths * CONCURRENCY
    stats = simulator.stats()
    assert stats["differentCollapseIds"] == stats["sendsAfterUnregistered"] == 0
    # A wait is kept, or nobody lived to hear of it: then the lease was waited for, which began a little before the send.
    hasty = [gap for entry in ledger["messages"] for gap in entry["gaps"] if gap["isTooSoon"]]
    assert all(gap["seconds"] > LEASE_SECONDS / 2 for gap in hasty)
    await never_again(store, mortal, simulator)


async def never_again(store: Store, settings: Settings, simulator: Simulator) -> None:
    """To a token that was heard to be gone nothing goes any more; of those abandoned nobody heard it."""
    # Without faults: each would be a second send to a token that nobody has heard of.
    simulator.configure()
    unheard = await rows(store, "SELECT 1 FROM bongsu_devices WHERE token LIKE 'unregistered-%' AND status = 'ACTIVE'")
    await decide(store, settings, says(Listed(tuple(GONE)), MOST_ONCE), said())
    one = forks.Process(target=work, args=(settings, 1, False), daemon=True)
    one.start()
    one.join()
    assert simulator.stats()["sendsAfterUnregistered"] <= len(unheard) < len(GONE)


def check(status: str, code: str | None, kind: str, entry: dict[str, Any] | None) -> None:
    """What we say of a delivery is what the provider knows of it."""
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
    """Everyone is told twice: once a thing to be sent at most once, once a thing to be sent at least once.

    Tokens that are gone are told of only by the former: of the latter a dispatcher that died with the answer may ask again.
    """
    async with store.write() as tx:
        for one in EVERYONE:
            token = f"{'unregistered' if one in GONE else 'token'}-{one}"
            device = Device(token=token, platform=Platform.ANDROID, push_consent=True)
            await people.put_device(tx, one, "phone", device)
    await decide(store, settings, says(Listed(tuple(EVERYONE)), MOST_ONCE), said())
    living = tuple(one for one in EVERYONE if one not in GONE)
    await decide(store, settings, says(Listed(living), LEAST_ONCE), said())
