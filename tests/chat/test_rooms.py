"""Rooms: who is in them, who adds and removes whom, read marks that only move forward, exact unread counts."""

from __future__ import annotations

from uuid import uuid4

import pytest

from bongsu.chat import rooms as the_rooms
from bongsu.errors import NoSuchRoom, NotInRoom, TooManyRooms
from bongsu.runtime.topics import member_topic
from bongsu.store.chat.rooms import ReadMark
from tests.support.chat import Chat
from tests.support.waiting import until_later


async def members(chat: Chat, room: object) -> list[str]:
    return [one.member_id for one in await chat.rooms.members(None, room, "", 100)]  # type: ignore[arg-type]


async def test_a_member_who_creates_a_room_is_in_it_and_nobody_is_in_it_twice(chat: Chat) -> None:
    room = await chat.rooms.create("a", "mine", ["b", "a", "b"])
    assert (room.name, room.member_ids) == ("mine", ["a", "b"])
    assert await members(chat, room.room_id) == ["a", "b"]
    assert await members(chat, await chat.room("b")) == ["b"]


async def test_members_add_anybody_and_remove_themselves_and_servers_do_both(chat: Chat) -> None:
    room = await chat.room("a", "b")
    for stranger in ("c", "d"):
        with pytest.raises(NotInRoom):
            await chat.rooms.add("c", room, stranger)
        with pytest.raises(NotInRoom):
            await chat.rooms.remove("c", room, stranger)
    with pytest.raises(NotInRoom, match="Members remove themselves"):
        await chat.rooms.remove("a", room, "b")
    await chat.rooms.add("a", room, "c")
    await chat.rooms.add(None, room, "d")
    await chat.rooms.remove("b", room, "b")
    await chat.rooms.remove(None, room, "c")
    for _ in range(2):
        await chat.rooms.add(None, room, "a")
        await chat.rooms.remove(None, room, "nobody")
    assert await members(chat, room) == ["a", "d"]
    assert [(frame["op"], frame["memberId"]) for frame in chat.frames] == [
        ("joined", "c"), ("joined", "d"), ("left", "b"), ("left", "c"),
    ]  # fmt: skip


async def test_a_members_own_connections_learn_of_rooms_they_join(chat: Chat) -> None:
    heard: list[bytes | None] = []
    with chat.signals.listen(member_topic("a"), heard.append):
        room = (await chat.rooms.create(None, "r", ["a", "b"])).room_id
        other = await chat.room("b")
        await chat.send(other, "b", "one", "two")
        await chat.rooms.add("b", other, "a")
    assert heard == [
        f'jj{seq} 0\n{{"op":"joined","roomId":"{joined}","memberId":"a"}}'.encode()
        for joined, seq in ((room, 0), (other, 2))
    ]


async def test_one_who_left_reads_and_writes_nothing_any_more(chat: Chat) -> None:
    room = await chat.room("a", "b")
    await chat.send(room, "a", "one")
    await chat.rooms.remove(None, room, "a")
    for call in (
        chat.history.before("a", room),
        chat.history.after("a", room, 0, 10),
        chat.rooms.state("a", room),
        chat.rooms.members("a", room, "", 10),
        chat.rooms.mark_read("a", room, 1),
        chat.rooms.mute("a", room, True),
        chat.rooms.add("a", room, "a"),
        chat.rooms.remove("a", room, "a"),
        chat.order.send(room, "a", "one", "one"),
    ):
        with pytest.raises(NotInRoom):
            await call
    assert await chat.rooms.of_member("a") == []


async def test_an_unknown_room_is_unknown_to_a_server_and_not_a_members_own(chat: Chat) -> None:
    for caller, error in ((None, NoSuchRoom), ("a", NotInRoom)):
        for call in (
            chat.history.before(caller, uuid4()),
            chat.rooms.members(caller, uuid4(), "", 10),
            chat.rooms.add(caller, uuid4(), "a"),
            chat.rooms.remove(caller, uuid4(), "a"),
        ):
            with pytest.raises(error):
                await call
    assert the_rooms.as_room_id("no uuid") == the_rooms.NO_ROOM


