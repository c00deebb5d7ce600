"""Intake: group commit for incoming events.

While one transaction commits, the next requests queue; then they share one statement and one commit. Small requests and bulk
take turns, so that a single event waits for one batch of a burst and not for all of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from bongsu.errors import BongsuError, TooBusy
from bongsu.model import Event
from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop
from bongsu.runtime.signals import Signals
from bongsu.store import Store, outbox
from bongsu.store.outbox import NewEvent

# Wakes every worker: there may be due events.
EVENTS_TOPIC = "events"

# Events in one statement. More gains nothing, and all requests of a batch wait for its last row.
BATCH_LIMIT = 2_000
# Events of a request that is not bulk.
SMALL_REQUEST = 10
# Events queued in memory, not yet stored. Past this a request is refused with "busy"; a stream waits.
WAITING_LIMIT = 20_000


@dataclass
class _Request:
    events: Sequence[Event | NewEvent]
    answer: asyncio.Future[list[bool]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Intake(Loop):
    """Start it, then `accept` from any number of tasks."""

    def __init__(self, store: Store, signals: Signals, ingress: str) -> None:
        super().__init__("intake", poll_seconds=60)
        self._store = store
        self._signals = signals
        self._small: deque[_Request] = deque()
        self._bulk: deque[_Request] = deque()
        self._is_turn_of_bulk = False
        self._waiting_events = 0
        self._room = asyncio.Event()
        self._accepted = telemetry.EVENTS_ACCEPTED.labels(ingress)
        self._duplicates = telemetry.EVENTS_DUPLICATE.labels(ingress)

    async def accept(self, events: Sequence[Event | NewEvent]) -> list[bool]:
        """Store the events, all or none; return for each whether its id was new, when they are committed."""
        if not events:
            return []
        if self.is_stopping or self._waiting_events + len(events) > WAITING_LIMIT:
            raise TooBusy(f"{self._waiting_events} events are waiting")
        return await self._store_soon(events)

    async def accept_in_turn(self, events: Sequence[Event | NewEvent]) -> list[bool]:
        """Like `accept`, but waits while the queue is full: for a stream, which is then read no faster than it is stored."""
        while self._waiting_events and self._waiting_events + len(events) > WAITING_LIMIT and not self.is_stopping:
            self._room.clear()
            await self._room.wait()
        if self.is_stopping:
            raise TooBusy("The service is stopping")
        return await self._store_soon(events)

    async def stop(self) -> None:
        """Store what is queued; refuse what comes later."""
        await super().stop()
        self._room.set()
        for queue in (self._small, self._bulk):
            self._answer_all(list(queue), TooBusy("The service is stopping"))
            queue.clear()

    async def _store_soon(self, events: Sequence[Event | NewEvent]) -> list[bool]:
        request = _Request(events)
        (self._small if len(events) <= SMALL_REQUEST else self._bulk).append(request)
        self._waiting_events += len(events)
        self.wake()
        return await request.answer

    async def tick(self) -> int:
        batch = self._next_batch()
        if not batch:
            return 0
        events = [event for request in batch for event in request.events]
        try:
            answers = await outbox.add_many(self._store, events)
        except BongsuError as error:
            self._answer_all(batch, error)
            return len(events)
        except Exception as error:
            self._answer_all(batch, error)
            raise
        self._signals.send(EVENTS_TOPIC)
        self._accepted.inc(sum(answers))
        self._duplicates.inc(len(events) - sum(answers))
        rest = iter(answers)
        for request in batch:
            answer = list(islice(rest, len(request.events)))
            if not request.answer.done():
                request.answer.set_result(answer)
        return len(events)

    def _next_batch(self) -> list[_Request]:
        batch: list[_Request] = []
        size = 0
        self._is_turn_of_bulk = bool(self._bulk) and not (self._small and self._is_turn_of_bulk)
        queue = self._bulk if self._is_turn_of_bulk else self._small
        while queue and (not batch or size + len(queue[0].events) <= BATCH_LIMIT):
            request = queue.popleft()
            self._room.set()
            self._waiting_events -= len(request.events)
            if not request.answer.done():  # cancelled: the caller has disconnected
                batch.append(request)
                size += len(request.events)
        return batch

    @staticmethod
    def _answer_all(batch: list[_Request], error: Exception) -> None:
        for request in batch:
            if not request.answer.done():
                request.answer.set_exception(error)
