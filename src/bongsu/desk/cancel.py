"""Cancel an event: what is not decided is not decided, what is not claimed is not sent, and it may leave the inboxes.

The answer comes as soon as nothing more can go out; the rows of a large event are changed after it, by any worker.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from uuid import UUID

from bongsu.desk.digest_texts import rewrite_with
from bongsu.errors import NoSuchEvent, NothingToCancel, StoreError
from bongsu.live.announce import announce_changes
from bongsu.model import EventStatus
from bongsu.render.templates import Templates
from bongsu.runtime.loop import Loop
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import CANCELLATIONS_TOPIC, DELIVERIES_TOPIC
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.desk import cancel_steps, cancellations
from bongsu.store.desk.cancel_steps import Step
from bongsu.store.desk.cancellations import Cancellation, NothingLeft
from bongsu.store.desk.digest_remainders import Rewrite

# Members whose rows one step changes: it holds their locks for a fraction of a second.
MEMBERS = 1_000
# An answer waits so long for the rows to be changed. That of a small event finds them all changed.
PATIENCE_SECONDS = 0.5

_WHY_NOTHING = {
    EventStatus.DONE: "All of it has been sent already. The history lists who got it; withdraw takes it out of the inboxes",
    EventStatus.FAILED: "It has failed and is not sent unless it is replayed",
    EventStatus.UNHANDLED: "No rule handled it, and it is not sent unless it is replayed",
}


class Cancellations:
    """Cancels events."""

    def __init__(self, store: Store, signals: Signals, templates: Templates | None = None) -> None:
        self._store = store
        self._signals = signals
        self._rewrite = rewrite_with(templates or Templates.load())

    async def cancel(self, event_id: UUID, who: str, *, withdraw: bool = False) -> Cancellation:
        """Stop what was not sent; with `withdraw`, take the rest back out of the inboxes. Asked again, it answers the
        same. Raises NoSuchEvent or NothingToCancel."""
        begun = await self._store.run(lambda tx: cancellations.begin(tx, event_id, who, withdraw=withdraw))
        # A claim at that moment has passed over what was locked, and may have found nothing else.
        self._signals.send(DELIVERIES_TOPIC)
        if begun is None:
            raise NoSuchEvent(f"There is no event {event_id}")
        if isinstance(begun, NothingLeft):
            why = _WHY_NOTHING.get(begun.status, "It is finished")
            raise NothingToCancel(f"Event {event_id} has nothing left to cancel. {why}")
        if not begun.is_finished:
            await self._change_rows(event_id)
        return begun

    async def _change_rows(self, event_id: UUID) -> None:
        """For a while. It is cancelled whatever becomes of it: what is left, and what fails, is left to the workers."""
        until = time.monotonic() + PATIENCE_SECONDS
        with contextlib.suppress(StoreError):
            while time.monotonic() < until:
                step = await take_step(self._store, self._signals, event_id, rewrite=self._rewrite)
                if step is None or step.is_last:
                    return
        self._signals.send(CANCELLATIONS_TOPIC)


class CancelWorker(Loop):
    """Changes the rows of cancelled events that were too many for the request. Any number may run, in any process."""

    def __init__(self, store: Store, signals: Signals, settings: Settings) -> None:
        super().__init__("cancel-worker", settings.poll_seconds)
        self._store = store
        self._signals = signals
        self._rewrite = rewrite_with(Templates.load())
        # Events whose next rows others have locked: passed over until the others had a step.
        self._locked: set[UUID] = set()

    async def tick(self) -> int:
        step = await take_step(self._store, self._signals, passed_over=self._locked, rewrite=self._rewrite)
        if step is None:
            self._locked.clear()
            return 0
        if step.is_again and not step.is_changed:
            self._locked.add(step.event_id)
        return 1


async def take_step(
    store: Store,
    signals: Signals,
    event_id: UUID | None = None,
    passed_over: Collection[UUID] = (),
    rewrite: Rewrite | None = None,
) -> Step | None:
    """One step of an unfinished cancellation, and its announcement to open pages."""
    step = await cancel_steps.step(store, MEMBERS, event_id, passed_over, rewrite)
    if step is not None:
        announce_changes(signals, [*(member_id for member_id, _ in step.withdrawn), *step.updated])
    return step