async def test_a_member_can_be_in_so_many_rooms(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(the_rooms, "ROOMS_PER_MEMBER", 2)
    rooms = [await chat.room("a"), await chat.room("a", "b")]
    with pytest.raises(TooManyRooms, match="a is in 2 rooms"):
        await chat.room("c", "a")
    room = await chat.room("c")
    with pytest.raises(TooManyRooms):
        await chat.rooms.add(None, room, "a")
    # Where they are already, nothing changes; after leaving one, there is room.
    await chat.rooms.add(None, rooms[0], "a")
    await chat.rooms.remove("a", rooms[0], "a")
    await chat.rooms.add(None, room, "a")


# --- reading ----------------------------------------------------------------------------------------------------------


async def test_unread_are_the_messages_of_others_after_the_read_mark(chat: Chat) -> None:
    room = await chat.room("a", "b")
    await chat.send(room, "a", "1", "2")
    await chat.send(room, "b", "3")
    await chat.send(room, "a", "4")
    assert ((await chat.of("a", room)).unread, (await chat.of("b", room)).unread) == (1, 3)
    assert await chat.rooms.mark_read("b", room, 1) == ReadMark(1, 4, 2, has_moved=True)
    assert await chat.rooms.mark_read("b", room, 3) == ReadMark(3, 4, 1, has_moved=True)
    # It never moves back, nor beyond the last message.
    assert await chat.rooms.mark_read("b", room, 2) == ReadMark(3, 4, 1, has_moved=False)
    assert await chat.rooms.mark_read("b", room, 99) == ReadMark(4, 4, 0, has_moved=True)
    await chat.send(room, "b", "5")
    assert ((await chat.of("a", room)).unread, (await chat.of("b", room)).unread) == (2, 0)
    await chat.send(room, "a", "6")
    found = await chat.of("b", room)
    assert (found.last_seq, found.read_seq, found.unread) == (6, 4, 1)
    assert [(frame["memberId"], frame["seq"]) for frame in chat.frames if frame["op"] == "read"] == [
        ("b", 1), ("b", 3), ("b", 4),
    ]  # fmt: skip


@pytest.mark.parametrize("senders", ["ababbabaab", "aaaaaabbbb", "bbbbbaaaaa"])
async def test_reading_a_part_counts_own_messages_on_both_sides_of_the_mark(chat: Chat, senders: str) -> None:
    room = await chat.room("a", "b")
    for number, sender in enumerate(senders):
        await chat.send(room, sender, str(number))
    for seq in (1, 3, 4, 8, 9, 10):
        for member, other in ("ab", "ba"):
            mark = await chat.rooms.mark_read(member, room, seq)
            assert mark.unread == senders[seq:].count(other)
            assert (await chat.of(member, room)).unread == mark.unread


async def test_a_new_member_finds_the_history_and_nothing_unread(chat: Chat) -> None:
    room = await chat.room("a")
    await chat.send(room, "a", "1", "2")
    await chat.rooms.add("a", room, "b")
    found = await chat.of("b", room)
    assert (found.last_seq, found.read_seq, found.unread) == (2, 2, 0)
    assert len(await chat.history.before("b", room)) == 2
    # Also one who was there before, and has left things unread and own ones after the mark.
    await chat.send(room, "b", "3")
    await chat.send(room, "a", "4")
    await chat.rooms.remove("b", room, "b")
    await chat.rooms.add("a", room, "b")
    assert (await chat.of("b", room)).unread == 0
    await chat.send(room, "a", "5")
    assert (await chat.of("b", room)).unread == 1


async def test_rooms_are_listed_by_their_newest_message_and_can_be_muted(chat: Chat) -> None:
    first, second, third = [await chat.room("a", "b", name=name) for name in ("1", "2", "3")]
    await until_later(chat.store)
    await chat.send(second, "b", "x")
    await until_later(chat.store)
    await chat.send(first, "b", "x")
    await chat.rooms.mute("a", second, True)
    found = await chat.rooms.of_member("a")
    assert [(room.room_id, room.name, room.unread, room.is_muted) for room in found] == [
        (first, "1", 1, False), (second, "2", 1, True), (third, "3", 0, False),
    ]  # fmt: skip
    await chat.rooms.mute("a", second, False)
    assert not (await chat.of("a", second)).is_muted
    assert not (await chat.of("b", second)).is_muted


async def test_the_history_is_read_in_both_directions(chat: Chat) -> None:
    room = await chat.room("a")
    await chat.send(room, "a", *map(str, range(1, 11)))

    async def seqs(**asked: int) -> list[int]:
        if "after" in asked:
            return [one.seq for one in await chat.history.after("a", room, asked["after"], asked["limit"])]
        return [one.seq for one in await chat.history.before("a", room, asked.get("before"), asked["limit"])]

    assert await seqs(limit=3) == [8, 9, 10]
    assert await seqs(before=8, limit=3) == [5, 6, 7]
    assert await seqs(before=2, limit=3) == [1]
    assert await seqs(before=1, limit=3) == []
    assert await seqs(after=0, limit=3) == [1, 2, 3]
    assert await seqs(after=8, limit=3) == [9, 10]
    assert await seqs(after=10, limit=3) == []
