"""Everything that counts, on a store of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bongsu.rules import App
from bongsu.settings import Settings
from bongsu.store import Store
from tests.support.counters import Counting, counting


@pytest.fixture
def app() -> App:
    """Tests that have rules of their own replace it."""
    return App()


@pytest.fixture
async def counts(store: Store, settings: Settings, app: App) -> AsyncIterator[Counting]:
    async with counting(store, settings, app) as counts:
        yield counts
