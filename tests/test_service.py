"""The composition root: what each role runs."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest

from bongsu import components
from bongsu.components import COMPONENTS, Process
from bongsu.decide.step import Decider
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.live.announce import Announcer
from bongsu.live.hub import Hub
from bongsu.live.member_state import OpenStreams
from bongsu.live.presence import LocalPresence
from bongsu.rules import catalogue
from bongsu.runtime.keys import Keys
from bongsu.runtime.roles import ALL_ROLES, Role
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store


def test_the_table_has_every_role() -> None:
    assert COMPONENTS.keys() == set(Role)


@pytest.fixture
async def process(store: Store, settings: Settings) -> Process:
    rules, keys = catalogue(settings), Keys.load(settings)
    streams = OpenStreams()
    online = LocalPresence(streams)
    stopping = asyncio.Event()
    return Process(settings, store, LocalSignals(), ALL_ROLES, rules, keys, (), stopping, False, online, streams)


async def test_all_who_need_the_content_of_messages_share_one_cache(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches: dict[type, list[Any]] = {}

    def note(kind: type) -> None:
        build = kind.__init__  # type: ignore[misc]

        def noted(self: Any, *arguments: Any, **named: Any) -> None:
            build(self, *arguments, **named)
            caches.setdefault(kind, []).append(self._message_cache)

        monkeypatch.setattr(kind, "__init__", noted)

    for kind in (Decider, Dispatcher, Announcer, Hub):
        note(kind)
    async with AsyncExitStack() as stack:
        for component in COMPONENTS[Role.WORKER]:
            await stack.enter_async_context(component(process))
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        stack.callback(listener.close)
        await stack.enter_async_context(components.http(process, listener))
    assert caches.keys() == {Decider, Dispatcher, Announcer, Hub}
    assert all(cache is process.message_cache for found in caches.values() for cache in found)
