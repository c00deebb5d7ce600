"""The Python client shown in docs/howto/chat.md, as it stands there: connects, sends, breaks off and goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.live.client import WAIT_SECONDS
from tests.live.harness import Live, token
from tests.live.socket_client import socket_url
from tests.support.talkers import new_room
from tests.test_howto import blocks


@pytest.fixture(scope="module")
def client_class() -> Any:
    shown: dict[str, Any] = {}
    exec(blocks("chat.md")["chat_client.py"], shown)
    return shown["Chat"]


class Shown:
    """What a client has shown."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self._more = asyncio.Event()

    def __call__(self, frame: dict[str, Any]) -> None:
        self.frames.append(frame)
        self._more.set()

    async def texts(self, count: int) -> list[tuple[int, str]]:
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.frames) < count:
                self._more.clear()
                await self._more.wait()
        return [(frame["seq"], frame["message"]) for frame in self.frames]


@contextlib.asynccontextmanager
async def chatting(client_class: Any, live: Live, member_id: str) -> AsyncIterator[tuple[Any, Shown]]:
    shown = Shown()
    client = client_class(socket_url(live.address), lambda: token(live.settings, member_id), shown)
    running = asyncio.create_task(client.run())
    try:
        # Only what is sent from then on is shown to it.
        async with asyncio.timeout(WAIT_SECONDS):
            while client.socket is None:
                await asyncio.sleep(0)
        yield client, shown
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_the_client_shown_sends_and_shows_and_goes_on_after_a_break(live: Live, client_class: Any) -> None:
    room = await new_room(live, "a", "b")
    async with chatting(client_class, live, "a") as (a, shown_to_a), chatting(client_class, live, "b") as (b, shown_to_b):
        assert await a.send(room, "one") == 1
        assert await b.send(room, "two") == 2
        await shown_to_a.texts(2)
        # Broken off as by a network that is gone, and while it is, one writes here and another there.
        a.socket.transport.abort()
        during = [asyncio.create_task(b.send(room, "three")), asyncio.create_task(a.send(room, "four"))]
        async with asyncio.timeout(WAIT_SECONDS):
            assert sorted(await asyncio.gather(*during)) == [3, 4]
            assert await b.send(room, "five") == 5
        assert await shown_to_a.texts(5) == await shown_to_b.texts(5)
        assert [seq for seq, _ in await shown_to_a.texts(5)] == [1, 2, 3, 4, 5]
        assert a.waiting == b.waiting == {}
        with pytest.raises(ValueError, match="BONGSU_CHAT_MAX_BYTES"):
            await a.send(room, "x" * 5_000)


async def test_the_client_shown_stops_when_its_token_is_refused(live: Live, client_class: Any) -> None:
    client = client_class(socket_url(live.address), lambda: "no token", print)
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(PermissionError, match="4401"):
            await client.run()
