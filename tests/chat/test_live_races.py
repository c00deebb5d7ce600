"""What comes between two steps of a gateway that reads a chat room: late signals, departures, and a store that fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from websockets.asyncio.client import connect
from websockets.frames import Frame, Opcode

from bongsu.chat import live_room, live_rooms
from bongsu.errors import StoreUnreachable
from bongsu.store.chat import live as statements
from bongsu.store.chat import messages
from bongsu.store.chat.live import RoomState
from tests.live.harness import Live, token
from tests.live.socket_client import closed_with, socket_url
from tests.support.talkers import calling, new_room, talking


@contextlib.contextmanager
def held_signals(live: Live) -> Iterator[Callable[[str], None]]:
    """Signals wait until the function is called, with how they begin, or are lost if it is not."""
    held: list[tuple[str, bytes]] = []
    real = live.signals.send
    live.signals.send = lambda topic, data=b"": held.append((topic, data))  # type: ignore[method-assign]

    def release(kind: str = "") -> None:
        for topic, data in held:
            if data.startswith(kind.encode()):
                real(topic, data)

    try:
        yield release
    finally:
        live.signals.send = real  # type: ignore[method-assign]


def before_first(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, happens: Callable[[], Awaitable[None]]
) -> asyncio.Event:
    """Let something happen before the first call of a statement. The event is set when it has."""
    real, has_happened = getattr(module, name), asyncio.Event()

    async def call(*arguments: Any) -> Any:
        if not has_happened.is_set():
            has_happened.set()
            await happens()
        return await real(*arguments)

    monkeypatch.setattr(module, name, call)
    return has_happened


def texts(frames: list[dict[str, Any]]) -> dict[int, str]:
    """What a reader shows last of each message."""
    return {frame["seq"]: frame["message"] for frame in frames if frame["op"] in ("message", "edited")}


async def test_an_edit_is_seen_of_a_message_that_waited_while_the_room_was_read_by_pages(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_rooms, "PAGE", 3)
    room = await new_room(live, "a", "b")
    async with talking(live, "a", "b") as (a, b), calling(live, "a") as caller:
        with held_signals(live):
            await a.say(room, "lost")
        with held_signals(live) as release:
            await a.say(room, *"23456")
            await caller.patch(f"/rooms/{room}/messages/5", json={"message": "edited"})
            release("")
        frames = await b.until("message", seq=6)
        await a.say(room, "last")
        frames += await b.until("message", seq=7)
        assert [frame["seq"] for frame in frames if frame["op"] == "message"] == list(range(1, 8))
        assert texts(frames)[5] == "edited"


@pytest.mark.parametrize("statement", ["find_changed", "find_after"])
async def test_an_edit_is_seen_of_a_message_whose_signal_comes_while_the_room_is_read(
    live: Live, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    room = await new_room(live, "a", "b")
    async with talking(live, "a", "b") as (a, b), calling(live, "a") as caller:
        await a.say(room, "one")
        await b.messages(1)
        with held_signals(live) as release:
            await a.say(room, "two")
            await caller.patch(f"/rooms/{room}/messages/2", json={"message": "edited"})

            async def arrive() -> None:
                release("m")

            # After the edits of the messages that were sent have been read, if it is the second one.
            read = before_first(monkeypatch, messages, statement, arrive)
            live.gateway._on_ping(["b"])
            await read.wait()
        await a.say(room, "last")
        frames = await b.until("message", seq=3)
        assert [frame["seq"] for frame in frames if frame["op"] == "message"] == [2, 3]
        assert texts(frames)[2] == "edited"


async def test_a_departure_that_a_failed_read_was_to_show_is_found_by_the_next(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_id = UUID(await new_room(live, "a", "b"))
    async with talking(live, "b") as (b,):
        with held_signals(live):
            async with calling(live) as server:
                await server.delete(f"/rooms/{room_id}/members/b")

        async def fail() -> None:
            raise StoreUnreachable("away")

        # The room has counted all changes, but a reader entered it late.
        room = live.gateway.rooms._rooms[room_id]
        room.changes += 1
        failed = before_first(monkeypatch, statements, "find_members_among", fail)
        live.gateway.rooms._on_signal(room, None)
        await failed.wait()
        (*_, last) = await b.until("left")
        assert (last["roomId"], last["memberId"]) == (str(room_id), "b")


async def test_a_resume_sends_nothing_that_was_stored_after_the_member_was_removed(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another instance has removed them, and its signal is late."""
    monkeypatch.setattr(live_rooms, "PAGE", 2)
    room = await new_room(live, "a", "b")
    async with talking(live, "a", "b") as (a, b):
        await a.say(room, "one", "two")
        await b.messages(2)

        async def remove() -> None:
            with held_signals(live):
                async with calling(live) as server:
                    await server.delete(f"/rooms/{room}/members/b")
                await a.say(room, "secret")

        removed = before_first(monkeypatch, messages, "find_after", remove)
        await b.do("resume", roomId=room, afterSeq=1)
        await removed.wait()
        frames = await b.until("error")
        assert frames[-1]["code"] == "FORBIDDEN"
        assert "secret" not in texts(frames).values()


