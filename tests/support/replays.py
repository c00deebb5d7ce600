"""Replays of dead letters, as an operator requests them."""

from __future__ import annotations

from typing import Any

from bongsu.desk.dead_letters import BATCH, DeadFilter, Replayed, StoreDeadLetters
from bongsu.runtime.signals import LocalSignals, Signals
from bongsu.store import Store


async def replay(
    store: Store,
    filters: DeadFilter | dict[str, Any],
    *,
    requested_by: str = "cli:tester",
    new_collapse_id: bool = False,
    batch: int = BATCH,
    signals: Signals | None = None,
) -> Replayed:
    asked = filters if isinstance(filters, DeadFilter) else DeadFilter.model_validate(filters)
    dead_letters = StoreDeadLetters(store, signals or LocalSignals(), batch=batch)
    return await dead_letters.replay(asked, requested_by, new_collapse_id=new_collapse_id)
