"""Retention and erasure of chat: a room keeps its order, and its members their exact unread counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from bongsu.clock.jobs.retain import retain_job
from bongsu.clock.runs import Runs
from bongsu.desk.erase import Erasures
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.chat import messages
from bongsu.store.chat.removal import delete_empty_rooms
from bongsu.store.core.clock import find_now
from tests.support.chat import Chat, chatting
from tests.support.decisions import rows
from tests.support.rows import add_chat_room, add_row, set_columns
from tests.support.runs import LEASE_SECONDS

DAYS = 30


@pytest.fixture
async def chat(store: Store, settings: Settings) -> AsyncIterator[Chat]:
    async with chatting(store, settings) as chat:
        yield chat


async def make_old(store: Store, room: UUID, up_to: int) -> None:
    await set_columns(
        store, "chat_messages", {"room_id": room, "seq": list(range(1, up_to + 1))}, sent_at=timedelta(days=-DAYS - 1)
    )


async def retain(store: Store, settings: Settings, days: int = DAYS, batch: int = 3) -> dict[str, int]:
    kept = settings.model_copy(update={"chat_retention_days": days})
    ended = await Runs(store, LEASE_SECONDS).run_by_hand(retain_job(kept, batch), "cli:tester")
    assert ended.raised is None
    return dict(ended.run.counts)


@pytest.mark.parametrize("batch", [1, 3, 500])
async def test_old_messages_go_and_the_counts_are_still_exact(
    chat: Chat, store: Store, settings: Settings, batch: int
) -> None:
    rooms = [await chat.room("a", "b", "c") for _ in range(5)]
    for room in rooms[1:4]:
        await chat.send(room, "a", "1", "2", "3")
        await chat.send(room, "b", "4", "5")
        await chat.send(room, "a", "6", "7")
    old, kept = rooms[1], rooms[2]
    await chat.rooms.mark_read("a", old, 2)
    await chat.rooms.mark_read("c", old, 6)
    await make_old(store, old, 5)
    await make_old(store, rooms[3], 7)
    assert await retain(store, settings, batch=batch) == {"chat messages": 12}
    assert [one.seq for one in await chat.history.after("a", old, 0, 10)] == [6, 7]
    assert [one.seq for one in await chat.history.after("a", kept, 0, 10)] == [1, 2, 3, 4, 5, 6, 7]
    unread = {member: (await chat.of(member, old)).unread for member in "abc"}
    assert unread == {"a": 0, "b": 2, "c": 1}
    # The order goes on where it was, also where nothing is left.
    assert await chat.send(old, "b", "8") == [8]
    assert await chat.send(rooms[3], "b", "8") == [8]
    assert [(await chat.of(member, old)).unread for member in "abc"] == [1, 2, 2]
    assert [(await chat.of(member, rooms[3])).unread for member in "abc"] == [1, 0, 1]
    assert (await chat.rooms.mark_read("a", old, 6)).unread == 1
    assert (await chat.rooms.mark_read("a", old, 8)).unread == 0
    assert (await chat.of("a", old)).first_seq == 6


async def test_chat_is_kept_for_ever_unless_it_is_decided_otherwise(chat: Chat, store: Store, settings: Settings) -> None:
    room = await chat.room("a")
    await chat.send(room, "a", "1", "2")
    await make_old(store, room, 1)
    assert settings.chat_retention_days == 0
    assert await retain(store, settings, days=0) == {}
    # What is younger than the days stays, and so does everything behind it.
    await set_columns(store, "chat_messages", {"room_id": room, "seq": 1}, sent_at=timedelta(days=-DAYS + 1))
    assert await retain(store, settings) == {}
    assert len(await chat.history.before("a", room)) == 2


@pytest.mark.parametrize("batch", [1, 2, 500])
async def test_an_erased_member_leaves_all_rooms_and_their_messages_keep_the_places(
    chat: Chat, store: Store, settings: Settings, batch: int
) -> None:
    rooms = [await chat.room("gone", "b") for _ in range(3)]
    left = await chat.room("gone", "b")
    for room in (*rooms, left):
        await chat.send(room, "gone", "secret-1", "secret-2")
        await chat.send(room, "b", "kept")
    await chat.order.delete(left, "gone", 1)
    await chat.rooms.remove(None, left, "gone")
    chat.frames.clear()
    run = await Erasures(store, chat.signals, LEASE_SECONDS, batch).erase("gone", "cli:tester")
    assert sorted(frame["roomId"] for frame in chat.frames) == sorted(map(str, rooms))
    assert {(frame["op"], frame["memberId"]) for frame in chat.frames} == {("left", "gone")}
    assert (run.counts["chat rooms"], run.counts["chat messages"]) == (3, 8)
    for room in (*rooms, left):
        found = await chat.history.before("b", room)
        assert [(one.seq, one.sender_id, one.message) for one in found] == [
            (1, None, None),
            (2, None, None),
            (3, "b", "kept"),
        ]
        assert all(one.deleted_at is not None and one.client_message_id is None for one in found[:2])
        # Readers who come back learn of it as of any deletion.
        async with store.read() as tx:
            assert [one.seq for one in (await messages.find_changed(tx, room, 3, 10))[0]] == [1, 2]
        assert (await chat.of("b", room)).unread == 2
        assert await chat.send(room, "b", "next") == [4]
    assert await rows(store, "SELECT * FROM bongsu_chat_members WHERE member_id = 'gone'") == []
    assert await rows(store, "SELECT * FROM bongsu_chat_messages WHERE sender_id = 'gone'") == []
    # Whoever comes back under the same id is somebody else.
    await chat.rooms.add(None, left, "gone")
    assert await chat.send(left, "gone", "secret-1") == [5]


async def test_a_room_of_the_builder_has_its_members(store: Store, settings: Settings) -> None:
    async with store.transaction() as tx:
        room = await add_chat_room(tx, "a", "b", last_seq=2)
        for seq in (1, 2):
            row: dict[str, Any] = {"room_id": room, "seq": seq, "sender_id": "a", "client_message_id": str(seq)}
            await add_row(tx, "chat_messages", **row, sent_at=datetime(2026, 1, seq, tzinfo=UTC))
    async with chatting(store, settings) as chat:
        assert (await chat.of("b", room)).unread == 0
        assert await chat.send(room, "b", "3") == [3]
        assert (await chat.of("a", room)).unread == 1


@pytest.mark.parametrize("batch", [1, 2, 500])
async def test_a_room_is_deleted_a_while_after_its_last_member_has_left(chat: Chat, store: Store, batch: int) -> None:
    rooms = [await chat.room("a") for _ in range(4)]
    for room in rooms:
        await chat.send(room, "a", "one", "two", "three")
    left, again, lately, kept = sorted(rooms, key=str)
    for room in (left, again, lately):
        await chat.rooms.remove("a", room, "a")
    never = await chat.room()
    await set_columns(store, "chat_rooms", {"room_id": [left, again]}, emptied_at=timedelta(days=-31))
    await set_columns(store, "chat_rooms", {"room_id": never}, last_sent_at=timedelta(days=-31))
    await chat.rooms.add(None, again, "b")
    await chat.rooms.remove(None, again, "b")

    async def delete() -> Counter[str]:
        counts: Counter[str] = Counter()
        after: Any = None
        is_more = True
        while is_more:
            async with store.transaction() as tx:
                cutoff = await find_now(tx) - timedelta(days=30)
                deleted = await delete_empty_rooms(tx, after, cutoff, batch)
            counts += deleted.counts
            after, is_more = deleted.after, deleted.after is not None
        return counts

    assert await delete() == {"chat rooms": 2, "chat messages": 3}
    found = await rows(store, "SELECT room_id FROM bongsu_chat_rooms")
    assert {str(row["room_id"]) for row in found} == {str(room) for room in (again, lately, kept)}
    found = await rows(store, "SELECT DISTINCT room_id FROM bongsu_chat_messages")
    assert {str(row["room_id"]) for row in found} == {str(room) for room in (again, lately, kept)}
    assert await delete() == {}
