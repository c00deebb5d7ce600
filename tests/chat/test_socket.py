"""Chat over WebSocket and SSE, in one process: what is sent arrives, in order, once, at those who may read it."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID

import httpx
import pytest
from websockets.asyncio.client import connect

from bongsu.chat import live_room, live_rooms
from bongsu.chat.fanout import Fanout
from bongsu.chat.order import ChatOrder
from bongsu.chat.rooms import as_room_id
from bongsu.runtime.loop import running
from bongsu.runtime.topics import room_topic
from tests.live.harness import Live, bearer
from tests.live.socket_client import closed_with, receive_op, socket_url
from tests.support.talkers import calling, new_room, talking
from tests.support.waiting import until


async def test_members_see_each_others_messages_and_the_sender_gets_an_ack(live: Live) -> None:
    room = await new_room(live, "a", "b")
    async with talking(live, "a", "b", "c") as (a, b, c):
        await a.do("send", roomId=room, clientMessageId="1", message="hello")
        ack = await a.next("ack")
        assert (ack["roomId"], ack["clientMessageId"], ack["seq"]) == (room, "1", 1)
        shown = await b.next("message")
        assert shown == {
            "op": "message", "roomId": room, "seq": 1, "senderId": "a", "message": "hello", "clientMessageId": "1",
            "sentAt": ack["sentAt"],
        }  # fmt: skip
        # Again: the same answer, and nobody sees it twice.
        await a.do("send", roomId=room, clientMessageId="1", message="hello again")
        assert (await a.next("ack"))["seq"] == 1
        assert await b.say(room, "answer") == [2]
        assert await a.messages(2) == [2]
        for op in ("send", "read", "typing", "resume"):
            await c.do(op, roomId=room, clientMessageId="1", message="x", seq=1, afterSeq=0)
            error = await c.next("error")
            # What is sent about a room names what it needs, and no more.
            assert error["code"] == "BAD_FRAME"
        await c.do("send", roomId=room, clientMessageId="1", message="x")
        await c.do("read", roomId=room, seq=1)
        await c.do("typing", roomId=room)
        await c.do("resume", roomId=room, afterSeq=0)
        assert [(await c.next("error"))["code"] for _ in range(4)] == ["FORBIDDEN"] * 4


async def test_the_sends_of_a_socket_keep_their_order_and_arrive_once(live: Live) -> None:
    room = await new_room(live, "a", "b")
    async with talking(live, "a", "b") as (a, b):
        assert await a.say(room, *(f"m-{number}" for number in range(90))) == list(range(1, 91))
        frames = await b.until("message", seq=90)
        assert [(frame["seq"], frame["message"]) for frame in frames] == [(n + 1, f"m-{n}") for n in range(90)]


async def test_what_is_refused_leaves_the_socket_open(live: Live) -> None:
    room = await new_room(live, "a")
    async with talking(live, "a") as (a,):
        limit = live.settings.chat_max_bytes
        await a.do("send", roomId=room, clientMessageId="long", message="봉" * (limit // 3 + 1))
        error = await a.next("error")
        assert (error["code"], error["clientMessageId"]) == ("BAD_MESSAGE", "long")
        # More than a busy machine takes in the time in which they would all be allowed.
        for number in range(20 * live.settings.chat_rate):
            await a.do("send", roomId=room, clientMessageId=str(number), message="x")
        error = await a.next("error")
        assert (error["code"], error["roomId"]) == ("RATE_LIMITED", room)
        await a.do("read", roomId=room, seq=1)
        await a.until("read", memberId="a", seq=1)


async def test_read_marks_typing_edits_and_deletions_reach_the_others(live: Live) -> None:
    room = await new_room(live, "a", "b")
    async with talking(live, "a", "b") as (a, b), calling(live, "a") as caller:
        await a.say(room, "one", "two")
        await b.messages(2)
        await b.do("read", roomId=room, seq=9)
        await b.do("typing", roomId=room)
        assert await a.next("read") == {"op": "read", "roomId": room, "memberId": "b", "seq": 2}
        assert await a.next("typing") == {"op": "typing", "roomId": room, "memberId": "b"}
        await caller.patch(f"/rooms/{room}/messages/1", json={"message": "uno"})
        await caller.delete(f"/rooms/{room}/messages/2")
        await a.say(room, "three")
        shown = [frame for frame in await b.until("message", seq=3) if frame["op"] != "read"]
        assert [(frame["op"], frame["seq"], frame.get("message")) for frame in shown] == [
            ("edited", 1, "uno"), ("deleted", 2, None), ("message", 3, "three"),
        ]  # fmt: skip


async def test_rooms_that_are_joined_later_flow_too_and_one_that_is_left_ends(live: Live) -> None:
    async with talking(live, "a", "b") as (a, b), calling(live) as server:
        room = await new_room(live, "a")
        await a.until("joined", roomId=room)
        await a.say(room, "before")
        await server.post(f"/rooms/{room}/members/b")
        await b.until("joined", roomId=room)
        await a.say(room, "with")
        assert await b.messages(2) == [2]
        await server.delete(f"/rooms/{room}/members/b")
        assert await b.until("left", roomId=room) == [{"op": "left", "roomId": room, "memberId": "b"}]
        await a.say(room, "without")
        await b.do("resume", roomId=room, afterSeq=0)
        assert [frame["op"] for frame in await b.until("error")] == ["error"]
        await server.post(f"/rooms/{room}/members/b")
        await b.until("joined", roomId=room)
        assert await a.say(room, "again") == [4]
        assert await b.messages(4) == [4]


async def test_no_message_reaches_one_whose_removal_is_not_known_here_yet(live: Live) -> None:
    """The signal about it is late, as between two instances."""
    room = await new_room(live, "a", "b")
    async with talking(live, "a", "b") as (a, b):
        await a.say(room, "one")
        assert await b.messages(1) == [1]
        real, live.signals.send = live.signals.send, lambda topic, data=b"": None  # type: ignore[method-assign]
        async with calling(live) as server:
            await server.delete(f"/rooms/{room}/members/b")
        live.signals.send = real  # type: ignore[method-assign]
        await a.say(room, "two")
        assert [frame["op"] for frame in await b.until("left")] == ["left"]
        assert await a.messages(2) == [2]


async def test_a_signal_that_is_lost_or_late_leaves_no_gap(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    room = await new_room(live, "a", "b")
    lost: list[bytes] = []
    async with talking(live, "a", "b") as (a, b):
        real = live.signals.send
        # Every second is lost, the others come in pairs, the later one first.
        held: list[tuple[str, bytes]] = []

        def send(topic: str, data: bytes = b"") -> None:
            if topic != room_topic(UUID(room)) or not data.startswith(b"m"):
                real(topic, data)
            elif len(lost) % 2:
                lost.append(data)
            else:
                lost.append(data)
                held.append((topic, data))
                if len(held) == 2:
                    real(*held.pop())
                    real(*held.pop())

        monkeypatch.setattr(live.signals, "send", send)
        for number in range(12):
            await a.say(room, f"m-{number}")
        monkeypatch.undo()
        await a.say(room, "last")
        assert await b.messages(13) == list(range(1, 14))


async def test_a_ping_brings_what_no_signal_has(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    room = await new_room(live, "a", "b")
    async with talking(live, "a", "b") as (a, b), calling(live, "a") as caller:
        await a.say(room, "one")
        assert await b.messages(1) == [1]
        monkeypatch.setattr(live.signals, "send", lambda topic, data=b"": None)
        await a.say(room, "two")
        await caller.patch(f"/rooms/{room}/messages/1", json={"message": "uno"})
        other = await new_room(live, "a", "b")
        monkeypatch.undo()
        live.gateway._on_ping(["b"])
        shown = await b.until("message", seq=2)
        assert [(frame["op"], frame["seq"]) for frame in shown] == [("edited", 1), ("message", 2)]
        await a.say(other, "three")
        await b.until("message", roomId=other, seq=1)


@pytest.mark.parametrize("page", [live_room.PAGE, 3])
async def test_resume_sends_what_came_and_changed_then_what_is_new(
    live: Live, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(live_rooms, "PAGE", page)
    room = await new_room(live, "a", "b")
    async with talking(live, "a") as (a,), calling(live, "a") as caller:
        await a.say(room, *(f"m-{number}" for number in range(8)))
        for seq in (1, 2, 7):
            await caller.patch(f"/rooms/{room}/messages/{seq}", json={"message": "edited"})
        await caller.delete(f"/rooms/{room}/messages/3")
        async with talking(live, "b") as (b,):
            await b.do("resume", roomId=room, afterSeq=5)
            shown = await b.until("resumed")
            assert [(frame["op"], frame["seq"]) for frame in shown] == [
                ("edited", 1), ("edited", 2), ("deleted", 3), *(("message", seq) for seq in (6, 7, 8)), ("resumed", 8),
            ]  # fmt: skip
            assert shown[4]["message"] == "edited"
            await a.say(room, "new")
            assert await b.messages(9) == [9]
            # A seq that is not there yet is the last one.
            await b.do("resume", roomId=room, afterSeq=10**9)
            await b.until("resumed", seq=9)
            await a.say(room, "newer")
            assert await b.messages(10) == [10]


async def test_messages_that_are_sent_during_a_resume_come_after_it_once(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_rooms, "PAGE", 5)
    room = await new_room(live, "a", "b")
    async with talking(live, "a", "b") as (a, b):
        await a.say(room, *(f"m-{number}" for number in range(40)))
        await b.messages(40)

        async def send() -> None:
            for number in range(40):
                await a.say(room, f"n-{number}")

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            await b.do("resume", roomId=room, afterSeq=0)
            frames = await b.until("message", seq=80)
        seqs = [frame["seq"] for frame in frames if frame["op"] == "message"]
        # What came before the resume was asked for, and then everything.
        start = seqs.index(1)
        assert seqs[:start] == list(range(41, 41 + start))
        assert seqs[start:] == list(range(1, 81))


async def test_a_reader_that_takes_nothing_of_what_it_missed_is_closed_with_4408(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_room, "STALLED_SECONDS", 0.2)
    room = await new_room(live, "a", "b")
    order = ChatOrder(live.store, Fanout(live.signals), live.settings)
    async with running(order):
        # More than the system holds for both ends.
        sends = [order.send(UUID(room), "a", str(one), "x" * 4096, is_limited=False) for one in range(4_000)]
        await asyncio.gather(*sends)
    opening = connect(
        socket_url(live.address), additional_headers=bearer(live.settings, "b"), proxy=None, max_queue=1, ping_interval=None
    )
    async with opening as socket:
        await receive_op(socket, "ready")
        await socket.send(json.dumps({"op": "resume", "roomId": room, "afterSeq": 0}))
        (stream,) = live.gateway.open_streams
        await until(lambda: stream.connection.is_ended)
        assert await closed_with(socket) == 4408


async def test_streams_have_chat_events_without_an_id_whatever_the_preferences(live: Live) -> None:
    room = await new_room(live, "a", "b")
    async with httpx.AsyncClient(base_url=live.address, headers=bearer(live.settings, "b"), timeout=60) as caller:
        answer = await caller.put("/api/preferences", json={"enabled": False})
        assert answer.status_code < 300
    async with live.open("b") as page, talking(live, "a") as (a,):
        await page.until_live()
        before = page.last_id
        await a.say(room, "hello")
        assert await page.until_seen("chat") == [{"roomId": room, "seq": 1, "senderId": "a", "message": "hello"}]
        assert page.last_id == before


async def test_the_members_of_a_room_are_listed_with_who_is_online(live: Live) -> None:
    room = await new_room(live, "a", "b", "c")
    async with talking(live, "a"), live.open("c") as page, calling(live, "a") as caller:
        await page.until_live()
        listed = (await caller.get(f"/rooms/{room}/members")).json()["items"]
        assert {one["memberId"]: one["online"] for one in listed} == {"a": True, "b": False, "c": True}


async def test_a_room_without_readers_is_forgotten(live: Live) -> None:
    room = await new_room(live, "a")
    async with talking(live, "a"):
        assert as_room_id(room) in live.gateway.rooms._rooms
    while len(live.gateway.open_streams):
        await asyncio.sleep(0)
    assert live.gateway.rooms._rooms == {}
    assert live.gateway.rooms._of == {}
