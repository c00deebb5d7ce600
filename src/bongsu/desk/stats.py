"""How much work waits and how much has failed."""

from __future__ import annotations

from typing import NamedTuple

from bongsu.store import Store, outbox
from bongsu.store.desk.stats import count_deliveries


class Stats(NamedTuple):
    """Numbers by status in lower case."""

    events: dict[str, int]
    deliveries: dict[str, int]


async def find_stats(store: Store) -> Stats:
    async with store.read() as tx:
        events = await outbox.count_unfinished(tx)
        deliveries = await count_deliveries(tx)
    return Stats(
        {status.value.lower(): count for status, count in events.items()},
        {status.lower(): count for status, count in deliveries.items()},
    )
