"""Members whose sockets send more than is of use: what they are answered, and what the process does for them."""

from __future__ import annotations

import asyncio

import pytest

from bongsu.api import chat_ops, websocket
from bongsu.errors import RateLimited
from bongsu.runtime.rate_limit import RateLimit
from bongsu.settings import Settings
from bongsu.store import Store
from tests.live.harness import live_on
from tests.live.socket_client import closed_with
from tests.support.talkers import new_room, talking


async def test_a_client_whose_sends_are_refused_again_and_again_is_closed(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "REFUSAL_LIMIT", 50)
    async with live_on(store, settings) as live, talking(live, "b") as (b,):
        room = await new_room(live, "a")
        for number in range(60):
            await b.do("send", roomId=room, clientMessageId=str(number), message="x")
        assert await closed_with(b.socket) == 4429


async def test_frames_beyond_what_a_member_may_send_wait(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_ops, "FRAMES_AT_ONCE", 3)
    monkeypatch.setattr(chat_ops, "FRAMES_PER_SECOND", 1e-3)
    is_over, count = asyncio.Event(), RateLimit.count

    def watched(limit: RateLimit, member_id: str) -> None:
        try:
            count(limit, member_id)
        except RateLimited:
            is_over.set()
            raise

    monkeypatch.setattr(RateLimit, "count", watched)
    async with live_on(store, settings) as live:
        room = await new_room(live, "a", "b")
        async with talking(live, "a", "b") as (a, b):
            for _ in range(4):
                await b.do("resume", roomId=room, afterSeq=0)
            await is_over.wait()
            # Others, and what comes to the member, do not wait.
            await a.say(room, "hello")
            shown = [frame["op"] for frame in await b.until("message", seq=1)]
            assert shown.count("resumed") == 3