async def test_a_frame_behind_an_auth_that_cannot_be_served_leaves_nothing(live: Live) -> None:
    room = await new_room(live, "b")
    live.gateway._is_draining = True
    async with connect(socket_url(live.address), proxy=None) as socket:
        frames = [{"op": "auth", "token": token(live.settings, "b")}, {"op": "resume", "roomId": room, "afterSeq": 0}]
        # In one segment: the second is there before the first is looked at.
        socket.transport.write(b"".join(Frame(Opcode.TEXT, json.dumps(one).encode()).serialize(mask=True) for one in frames))
        assert await closed_with(socket) == 1012
    while len(live.gateway.open_streams):
        await asyncio.sleep(0)
    assert live.gateway.rooms._rooms == {}


async def test_the_last_of_two_resumes_of_a_reader_goes_on(live: Live) -> None:
    """One may be sending what came while the member joined."""
    room = await new_room(live, "a", "b")
    async with talking(live, "a", "b") as (a, b):
        await a.say(room, "one", "two")
        await b.messages(2)
        (stream,) = live.gateway.open_streams.of("b")
        state = RoomState(UUID(room), 2, 0)
        await asyncio.gather(*(live.gateway.rooms.resume(stream, state, after) for after in (1, 0)))
        await a.say(room, "three")
        assert (await b.messages(3))[-3:] == [1, 2, 3]


async def test_a_stream_of_a_member_who_joined_a_moment_ago_has_what_came_since(live: Live) -> None:
    room = await new_room(live, "a", "c")
    async with live.open("b") as page, talking(live, "a") as (a,):
        await page.until_live()
        with held_signals(live) as release:
            async with calling(live) as server:
                await server.post(f"/rooms/{room}/members/b")
            late = release
        await a.say(room, "one")
        late("")
        assert [event["message"] for event in await page.until_seen("chat")] == ["one"]


async def test_what_is_written_at_once_to_a_reader_who_resumes_is_bounded(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More at once would look like a reader that has stalled to the next who writes to it."""
    room = await new_room(live, "a", "b")
    async with talking(live, "a", "b") as (a, b):
        # Each byte is six when it is sent.
        text = "\x01" * live.settings.chat_max_bytes
        for number in range(60):
            await a.do("send", roomId=room, clientMessageId=str(number), message=text)
        await b.messages(60)
        (stream,) = live.gateway.open_streams.of("b")
        real, sizes = type(stream.connection).write, []

        def write(connection: Any, frame: bytes) -> bool:
            sizes.append(len(frame))
            return bool(real(connection, frame))

        monkeypatch.setattr(type(stream.connection), "write", write)
        await b.do("resume", roomId=room, afterSeq=0)
        await b.until("resumed", seq=60)
        assert max(sizes) < live_room.PIECE_BYTES + 7 * live.settings.chat_max_bytes
