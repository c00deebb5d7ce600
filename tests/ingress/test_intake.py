"""The intake: what waits for which commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bongsu.ingress.intake import BATCH_LIMIT, Intake
from bongsu.model import Event
from bongsu.runtime.signals import LocalSignals
from bongsu.store import Store, outbox


def events(count: int, kind: str) -> list[Event]:
    return [Event(event_type=kind) for _ in range(count)]


async def test_a_single_event_waits_for_one_batch_of_a_burst(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the burst for one batch of single events: they take turns."""
    batches: list[set[str]] = []
    add_many = outbox.add_many

    async def noted(store: Store, added: Sequence[Any]) -> list[bool]:
        batches.append({one.event_type for one in added})
        return await add_many(store, added)

    monkeypatch.setattr(outbox, "add_many", noted)
    intake = Intake(store, LocalSignals(), "http")
    burst = [asyncio.create_task(intake.accept(events(BATCH_LIMIT, "burst"))) for _ in range(3)]
    await asyncio.sleep(0)
    await intake.tick()
    single = [asyncio.create_task(intake.accept(events(1, "single"))) for _ in range(5)]
    await asyncio.sleep(0)
    while await intake.tick():
        pass
    assert [len(answer) for answer in await asyncio.gather(*burst, *single)] == [BATCH_LIMIT] * 3 + [1] * 5
    assert batches == [{"burst"}, {"single"}, {"burst"}, {"burst"}]
