"""Replays of dead letters, as an operator requests them."""

from __future__ import annotations

from typing import Any

from bongsu.desk.dead_filter import DeadFilter, System
from bongsu.desk.dead_letters import DeadLetters, DeadLetterSource, Replayed
from bongsu.desk.stored_dead_letters import BATCH, StoreDeadLetters
from bongsu.runtime.signals import LocalSignals, Signals
from bongsu.store import Store


def stored(store: Store, signals: Signals | None = None, batch: int = BATCH) -> dict[System, DeadLetterSource]:
    """The store as the one source of dead letters."""
    return {System.STORE: StoreDeadLetters(store, signals or LocalSignals(), batch)}


def dead_letters(
    store: Store, signals: Signals | None = None, lease_seconds: float = 60.0, *, batch: int = BATCH
) -> DeadLetters:
    return DeadLetters(store, stored(store, signals, batch), lease_seconds)


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
    return await dead_letters(store, signals, batch=batch).replay(asked, requested_by, new_collapse_id=new_collapse_id)
