"""What events count: the deltas of rules in a step's transaction, and of calls, each an event of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import orjson

from bongsu.model import EventStatus
from bongsu.model.counter import Delta
from bongsu.store.core.query import Transaction
from bongsu.store.counters import KeySum
from bongsu.store.counters.deltas import add_deltas, summed
from bongsu.store.counters.items import count_items
from bongsu.store.outbox import EndedEvent, add_ended

# The type of the event that a call is stored as. An event of this type that comes another way counts by a rule.
COUNTER_CHANGED = "counter.changed"


class Call(NamedTuple):
    """A change of a counter that a caller requests. The same id counts once."""

    event_id: UUID
    counter: str
    key: str
    delta: int


class Counted(NamedTuple):
    """Whether the call was counted now, and what its counter is after it. False: its id was stored before."""

    is_new: bool
    value: int


async def count_deltas(tx: Transaction, deltas: Sequence[Delta]) -> list[KeySum]:
    """Count the deltas of events that become DONE in this transaction; return the sums by counter.

    Run it last: nothing else is locked after it.
    """
    plain = [KeySum(delta.counter, delta.key, delta.delta) for delta in deltas if not delta.item]
    items = await count_items(tx, [delta for delta in deltas if delta.item])
    sums = summed([*plain, *items])
    await add_deltas(tx, sums)
    return sums


async def count_calls(tx: Transaction, calls: Sequence[Call]) -> list[Counted]:
    """Count the calls whose ids are new. Of several with one id the first counts."""
    new = await add_ended(tx, [_as_event(call) for call in calls])
    are_new = [_is_first(call.event_id, new) for call in calls]
    changes = [KeySum(*call[1:]) for call, is_new in zip(calls, are_new, strict=True) if is_new]
    keys = sorted({(call.counter, call.key) for call in calls})
    sums = {given[:2]: given.delta for given in summed(changes)}
    # Also those that come to nothing: the answer names what the counter is.
    totals = await add_deltas(tx, [KeySum(counter, key, sums.get((counter, key), 0)) for counter, key in keys])
    values = {key: totals[key] - sums.get(key, 0) for key in keys}
    results = []
    for call, is_new in zip(calls, are_new, strict=True):
        values[call.counter, call.key] += call.delta if is_new else 0
        results.append(Counted(is_new, values[call.counter, call.key]))
    return results


def _is_first(event_id: UUID, new: set[UUID]) -> bool:
    if event_id not in new:
        return False
    new.remove(event_id)
    return True


def _as_event(call: Call) -> EndedEvent:
    payload = orjson.dumps({"counter": call.counter, "delta": call.delta}).decode()
    return EndedEvent(call.event_id, COUNTER_CHANGED, None, None, call.key, payload, EventStatus.DONE)
