"""The dead letters of the store: failed and unhandled events, failed and unknown deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from bongsu.chat.fanout import Fanout
from bongsu.clock.run import Run
from bongsu.desk.dead_filter import DeadFilter
from bongsu.desk.dead_letters import DeadLetter, LetterPage
from bongsu.errors import NoSuchDeadLetter
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import DELIVERIES_TOPIC, EVENTS_TOPIC
from bongsu.store import Store
from bongsu.store.chat.dead_letters import CHAT_MESSAGE_SENT
from bongsu.store.chat.dead_letters import replay as replay_chat
from bongsu.store.desk import dead_letters as statements
from bongsu.store.desk.dead_letters import DeadRow, Filters, Kind, PageCursor, State
from bongsu.store.desk.dead_replay import replay as replay_dead
from bongsu.store.desk.delivery_history import find_attempts
from bongsu.store.members import find_member
from bongsu.store.members.devices import find_devices
from bongsu.store.messages.content import find_content

# Rows that one transaction replays.
BATCH = 1_000
# A replay of more is bulk.
FEW_REPLAYED = 100


class StoreDeadLetters:
    """A DeadLetterSource."""

    def __init__(self, store: Store, signals: Signals, batch: int = BATCH) -> None:
        self._store = store
        self._signals = signals
        self._batch = batch

    async def list(self, asked: DeadFilter, after: PageCursor | None, limit: int) -> LetterPage:
        async with self._store.read() as tx:
            return LetterPage(*await statements.find_page(tx, asked.filters, after, limit))

    async def show(self, dead_id: int | UUID) -> DeadLetter:
        async with self._store.read() as tx:
            rows, _ = await statements.find_page(tx, Filters(id=dead_id), limit=1)
            if not rows:
                raise NoSuchDeadLetter(f"There is no dead letter {dead_id}")
            row = rows[0]
            if row.message_id is None or row.member_id is None:
                return DeadLetter(row)
            contents = await find_content(tx, [row.message_id])
            attempts = await find_attempts(tx, [int(row.id)])
            member = await find_member(tx, row.member_id)
            devices = {device.device_id: device for device in await find_devices(tx, row.member_id)}
        return DeadLetter(
            row, contents.get(row.message_id), attempts.get(int(row.id), ()), member, devices.get(row.device_id or "")
        )

    async def count(self, asked: DeadFilter) -> int:
        return await count_dead(self._store, _filters_of_replay(asked))

    async def replay_step(self, asked: DeadFilter, run: Run) -> bool:
        """Workers are woken after each batch."""
        after = _read_cursor(run.cursor)
        if after is None:
            return False
        async with run.step() as step:
            rows, end = await statements.find_page(step, _filters_of_replay(asked), after, self._batch)
            # Many at once go behind everything else that is to be sent, unless they are critical.
            is_bulk = run.counts["matched"] + len(rows) > FEW_REPLAYED
            chat, others = _split(rows)
            messages = await replay_chat(step, [row.event_id for row in chat])
            replayed = await replay_dead(step, others, new_series=run.input["newCollapseId"], is_bulk=is_bulk)
            counts = {"matched": len(rows), "replayed": messages.stored + replayed}
            step.save(cursor=_END if end is None else _write_cursor(end), counts=counts, done=len(rows))
        _wake(self._signals, {row.kind for row in others})
        for room_id in {message.room_id for message in messages.new}:
            Fanout(self._signals).changed(room_id)
        return True


async def count_dead(store: Store, filters: Filters) -> int:
    """How many match. Each part is a read of its own, so that a long search keeps no connection."""
    total, after = 0, None
    while True:
        async with store.read() as tx:
            matched, after = await statements.count_page(tx, filters, after)
        total += matched
        if after is None:
            return total


def _filters_of_replay(asked: DeadFilter) -> Filters:
    """Cancelled events are replayed only by a filter that names them."""
    is_named = asked.event_id is not None or asked.id is not None
    return replace(asked.filters, with_cancelled=is_named)


def _split(rows: Sequence[DeadRow]) -> tuple[list[DeadRow], list[DeadRow]]:
    """Chat messages that could not be stored, which a replay stores itself; and all others."""
    parts: tuple[list[DeadRow], list[DeadRow]] = ([], [])
    for row in rows:
        is_chat = row.kind is Kind.EVENT and row.state is State.FAILED and row.type == CHAT_MESSAGE_SENT
        parts[not is_chat].append(row)
    return parts


# The cursor of a replay that has seen all.
_END = "end"


def _write_cursor(after: PageCursor) -> dict[str, Any]:
    return {
        "kind": after.kind.value,
        "finishedAt": after.finished_at.isoformat(),
        "eventId": str(after.event_id),
        "deliveryId": after.delivery_id,
    }


def _read_cursor(saved: Any) -> PageCursor | None:
    if saved is None:
        return PageCursor()
    if saved == _END:
        return None
    finished_at = datetime.fromisoformat(saved["finishedAt"])
    return PageCursor(Kind(saved["kind"]), finished_at, UUID(saved["eventId"]), saved["deliveryId"])


def _wake(signals: Signals, kinds: set[Kind]) -> None:
    for kind, topic in ((Kind.EVENT, EVENTS_TOPIC), (Kind.DELIVERY, DELIVERIES_TOPIC)):
        if kind in kinds:
            signals.send(topic)
