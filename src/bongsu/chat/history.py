"""History: the messages of a room by seq, in both directions."""

from __future__ import annotations

from uuid import UUID

from bongsu.chat.rooms import check_access
from bongsu.store import Store
from bongsu.store.chat import ChatMessage, messages
from bongsu.store.core.query import LARGEST_ID


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
