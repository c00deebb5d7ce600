"""Chat in this process, on a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bongsu.settings import Settings
from bongsu.store import Store
from tests.live.harness import Live, live_on
from tests.support.chat import Chat, chatting


@pytest.fixture
async def chat(store: Store, settings: Settings) -> AsyncIterator[Chat]:
    async with chatting(store, settings) as chat:
        yield chat


@pytest.fixture
async def live(store: Store, settings: Settings) -> AsyncIterator[Live]:
    async with live_on(store, settings.model_copy(update={"sse_ping_seconds": 600, "chat_rate": 100})) as everything:
        yield everything
