"""Chat against a model: rooms, sends and resends by several at once, changes, reads, joins, erasure, retention."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from bongsu.chat.rooms import NO_ROOM
from bongsu.errors import MessageDeleted, NoSuchMessage, NotInRoom, NotYourMessage
from bongsu.store.chat.removal import delete_old_messages, erase_chat
from bongsu.store.core.clock import find_now
from tests.conftest import SettingsMaker
from tests.support.chat import Chat, chatting
from tests.support.machines import StoreMachine, opened, run_machine
from tests.support.rows import set_columns

MEMBERS = ("a", "b", "c")
members = st.sampled_from(MEMBERS)
numbers = st.integers(0, 1)
DAY = timedelta(days=1)


@dataclass
class Message:
    sender: str | None
    client_id: str | None
    text: str | None


@dataclass
class ModelRoom:
    room_id: UUID
    # By seq, of those that are kept.
    messages: dict[int, Message] = field(default_factory=dict)
    last: int = 0
    # How far each member has read.
    marks: dict[str, int] = field(default_factory=dict)

    def unread(self, member: str) -> int:
        return sum(one.sender != member for seq, one in self.messages.items() if seq > self.marks[member])

    def find(self, sender: str, client_id: str) -> int | None:
        return next((seq for seq, one in self.messages.items() if (one.sender, one.client_id) == (sender, client_id)), None)


class ChatMachine(StoreMachine):
    """In two rooms that are new for each example."""

    tables = ("chat_messages", "chat_members", "chat_rooms")
    chat: Chat

    def __init__(self) -> None:
        super().__init__()
        self.rooms = [ModelRoom(self.run(self.chat.room("a", "b")), marks={"a": 0, "b": 0}) for _ in range(2)]

    @rule(sends=st.lists(st.tuples(numbers, members, st.integers(0, 12)), min_size=1, max_size=8))
    def messages_are_sent_at_once(self, sends: list[tuple[int, str, int]]) -> None:
        """Some were sent before, some twice at once, some by one who is not in the room."""

        async def send() -> list[Any]:
            tasks = [
                self.chat.order.send(self.rooms[number].room_id, sender, f"id-{own}", f"text-{place}", is_limited=False)
                for place, (number, sender, own) in enumerate(sends)
            ]
            return await asyncio.gather(*tasks, return_exceptions=True)

        for place, ((number, sender, own), answer) in enumerate(zip(sends, self.run(send()), strict=True)):
            room, client_id = self.rooms[number], f"id-{own}"
            if sender not in room.marks:
                assert isinstance(answer, NotInRoom)
                continue
            seq = room.find(sender, client_id)
            if seq is None:
                room.last = seq = room.last + 1
                room.messages[seq] = Message(sender, client_id, f"text-{place}")
            assert (answer.seq, answer.sender_id, answer.message) == (seq, sender, room.messages[seq].text)

    def change(self, room: ModelRoom, member: str, seq: int, work: Coroutine[Any, Any, Any]) -> bool:
        """Whether the change was allowed; that it was refused rightly if it was not."""
        found = room.messages.get(seq)
        try:
            self.run(work)
        except NotInRoom:
            assert member not in room.marks
        except NoSuchMessage:
            assert found is None
        except NotYourMessage:
            assert found is not None
            assert found.sender != member
        except MessageDeleted:
            assert found is not None
            assert found.text is None
        else:
            assert found is not None
            assert found.sender == member
            return True
        return False

    @rule(number=numbers, member=members, seq=st.integers(1, 15), text=st.sampled_from(("new", "newer")))
    def a_message_is_edited(self, number: int, member: str, seq: int, text: str) -> None:
        room = self.rooms[number]
        if self.change(room, member, seq, self.chat.order.edit(room.room_id, member, seq, text)):
            room.messages[seq].text = text

    @rule(number=numbers, member=members, seq=st.integers(1, 15))
    def a_message_is_deleted(self, number: int, member: str, seq: int) -> None:
        room = self.rooms[number]
        if self.change(room, member, seq, self.chat.order.delete(room.room_id, member, seq)):
            room.messages[seq].text = None

    @rule(number=numbers, member=members, seq=st.integers(0, 20))
    def messages_are_read(self, number: int, member: str, seq: int) -> None:
        room = self.rooms[number]
        if member not in room.marks:
            with pytest.raises(NotInRoom):
                self.run(self.chat.rooms.mark_read(member, room.room_id, seq))
            return
        mark = self.run(self.chat.rooms.mark_read(member, room.room_id, seq))
        first = min(room.messages, default=room.last + 1)
        # What is no longer there need not be read.
        if min(seq, room.last) > max(room.marks[member], first - 1):
            room.marks[member] = min(seq, room.last)
        assert (mark.read_seq, mark.last_seq, mark.unread) == (room.marks[member], room.last, room.unread(member))

    @rule(number=numbers, member=members)
    def a_member_is_added(self, number: int, member: str) -> None:
        room = self.rooms[number]
        self.run(self.chat.rooms.add(None, room.room_id, member))
        room.marks.setdefault(member, room.last)

    @rule(number=numbers, member=members)
    def a_member_is_removed(self, number: int, member: str) -> None:
        room = self.rooms[number]
        self.run(self.chat.rooms.remove(None, room.room_id, member))
        room.marks.pop(member, None)

    @rule(member=members, limit=st.integers(1, 4))
    def a_member_is_erased(self, member: str, limit: int) -> None:
        async def erase() -> None:
            while True:
                async with self.store.transaction() as tx:
                    erased = await erase_chat(tx, member, limit)
                if not erased.rooms and erased.messages < limit:
                    return

        self.run(erase())
        for room in self.rooms:
            room.marks.pop(member, None)
            for message in room.messages.values():
                if message.sender == member:
                    message.sender = message.client_id = message.text = None

    @rule(number=numbers, up_to=st.integers(1, 10), limit=st.integers(1, 4))
    def old_messages_are_deleted(self, number: int, up_to: int, limit: int) -> None:
        room = self.rooms[number]
        old = [seq for seq in room.messages if seq <= up_to]

        async def retain() -> None:
            await set_columns(self.store, "chat_messages", {"room_id": room.room_id, "seq": [0, *old]}, sent_at=-2 * DAY)
            after: Any = str(NO_ROOM)
            while after is not None:
                async with self.store.transaction() as tx:
                    after = (await delete_old_messages(tx, after, await find_now(tx) - DAY, limit)).after

        self.run(retain())
        for seq in old:
            del room.messages[seq]

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        async def look(room: ModelRoom) -> None:
            found = await self.chat.history.after(None, room.room_id, 0, 100)
            assert [(one.seq, one.sender_id, one.client_message_id, one.message) for one in found] == [
                (seq, one.sender, one.client_id, one.text) for seq, one in sorted(room.messages.items())
            ]
            # Without holes, up to the last one.
            assert [one.seq for one in found] == list(range(room.last + 1 - len(found), room.last + 1))
            for member in MEMBERS:
                mine = [one for one in await self.chat.rooms.of_member(member) if one.room_id == room.room_id]
                expected = [(room.last, room.marks[member], room.unread(member))] if member in room.marks else []
                assert [(one.last_seq, one.read_seq, one.unread) for one in mine] == expected

        for room in self.rooms:
            self.run(look(room))


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_chat_behaves_like_its_model(database: str, migrated_settings: SettingsMaker) -> None:
    with opened(ChatMachine, migrated_settings(database)):
        ChatMachine.chat = ChatMachine.enter(chatting(ChatMachine.store, ChatMachine.settings))
        run_machine(ChatMachine, few=20, steps=30)
