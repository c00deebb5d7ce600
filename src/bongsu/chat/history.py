"""History: the messages of a room by seq, in both directions, and what has changed since a reader left."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from bongsu.chat.rooms import check_access
from bongsu.store import Store
from bongsu.store.chat import ChatMessage, messages
from bongsu.store.core.query import LARGEST_ID


@dataclass(frozen=True)
class Missed:
    """What a reader who has seen everything up to a seq has missed: changes of messages up to it, and messages after it."""

    changed: list[ChatMessage]
    messages: list[ChatMessage]


class History:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def after(self, caller: str | None, room_id: UUID, seq: int, limit: int) -> list[ChatMessage]:
        """The messages after a seq, ascending."""
        async with self._store.read() as tx:
            await check_access(tx, room_id, caller)
            return await messages.find_after(tx, room_id, seq, limit)

    async def before(self, caller: str | None, room_id: UUID, seq: int | None = None, limit: int = 50) -> list[ChatMessage]:
        """The last messages before a seq, ascending; without one, the last of the room."""
        async with self._store.read() as tx:
            await check_access(tx, room_id, caller)
            return await messages.find_before(tx, room_id, LARGEST_ID if seq is None else seq, limit)

    async def missed(self, member_id: str, room_id: UUID, seq: int, limit: int) -> Missed:
        """For a reader who comes back: at most `limit` of each. The reader goes on from the last message with `after`.

        Changes are read first: one that is made between the two statements is of a message that is read with it, or is
        announced after.
        """
        async with self._store.read() as tx:
            await check_access(tx, room_id, member_id)
            changed = await messages.find_changed(tx, room_id, seq, limit)
            return Missed(changed, await messages.find_after(tx, room_id, seq, limit))
