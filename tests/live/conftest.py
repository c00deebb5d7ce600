"""Fixtures for streams: a process with everything, on either database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bongsu.settings import Settings
from bongsu.store import Store, migrate
from tests.conftest import KEYS
from tests.live.harness import Live, live_on


@pytest.fixture
async def live(store: Store, settings: Settings) -> AsyncIterator[Live]:
    """Read over SSE on one database and over WebSocket on the other: neither knows of the other."""
    wire = "sse" if store.dialect.name == "sqlite" else "ws"
    # So long between pings that only a signal can have brought what a test waits for.
    async with live_on(store, settings.model_copy(update={"sse_ping_seconds": 600}), wire) as everything:
        yield everything


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[tuple[Store, Settings]]:
    """Where the database makes no difference, the quicker one."""
    settings = Settings(data_dir=tmp_path, poll_seconds=0.05, **KEYS)
    store = Store.open(settings)
    await migrate(store)
    yield store, settings
    await store.close()
