"""Pushes about chat against a model: who is pushed what, in any order of messages, reads, mutes, departures and looks."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.conftest import SettingsMaker
from tests.support.chat import chatting
from tests.support.chat_push import Pushing
from tests.support.machines import StoreMachine, opened, run_machine

MEMBERS = ("a", "b", "c")
members = st.sampled_from(MEMBERS)


@dataclass
class ModelMember:
    read: int = 0
    pushed: int = 0
    is_muted: bool = False


@dataclass
class ModelRoom:
    """What was sent, by seq: the sender, and whether it is still there."""

    messages: dict[int, tuple[str, bool]] = field(default_factory=dict)
    members: dict[str, ModelMember] = field(default_factory=lambda: {one: ModelMember() for one in MEMBERS})
    waiting: set[str] = field(default_factory=set)
    looked: int = 0
    is_marked: bool = False

    @property
    def last(self) -> int:
        return len(self.messages)

    def unread(self, name: str, after: int) -> list[int]:
        """The messages of others after a seq that are still there."""
        return [seq for seq, (sender, is_there) in self.messages.items() if seq > after and sender != name and is_there]


class PushMachine(StoreMachine):
    """In a room that is new for each example."""

    tables = (
        "deliveries", "notifications", "digest_entries", "digests", "suppressions", "messages", "events", "chat_messages",
        "chat_members", "chat_rooms",
    )  # fmt: skip
    pushing: Pushing

    def __init__(self) -> None:
        super().__init__()
        self.pushing.presence.connected = set()
        self.room_id = self.run(self.pushing.chat.room(*MEMBERS))
        self.model = ModelRoom()

    @rule(sender=members, count=st.integers(1, 3))
    def messages_are_sent(self, sender: str, count: int) -> None:
        if sender not in self.model.members:
            return
        for _ in range(count):
            seq = self.model.last + 1
            self.run(self.pushing.chat.send(self.room_id, sender, str(seq)))
            self.model.messages[seq] = sender, True
        self.model.is_marked = True

    @rule(name=members, back=st.integers(0, 2))
    def a_member_reads(self, name: str, back: int) -> None:
        seq = self.model.last - back
        if name in self.model.members and seq > 0:
            self.run(self.pushing.chat.rooms.mark_read(name, self.room_id, seq))
            self.model.members[name].read = max(self.model.members[name].read, seq)

    @rule(name=members)
    def a_member_mutes_the_room_or_not_any_more(self, name: str) -> None:
        if (member := self.model.members.get(name)) is not None:
            member.is_muted = not member.is_muted
            self.run(self.pushing.chat.rooms.mute(name, self.room_id, member.is_muted))

    @rule(name=members)
    def a_member_leaves_or_joins(self, name: str) -> None:
        rooms = self.pushing.chat.rooms
        if self.model.members.pop(name, None) is not None:
            self.run(rooms.remove(None, self.room_id, name))
        else:
            self.run(rooms.add(None, self.room_id, name))
            self.model.members[name] = ModelMember(read=self.model.last)

    @rule(name=members)
    def a_member_connects_or_disconnects(self, name: str) -> None:
        assert self.pushing.presence.connected is not None
        self.pushing.presence.connected ^= {name}

    @rule(back=st.integers(0, 2))
    def a_message_is_deleted(self, back: int) -> None:
        sender, is_there = self.model.messages.get(self.model.last - back, ("", False))
        if is_there and sender in self.model.members:
            self.run(self.pushing.chat.order.delete(self.room_id, sender, self.model.last - back))
            self.model.messages[self.model.last - back] = sender, False

    @rule()
    def the_room_is_looked_at(self) -> None:
        self.run(self.pushing.look())
        self.run(self.pushing.decide())
        connected = self.pushing.presence.connected or set()
        for name, member in self.model.members.items() if self.model.is_marked else ():
            wanted = self.model.unread(name, max(member.read, member.pushed)) and not member.is_muted
            if wanted and name not in self.model.waiting and name not in connected:
                self.model.waiting.add(name)
                member.pushed = self.model.last
        has_new = self.model.last > self.model.looked
        left_out = [
            name
            for name, member in self.model.members.items()
            if name in connected
            and name not in self.model.waiting
            and not member.is_muted
            and self.model.unread(name, max(member.read, member.pushed))
        ]
        self.model.is_marked = self.model.is_marked and has_new and bool(left_out)
        self.model.looked = self.model.last

    @rule()
    def what_waits_is_sent(self) -> None:
        sent = self.run(self.pushing.deliver())
        expected = {}
        for name in self.model.waiting:
            member = self.model.members.get(name)
            if member is not None and not member.is_muted and (unread := self.model.unread(name, member.read)):
                count = sum(seq > member.read and sender != name for seq, (sender, _) in self.model.messages.items())
                expected[name] = unread[-1], count
        assert {one.member_id: (one.data["seq"], one.data["count"]) for one in sent} == expected
        assert len(sent) == len(expected)
        self.model.waiting.clear()


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_pushes_about_chat_behave_like_their_model(database: str, migrated_settings: SettingsMaker) -> None:
    with opened(PushMachine, migrated_settings(database)):
        chat = PushMachine.enter(chatting(PushMachine.store, PushMachine.settings))
        PushMachine.pushing = Pushing(chat, PushMachine.settings)
        PushMachine.run(PushMachine.pushing.add_members(*MEMBERS))
        run_machine(PushMachine, few=10, steps=25)
