"""Events and how far they have come: a page of them, one of them, and one again and again while it goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pydantic import Field

from bongsu.desk.lists import ListFilter
from bongsu.errors import NoSuchEvent
from bongsu.model import EventStatus, Id, Name
from bongsu.store import Store
from bongsu.store.desk import event_progress as statements
from bongsu.store.desk.event_progress import EventPage, EventProgress, Filters, PageCursor, end_at_rate

# The rate is that of so many samples: of a single second it would jump between zero and a high value.
RATE_SAMPLES = 10


class EventFilter(ListFilter):
    """What the events have in common; `from` and `to` are about when they were stored."""

    type: Name | None = Field(None, description="The event's type, such as product.price_changed")
    status: EventStatus | None = None
    target_id: Id | None = None

    @property
    def filters(self) -> Filters:
        return Filters(self.type, self.status, self.target_id, self.since, self.until)

    @property
    def is_empty(self) -> bool:
        return self.filters == Filters()


async def list_events(store: Store, asked: EventFilter, after: PageCursor | None, limit: int) -> EventPage:
    """One bounded search: it may find fewer than `limit`, or none, and have a next page."""
    async with store.read() as tx:
        return await statements.find_page(tx, asked.filters, after, limit)


async def find_progress(store: Store, event_id: UUID) -> EventProgress:
    """How far an event has come. Raises NoSuchEvent."""
    async with store.read() as tx:
        progress = await statements.find_progress(tx, event_id)
    if progress is None:
        raise NoSuchEvent(f"There is no event {event_id}")
    return progress


@dataclass(frozen=True)
class ProgressSample:
    """How far an event has come, and how far it had come some samples before."""

    progress: EventProgress
    before: EventProgress | None = None

    @property
    def done(self) -> int:
        """Deliveries that are sent, failed or cancelled."""
        return self.progress.counts.made - self.progress.counts.waiting

    @property
    def rate(self) -> float | None:
        """Outcomes per second since some samples before; at the first sample, since the event's first message."""
        if self.before is None:
            return self.progress.rate_per_second
        seconds = (self.progress.now - self.before.now).total_seconds()
        # A replay makes deliveries wait again that had an outcome.
        new = max(self.progress.counts.answered - self.before.counts.answered, 0)
        return new / seconds if seconds > 0 else None

    @property
    def expected_end(self) -> datetime | None:
        return end_at_rate(self.progress, self.rate)


async def watch_progress(
    store: Store, first: EventProgress, pause: Callable[[], Awaitable[None]]
) -> AsyncIterator[ProgressSample]:
    """One sample after the other, with a pause between them. The last finds that nothing is left to do."""
    seen = deque([first], RATE_SAMPLES)
    sample = ProgressSample(first)
    yield sample
    while not sample.progress.is_over:
        await pause()
        sample = ProgressSample(await find_progress(store, first.event.event_id), seen[0])
        seen.append(sample.progress)
        yield sample
