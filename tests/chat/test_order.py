"""Sending: seqs without holes in the order of arrival, one place per clientMessageId, and who may change what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from bongsu.chat import order as the_order
from bongsu.desk.dead_filter import DeadFilter
from bongsu.desk.erase import Erasures
from bongsu.errors import (
    BadChatMessage,
    ChatRateLimited,
    MessageDeleted,
    NoSuchMessage,
    NotInRoom,
    NotYourMessage,
    StoreBusy,
    StoreUnreachable,
)
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.chat import messages as statements
from bongsu.store.desk.dead_letters import DeadRow
from tests.support.chat import Chat, chatting
from tests.support.replays import dead_letters
from tests.support.rows import NOW, add_event
from tests.support.runs import LEASE_SECONDS


async def test_messages_get_the_next_seq_and_are_announced_in_order(chat: Chat) -> None:
    room = await chat.room("a", "b")
    assert await chat.send(room, "a", "one", "two") == [1, 2]
    assert await chat.send(room, "b", "three") == [3]
    found = await chat.history.before("a", room)
    assert [(one.seq, one.sender_id, one.message) for one in found] == [(1, "a", "one"), (2, "a", "two"), (3, "b", "three")]
    assert [one.sent_at for one in found] == sorted(one.sent_at for one in found)
    assert chat.frames[0] == {
        "op": "message", "roomId": str(room), "seq": 1, "senderId": "a", "message": "one", "clientMessageId": "one",
        "sentAt": found[0].sent_at.isoformat(),
    }  # fmt: skip
    assert [frame["seq"] for frame in chat.frames] == [1, 2, 3]


async def test_sends_that_come_together_share_a_commit_and_keep_each_senders_order(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    add = statements.add_messages

    async def counted(tx: Any, sends: Any) -> Any:
        batches.append(len(sends))
        return await add(tx, sends)

    monkeypatch.setattr(statements, "add_messages", counted)
    rooms = [await chat.room("a", "b", "c") for _ in range(2)]
    sends = [(room, sender, f"{sender}-{number}") for number in range(20) for sender in "abc" for room in rooms]
    seqs = await asyncio.gather(*(chat.send(*send) for send in sends))
    assert len(batches) < len(sends) / 4
    for room in rooms:
        found = await chat.history.before(None, room, limit=100)
        assert [one.seq for one in found] == list(range(1, 61))
        for sender in "abc":
            own = [one.message for one in found if one.sender_id == sender]
            assert own == [f"{sender}-{number}" for number in range(20)]
        mine = {one.message: one.seq for one in found}
        assert all([mine[text]] == seq for (in_room, _, text), seq in zip(sends, seqs, strict=True) if in_room == room)


async def test_the_same_client_message_id_gives_the_same_answer_whatever_its_text(chat: Chat) -> None:
    room, other = await chat.room("a", "b"), await chat.room("a", "b")
    first = await chat.order.send(room, "a", "id", "text")
    again = await chat.order.send(room, "a", "id", "another text")
    assert again == first
    together = await asyncio.gather(*(chat.order.send(room, "a", "id-2", text) for text in ("x", "y", "z")))
    assert {one.seq for one in together} == {2}
    assert {one.message for one in together} == {"x"}
    # Of another sender, and in another room, it is another message.
    assert (await chat.order.send(room, "b", "id", "text")).seq == 3
    assert (await chat.order.send(other, "a", "id", "text")).seq == 1
    assert [frame["seq"] for frame in chat.frames if frame["roomId"] == str(room)] == [1, 2, 3]
    await chat.order.edit(room, "a", 1, "edited")
    assert (await chat.order.send(room, "a", "id", "text")).message == "edited"


async def test_a_send_of_one_who_is_not_in_the_room_fails_alone(chat: Chat) -> None:
    room = await chat.room("a", "b")
    sends = [(room, "a"), (room, "stranger"), (uuid4(), "a"), (room, "b")]
    results = await asyncio.gather(
        *(chat.order.send(*send, f"id-{number}", "text") for number, send in enumerate(sends)), return_exceptions=True
    )
    assert [isinstance(result, NotInRoom) for result in results] == [False, True, True, False]
    assert [one.seq for one in await chat.history.before("a", room)] == [1, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("\ud83d", "surrogate"),
        ("가" * 1366, "4098 bytes, and 4096 are allowed"),
    ],
    ids=["empty", "NUL", "surrogate", "long"],
)
async def test_a_text_that_cannot_be_stored_or_is_too_long_is_refused(chat: Chat, text: str, says: str) -> None:
    room = await chat.room("a")
    await chat.send(room, "a", "x" * 4096)
    with pytest.raises(BadChatMessage, match=says):
        await chat.order.send(room, "a", "id", text)
    with pytest.raises(BadChatMessage, match=says):
        await chat.order.edit(room, "a", 1, text)
    assert len(await chat.history.before("a", room)) == 1


async def test_a_member_who_sends_too_often_is_refused_and_others_are_not(store: Store, settings: Settings) -> None:
    # One a century, after the first.
    slow = settings.model_copy(update={"chat_rate": 1})
    async with chatting(store, slow) as chat:
        chat.order._limit._clock = lambda: 1.0
        room = await chat.room("a", "b")
        await chat.order.send(room, "a", "1", "text")
        with pytest.raises(ChatRateLimited, match="BONGSU_CHAT_RATE"):
            await chat.order.send(room, "a", "2", "text")
        await chat.order.send(room, "b", "1", "text")
        # A server's own messages are not counted.
        await chat.order.send(room, "a", "2", "text", is_limited=False)


# --- changing ---------------------------------------------------------------------------------------------------------


async def test_a_message_is_edited_and_deleted_by_its_sender_and_keeps_its_seq(chat: Chat) -> None:
    room = await chat.room("a", "b")
    await chat.send(room, "a", "one", "two", "three")
    chat.frames.clear()
    edited = await chat.order.edit(room, "a", 2, "zwei")
    assert (edited.message, edited.deleted_at) == ("zwei", None)
    assert edited.edited_at is not None
    await chat.order.delete(room, "a", 1)
    await chat.order.delete(room, "a", 1)
    found = await chat.history.before("b", room)
    assert [(one.seq, one.message, one.deleted_at is None) for one in found] == [
        (1, None, False), (2, "zwei", True), (3, "three", True),
    ]  # fmt: skip
    assert [(frame["op"], frame["seq"], frame.get("message")) for frame in chat.frames] == [
        ("edited", 2, "zwei"), ("deleted", 1, None),
    ]  # fmt: skip
    with pytest.raises(MessageDeleted):
        await chat.order.edit(room, "a", 1, "back")
    for change in _changes(chat):
        with pytest.raises(NotYourMessage):
            await change(room, "b", 2)
        with pytest.raises(NoSuchMessage):
            await change(room, "a", 4)
        with pytest.raises(NotInRoom):
            await change(room, "stranger", 2)
    await chat.rooms.remove(None, room, "a")
    for change in _changes(chat):
        with pytest.raises(NotInRoom):
            await change(room, "a", 2)


def _changes(chat: Chat) -> list[Callable[..., Any]]:
    return [chat.order.delete, lambda room, member, seq: chat.order.edit(room, member, seq, "new")]


async def test_a_reader_who_comes_back_gets_what_was_sent_and_changed_since(chat: Chat) -> None:
    room = await chat.room("a", "b")
    await chat.send(room, "a", "1", "2", "3")
    await chat.order.edit(room, "a", 1, "before")
    await chat.send(room, "a", "4", "5")
    await chat.order.edit(room, "a", 2, "after")
    await chat.order.delete(room, "a", 3)
    await chat.send(room, "a", "6")
    await chat.order.edit(room, "a", 6, "six")

    async def missed(seq: int) -> tuple[list[tuple[int, str | None]], list[tuple[int, str | None]]]:
        async with chat.store.read() as tx:
            # One at a time: each part begins after the last of the part before.
            changed, key = await statements.find_changed(tx, room, seq, 1)
            while (part := await statements.find_changed(tx, room, seq, 1, key))[0]:
                changed, key = changed + part[0], part[1]
            sent = await statements.find_after(tx, room, seq, 100)
        return [(one.seq, one.message) for one in changed], [(one.seq, one.message) for one in sent]

    # One who saw message 4 saw the change before it. One who saw 3 may have left before or after it.
    assert await missed(4) == ([(2, "after"), (3, None)], [(5, "5"), (6, "six")])
    assert await missed(3) == ([(1, "before"), (2, "after"), (3, None)], [(4, "4"), (5, "5"), (6, "six")])
    assert await missed(6) == ([(6, "six")], [])
    assert await missed(0) == ([], [(1, "before"), (2, "after"), (3, None), (4, "4"), (5, "5"), (6, "six")])


# --- a store that fails -----------------------------------------------------------------------------------------------


async def test_messages_are_tried_again_in_their_order_while_the_store_fails(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(the_order, "FIRST_WAIT_SECONDS", 0.001)
    room = await chat.room("a")
    add, failures = statements.add_messages, [StoreUnreachable("gone"), StoreBusy("locked"), StoreUnreachable("gone")]

    async def flaky(tx: Any, sends: Any) -> Any:
        if failures:
            raise failures.pop()
        return await add(tx, sends)

    monkeypatch.setattr(statements, "add_messages", flaky)
    seqs = await asyncio.gather(*(chat.send(room, "a", f"text-{number}") for number in range(10)))
    assert seqs == [[number] for number in range(1, 11)]
    assert failures == []


async def test_a_message_that_cannot_be_stored_is_refused_and_can_be_sent_again(
    chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(the_order, "FIRST_WAIT_SECONDS", 0.001)
    room = await chat.room("a")

    async def away(_tx: Any, _sends: Any) -> Any:
        raise StoreUnreachable("gone")

    with monkeypatch.context() as patch, pytest.raises(StoreUnreachable):
        patch.setattr(statements, "add_messages", away)
        await chat.order.send(room, "a", "id", "text")
    assert (await chat.order.send(room, "a", "id", "text")).seq == 1


async def test_a_message_that_cannot_be_stored_becomes_a_dead_letter_that_a_replay_stores(
    chat: Chat, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(the_order, "FIRST_WAIT_SECONDS", 0.001)
    room = await chat.room("a", "b", "gone")

    async def away(_tx: Any, _sends: Any, *_more: Any) -> Any:
        raise StoreUnreachable("the disk is on fire")

    with monkeypatch.context() as patch:
        patch.setattr(statements, "add_messages", away)
        # Not even the dead letters can be written at first.
        patch.setattr(the_order, "add_dead_letters", away)
        refused = await asyncio.gather(
            *(chat.order.send(room, sender, "id", f"of {sender}") for sender in ("a", "b", "gone")), return_exceptions=True
        )
        await chat.order.crashed.wait()
    assert [type(error) for error in refused] == [StoreUnreachable] * 3
    desk = dead_letters(store, chat.signals, LEASE_SECONDS)
    while len(rows := (await desk.list(DeadFilter(), None, 10)).rows) < 3:
        chat.order.wake()
        await asyncio.sleep(0.01)
    assert all(isinstance(row, DeadRow) for row in rows)
    assert {(row.type, row.state, row.code) for row in rows if isinstance(row, DeadRow)} == {
        ("chat.message_sent", "FAILED", "StoreUnreachable")
    }
    assert rows[0].error == "StoreUnreachable: the disk is on fire"
    # One was sent again meanwhile, and one has left: they are not stored twice, nor at all.
    assert (await chat.order.send(room, "b", "id", "of b")).seq == 1
    await chat.rooms.remove(None, room, "gone")
    chat.frames.clear()
    replayed = await desk.replay(DeadFilter(code="StoreUnreachable"), "cli:tester")
    assert (replayed.matched, replayed.replayed) == (3, 2)
    found = await chat.history.before("a", room)
    assert [(one.sender_id, one.message) for one in found] == [("b", "of b"), ("a", "of a")]
    assert (chat.frames, chat.reads) == ([], 1)
    assert len((await desk.list(DeadFilter(), None, 10)).rows) == 1
    # The text of an erased sender is not kept here either.
    await Erasures(store, chat.signals, LEASE_SECONDS).erase("gone", "cli:tester")
    assert (await desk.list(DeadFilter(), None, 10)).rows == []


async def test_an_event_of_that_type_with_other_fields_is_left_as_it_is(chat: Chat, store: Store) -> None:
    room = str(await chat.room("a"))
    async with store.transaction() as tx:
        for ref_id, payload in (
            ("no room", "{}"),
            (room, "{}"),
            (room, '{"message": 5, "clientMessageId": "x"}'),
            (None, "{}"),
        ):
            columns = {"event_type": "chat.message_sent", "status": "FAILED", "finished_at": NOW}
            await add_event(tx, **columns, actor_id="a", ref_id=ref_id, payload=payload)
    replayed = await dead_letters(store, chat.signals, LEASE_SECONDS).replay(DeadFilter(type="chat.message_sent"), "cli")
    assert (replayed.matched, replayed.replayed) == (4, 0)
