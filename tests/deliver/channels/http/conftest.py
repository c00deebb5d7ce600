"""Each test here runs on both loops: asyncio's own, and uvloop, which transports of its own come with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from bongsu.deliver.channels.http.client import HttpClient

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's proxy is not for the neighbours that these tests talk to."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
async def wire(no_proxy: None) -> AsyncIterator[HttpClient]:
    """Patient: no test waits for its timeout."""
    wire = HttpClient(60)
    yield wire
    await wire.close()
