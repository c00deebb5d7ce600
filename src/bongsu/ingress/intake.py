"""Intake: stores incoming events with a group commit, and wakes the workers.

Small requests and bulk take turns, so that a single event waits for one batch of a burst and not for all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from bongsu.model import Event
from bongsu.runtime import telemetry
from bongsu.runtime.group_commit import GroupCommit
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import EVENTS_TOPIC
from bongsu.store import Store, outbox
from bongsu.store.outbox import NewEvent

# Events in one statement. More gains nothing, and all requests of a batch wait for its last row.
BATCH_LIMIT = 2_000
# Events queued in memory, not yet stored. Past this a request is refused with "busy"; a stream waits.
WAITING_LIMIT = 20_000
# Requests of at most so many events do not queue behind larger ones.
SMALL_REQUEST = 10


class Intake(GroupCommit[Event | NewEvent, bool]):
    """Start it, then `accept` from any number of tasks."""

    def __init__(self, store: Store, signals: Signals, ingress: str) -> None:
        super().__init__(
            "intake", self._store_events, batch_limit=BATCH_LIMIT, waiting_limit=WAITING_LIMIT, small=SMALL_REQUEST
        )
        self._store = store
        self._signals = signals
        self._accepted = telemetry.EVENTS_ACCEPTED.labels(ingress)
        self._duplicates = telemetry.EVENTS_DUPLICATE.labels(ingress)

    async def accept(self, events: Sequence[Event | NewEvent]) -> list[bool]:
        """Store the events, all or none; return for each whether its id was new, when they are committed."""
        return await self.submit(events)

    async def accept_in_turn(self, events: Sequence[Event | NewEvent]) -> list[bool]:
        """Like `accept`, but wait while the queue is full: for a stream, which is then read no faster than it is stored."""
        return await self.submit_in_turn(events)

    async def _store_events(self, events: Sequence[Event | NewEvent]) -> list[bool]:
        answers = await outbox.add_many(self._store, events)
        self._signals.send(EVENTS_TOPIC)
        self._accepted.inc(sum(answers))
        self._duplicates.inc(len(events) - sum(answers))
        return answers
