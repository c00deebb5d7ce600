"""Campaigns to be cancelled, and what must hold of their rows whatever happens meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from bongsu.model import Channel, Everyone, NoticeType
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import same
from bongsu.store.desk import cancel_steps, cancellations
from bongsu.store.desk.cancel_steps import Step
from bongsu.store.desk.cancellations import Cancellation, NothingLeft
from tests.support.decisions import add_members, decide, rows, rules_notifying, trigger_event, unread_is_exact
from tests.support.rows import add_device_for_each

SALE = NoticeType("SALE", (Channel.PUSH, Channel.IN_APP), duplicate_hours=0)
ENDED = ("SUCCESS", "FAIL", "UNKNOWN", "CANCELLED")


async def add_members_with_devices(store: Store, count: int) -> list[str]:
    """So many members with a device each. Their ids."""
    ids = [f"m{number:05}" for number in range(count)]
    await add_members(store, *ids)
    async with store.transaction() as tx:
        await add_device_for_each(tx, "members")
    return ids


async def decide_campaign(
    store: Store, settings: Settings, count: int, chunk: int = 10_000, kind: NoticeType = SALE, **decided: Any
) -> UUID:
    """A push to so many members, all decided. With more than `chunk` of them it is bulk, and its counts are kept."""
    await add_members_with_devices(store, count)
    event = trigger_event()
    await decide(store, settings, rules_notifying(Everyone(), kind), event, chunk=chunk, **decided)
    return event.event_id


async def request_cancel(
    store: Store, event_id: UUID, who: str = "key:…abcd", *, withdraw: bool = False
) -> Cancellation | NothingLeft | None:
    async with store.transaction() as tx:
        return await cancellations.begin(tx, event_id, who, withdraw=withdraw)


async def cancel_counts(store: Store, event_id: UUID, *, withdraw: bool = False) -> tuple[int, int, int]:
    """Its figures: cancelled, sent, withdrawn."""
    done = await request_cancel(store, event_id, withdraw=withdraw)
    assert isinstance(done, Cancellation)
    return done.cancelled, done.sent, done.withdrawn


async def run_cancel_steps(store: Store, limit: int = 5_000) -> list[Step]:
    """All steps of all open cancellations."""
    steps: list[Step] = []
    while True:
        step = await cancel_steps.step(store, limit)
        if step is None:
            return steps
        steps.append(step)


async def statuses(store: Store) -> Counter[str]:
    """How many deliveries have which status."""
    found = await rows(store, "SELECT status, count(*) AS count FROM bongsu_deliveries GROUP BY status")
    return Counter({row["status"]: row["count"] for row in found})


async def event_status(store: Store, event_id: UUID) -> str:
    ((status,),) = await rows(store, "SELECT status FROM bongsu_events WHERE event_id = $1", event_id)
    return str(status)


async def in_inboxes(store: Store) -> int:
    ((count,),) = await rows(store, "SELECT count(*) FROM bongsu_notifications WHERE channels & 8 <> 0")
    return int(count)


async def counts_are_exact(store: Store) -> bool:
    """Whether unread counts are the numbers of unread rows, and kept counts the numbers of deliveries and recipients."""
    return await unread_is_exact(store) and await kept_counts(store) == await expected_counts(store)


async def kept_counts(store: Store) -> Counter[tuple[int, str, str]]:
    found = await rows(
        store, "SELECT message_id, channel, category, count FROM bongsu_message_counts WHERE category <> 'IN_INBOX'"
    )
    return +Counter({(row["message_id"], row["channel"], row["category"]): row["count"] for row in found})


async def expected_counts(store: Store) -> Counter[tuple[int, str, str]]:
    """What the kept counts of large messages must be, row by row."""
    counts: Counter[tuple[int, str, str]] = Counter()
    for message_id, channel, status in await _of_bulk(store, "d.message_id, d.channel, d.status", "deliveries AS d"):
        counts[message_id, channel, "MADE"] += 1
        counts[message_id, channel, status] += status in ENDED
    for (message_id,) in await _of_bulk(store, "d.message_id", "notifications AS d"):
        counts[message_id, "", "NOTIFIED"] += 1
    for message_id, reason in await _of_bulk(store, "d.message_id, d.reason", "suppressions AS d"):
        counts[message_id, "", reason] += 1
    return +counts


async def _of_bulk(store: Store, columns: str, table: str) -> Sequence[Any]:
    query = f"SELECT {columns} FROM bongsu_{table} JOIN bongsu_messages AS m ON m.message_id = d.message_id WHERE m.is_bulk"
    return await rows(store, query)


async def run_statement(store: Store, statement: str, *parameters: Any) -> None:
    async with store.transaction() as tx:
        await tx.execute(same(statement)(*parameters))
