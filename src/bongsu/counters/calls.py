"""Calls that count: a group commit that stores each as an event and its delta, and answers when both are committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from bongsu.errors import NoSuchCounter
from bongsu.model import new_id
from bongsu.model.counter import COMMENTS, is_counter_name
from bongsu.runtime import telemetry
from bongsu.runtime.group_commit import GroupCommit
from bongsu.store import Store, Transaction
from bongsu.store.core.clock import find_now
from bongsu.store.counters import KeySum
from bongsu.store.counters.deltas import find_totals, is_known, summed
from bongsu.store.counters.events import Call, Counted, count_calls

# Calls in one transaction, and calls that wait for theirs: a call is a few hundred bytes, and each waits for one commit.
BATCH_LIMIT = 1_000
WAITING_LIMIT = 20_000

OnCounted = Callable[[Sequence[KeySum]], None]


class Answer(NamedTuple):
    """What a counter is, at that time of the store, and whether the call has counted."""

    value: int
    as_of: datetime
    event_id: UUID
    is_duplicate: bool


class Counters(GroupCommit[Call, tuple[Counted, datetime]]):
    """Start it, then `count` from any number of tasks. One hot key costs a row for each commit, not one for each call."""

    def __init__(self, store: Store, declared: Collection[str] = (), on_counted: OnCounted | None = None) -> None:
        """`declared` are counters besides the built-in ones. `on_counted` is called after each commit."""
        super().__init__("counter-calls", self._write_calls, batch_limit=BATCH_LIMIT, waiting_limit=WAITING_LIMIT)
        self._store = store
        self._on_counted = on_counted
        # Names that are known without asking the store.
        self._names = {COMMENTS, *declared}
        self._accepted = telemetry.EVENTS_ACCEPTED.labels("counters")
        self._duplicates = telemetry.EVENTS_DUPLICATE.labels("counters")

    async def count(self, counter: str, key: str, delta: int, event_id: UUID | None = None) -> Answer:
        """Change a counter, once for each event id. Raises NoSuchCounter, CounterOverflow and TooBusy."""
        await self._check(counter)
        call = Call(event_id or new_id(), counter, key, delta)
        ((counted, now),) = await self.submit([call])
        return Answer(counted.value, now, call.event_id, not counted.is_new)

    async def find(self, counter: str, key: str) -> tuple[int, datetime]:
        """What a counter is: 0 if it was never counted. Raises NoSuchCounter."""
        await self._check(counter)
        async with self._store.read() as tx:
            ((value, as_of),) = (await find_totals(tx, [(counter, key)])).values()
        return value, as_of

    async def _check(self, counter: str) -> None:
        if counter in self._names:
            return
        if is_counter_name(counter):
            async with self._store.read() as tx:
                if await is_known(tx, counter):
                    self._names.add(counter)
                    return
        raise NoSuchCounter(f"There is no counter {counter!r:.100}")

    async def _write_calls(self, calls: Sequence[Call]) -> list[tuple[Counted, datetime]]:
        async def write(tx: Transaction) -> tuple[list[Counted], datetime]:
            return await count_calls(tx, calls), await find_now(tx)

        results, now = await self._store.run(write)
        new = [KeySum(*call[1:]) for call, counted in zip(calls, results, strict=True) if counted.is_new]
        if self._on_counted is not None:
            self._on_counted(summed(new))
        self._accepted.inc(len(new))
        self._duplicates.inc(len(calls) - len(new))
        return [(counted, now) for counted in results]
