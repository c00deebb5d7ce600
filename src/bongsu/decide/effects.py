"""What events do besides notifying, in the transaction of the step that makes them DONE.

A kind of effect is a class with `apply`. A new kind is one more entry in `effects_of`; the decision's SQL is not concerned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bongsu.decide.progress import EventInProgress
from bongsu.model import Delta
from bongsu.store.core.query import Transaction
from bongsu.store.counters import KeySum
from bongsu.store.counters.events import count_deltas
from bongsu.store.decisions import StepEffect


@dataclass
class CountDeltas:
    """The deltas of all events that a step finishes, one sum for each counter."""

    deltas: Sequence[Delta]
    # What was added to each counter: known once it is applied.
    sums: Sequence[KeySum] = field(default_factory=list)

    async def apply(self, tx: Transaction) -> None:
        self.sums = await count_deltas(tx, self.deltas)


def effects_of(finished: Iterable[EventInProgress]) -> list[StepEffect]:
    """The effects of the events that a step finishes."""
    deltas = [delta for event in finished for delta in event.deltas]
    return [CountDeltas(deltas)] if deltas else []
