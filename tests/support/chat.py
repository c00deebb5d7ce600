"""Chat for tests: its parts on one store, and what is stored."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson

from bongsu.chat.fanout import Fanout
from bongsu.chat.history import History
from bongsu.chat.order import ChatOrder
from bongsu.chat.rooms import Rooms
from bongsu.chat.signals import read_signal
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import room_topic
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.chat.rooms import RoomOfMember


@dataclass
class Chat:
    store: Store
    order: ChatOrder
    rooms: Rooms
    history: History
    signals: LocalSignals
    frames: list[dict[str, Any]] = field(default_factory=list)
    # How often gateways were asked to read the store.
    reads: int = 0

    async def room(self, *member_ids: str, name: str = "room") -> UUID:
        """A new room with these members, whose frames are collected."""
        room = await self.rooms.create(None, name, member_ids)
        self._listening.enter_context(self.signals.listen(room_topic(room.room_id), self._on_frame))
        return room.room_id

    async def send(self, room_id: UUID, sender_id: str, *texts: str) -> list[int]:
        """Send texts one after the other, each its own clientMessageId; return their seqs."""
        return [(await self.order.send(room_id, sender_id, text, text, is_limited=False)).seq for text in texts]

    async def of(self, member_id: str, room_id: UUID) -> RoomOfMember:
        """The room as the member sees it."""
        (found,) = [room for room in await self.rooms.of_member(member_id) if room.room_id == room_id]
        return found

    _listening: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def _on_frame(self, data: bytes | None) -> None:
        if (signal := read_signal(data)) is not None:
            self.frames.extend(map(orjson.loads, signal.frames()))
        else:
            self.reads += 1


@contextlib.asynccontextmanager
async def chatting(store: Store, settings: Settings) -> AsyncIterator[Chat]:
    signals = LocalSignals()
    fanout = Fanout(signals)
    async with running(ChatOrder(store, fanout, settings)) as order:
        chat = Chat(store, order, Rooms(store, fanout), History(store), signals)
        with chat._listening:
            yield chat


def api_headers(settings: Settings) -> dict[str, str]:
    """Of a server call."""
    return {"Authorization": f"Bearer {Keys.load(settings).api_keys[0]}"}
