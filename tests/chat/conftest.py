"""Chat in this process, on a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bongsu.settings import Settings
from bongsu.store import Store
from tests.support.chat import Chat, chatting


@pytest.fixture
async def chat(store: Store, settings: Settings) -> AsyncIterator[Chat]:
    async with chatting(store, settings) as chat:
        yield chat
