"""Counts of messages with large audiences, kept as their recipients are decided and their deliveries end.

Every change of a delivery's status is reported here, in the same transaction: `count_ended`. What waits or is being sent
is what was made less what has ended. Messages with small audiences are not counted: their rows are few enough to look at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from bongsu.store.core.query import Query, Table, Transaction, in_both

# Deliveries that were made; recipients with a notification, and those of them who have it in the inbox.
MADE, NOTIFIED, IN_INBOX = "MADE", "NOTIFIED", "IN_INBOX"
# Statuses in which a delivery stays until it is replayed.
ENDED = frozenset({"SUCCESS", "FAIL", "UNKNOWN", "CANCELLED"})

_COUNT = {"message_id": "bigint", "channel": "text", "category": "text", "count": "bigint"}

# Adds to the counts of messages that are counted. Locks the rows of the counts, in the order given.
ADD_COUNTS = in_both(
    lambda d: (
        f"""
    INSERT INTO bongsu_message_counts (message_id, channel, category, count)
    SELECT given.message_id, given.channel, given.category, given.count
    FROM {d.table("given", _COUNT, 1)}
    WHERE (SELECT m.is_bulk FROM bongsu_messages AS m WHERE m.message_id = given.message_id)
    ON CONFLICT (message_id, channel, category) DO UPDATE SET count = bongsu_message_counts.count + excluded.count"""
    )
)


def add_counts_query(counts: Mapping[tuple[int, str, str], int]) -> Query:
    """Add to the counts of (message, channel, category). In one order, so that two that count cannot deadlock."""
    return ADD_COUNTS(Table(_COUNT, [(*key, count) for key, count in sorted(counts.items()) if count]))


async def count_ended(tx: Transaction, deliveries: Iterable[tuple[int | None, str, str]], by: int = 1) -> None:
    """Deliveries (message, channel, status) that have ended; with `by=-1`, those that are to be sent again."""
    counts: Counter[tuple[int, str, str]] = Counter()
    for message_id, channel, status in deliveries:
        if message_id is not None and status in ENDED:
            counts[message_id, channel, status] += by
    if counts:
        await tx.execute(add_counts_query(counts))
