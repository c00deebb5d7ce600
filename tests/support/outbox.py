"""Events in the store, for tests of what becomes of them."""

from __future__ import annotations

from bongsu.model import Event, EventStatus
from bongsu.store import Store, outbox
from bongsu.store.core.query import same
from bongsu.store.outbox import StoredEvent

_COUNT = same("SELECT count(*) AS count FROM bongsu_events")


async def add_events(store: Store, *events: Event) -> None:
    async with store.transaction() as tx:
        await outbox.add(tx, events)


async def find_event(store: Store, event: Event) -> StoredEvent:
    async with store.read() as tx:
        row = await outbox.find(tx, event.event_id)
    assert row is not None
    return row


async def count_events(store: Store) -> int:
    async with store.read() as tx:
        (row,) = await tx.fetch(_COUNT())
    return int(row["count"])


async def count_pending(store: Store) -> int:
    async with store.read() as tx:
        return (await outbox.count_unfinished(tx))[EventStatus.PENDING]
