"""Processes that push about chat are killed between any two steps: the provider's ledger shows that no push is lost, and the
store that none is made twice. `make chaos` runs many more seeds."""

from __future__ import annotations

import os
import random
from collections import defaultdict

import pytest

from bongsu.settings import Settings
from tests.chat.killed_push import work
from tests.simulator.running import simulating
from tests.support.chat import Chat
from tests.support.chat_push import Pushing, room_of
from tests.support.decisions import rows
from tests.support.killed_processes import kill_at_random

SEEDS = range(1, 1 + int(os.environ.get("CHAOS_SEEDS", "1")))
ROOMS = 6
DEATHS = 8
LEAST_DEATHS = 3


@pytest.mark.parametrize("seed", SEEDS)
async def test_killed_between_any_two_steps_no_push_is_lost_and_none_is_made_twice(
    chat: Chat, settings: Settings, seed: int
) -> None:
    dice = random.Random(seed)
    pushing = Pushing(chat, settings)
    rooms = [await room_of(pushing, *(f"{name}{number}" for name in ("ann", "bob", "cho"))) for number in range(ROOMS)]
    for number, room in enumerate(rooms):
        await chat.send(room, f"ann{number}", "first")
    with simulating() as simulator:
        changes = {
            "fcm_url": simulator.address, "fcm_project": "chat", "chat_push_seconds": 0.01, "lease_seconds": 0.8,
            "send_timeout_seconds": 0.4, "retry_base_seconds": 0.05, "poll_seconds": 0.1,
        }  # fmt: skip
        mortal = settings.model_copy(update=changes)
        processes = 2 if chat.store.dialect.name == "postgresql" else 1
        deaths = sent = 0
        for deaths in kill_at_random(
            work, mortal, dice, processes=processes, deaths=DEATHS, pause=(0.3, 1.0), is_more_to_come=True
        ):
            if deaths < DEATHS:
                sent += 1
                for number, room in enumerate(rooms):
                    await chat.send(room, f"ann{number}", f"text {sent}")
        ledger = simulator.ledger()
    assert deaths >= LEAST_DEATHS
    entries = {int(entry["message"]): entry for entry in ledger["messages"] if entry["accepted"]}
    found = await rows(
        chat.store,
        """SELECT n.notification_id, n.member_id, e.event_id, d.status FROM bongsu_notifications AS n
           JOIN bongsu_messages AS m ON m.message_id = n.message_id JOIN bongsu_events AS e ON e.event_id = m.event_id
           JOIN bongsu_deliveries AS d ON d.notification_id = n.notification_id""",
    )
    events = defaultdict(list)
    for row in found:
        assert (row["status"], row["notification_id"] in entries) == ("SUCCESS", True)
        events[row["member_id"]].append(row["event_id"])
    assert len(events) == 2 * ROOMS
    assert all(len(set(of_member)) == len(of_member) for of_member in events.values())
    # The newest push has the newest message; of one that was sent again the ledger has the first text.
    for member_id in events:
        newest = entries[max(row["notification_id"] for row in found if row["member_id"] == member_id)]
        assert f"text {sent}" in newest["text"]["body"] or len(newest["answers"]) > 1
    merged = await rows(chat.store, "SELECT reason FROM bongsu_suppressions")
    assert {row["reason"] for row in merged} <= {"MERGED"}
