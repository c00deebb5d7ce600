"""Readiness: whether this process can do its work now."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from bongsu.api.app import build_api
from bongsu.errors import StoreFull
from bongsu.ingress.intake import Intake
from bongsu.live.gateway import Gateway
from bongsu.runtime.keys import Keys
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core import store as stores
from bongsu.store.core.query import Statement

EVENT = {"eventType": "x", "payload": {"filler": "x" * 20_000}}
# As PostgreSQL says it when a table cannot grow.
FILL_POSTGRES = """
    CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$;
    CREATE TRIGGER full_disk BEFORE INSERT ON bongsu_events FOR EACH ROW EXECUTE FUNCTION fill()"""


class Redis(LocalSignals):
    """Signals whose Redis may be away."""

    is_away = False

    @property
    def is_connected(self) -> bool:
        return not self.is_away


@asynccontextmanager
async def client_of(
    store: Store, settings: Settings, signals: LocalSignals, intake: Intake | None
) -> AsyncIterator[httpx.AsyncClient]:
    # The gateway is asked for nothing but its route.
    gateway: Gateway = object()  # type: ignore[assignment]
    app = build_api(store, intake, Keys.load(settings), settings, lambda: False, signals, gateway=gateway)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bongsu") as client:
        yield client


async def test_a_gateway_is_not_ready_while_redis_is_away(store: Store, settings: Settings) -> None:
    signals = Redis()
    async with client_of(store, settings, signals, None) as client:
        assert (await client.get("/readyz")).status_code == 200
        signals.is_away = True
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert "Start Redis" in answer.json()["detail"]
        assert (await client.get("/healthz")).status_code == 200
        signals.is_away = False
        assert (await client.get("/readyz")).status_code == 200


async def test_a_process_with_the_api_is_ready_without_redis(store: Store, settings: Settings, intake: Intake) -> None:
    """The inbox goes on working, and a stream says that it is unavailable."""
    signals = Redis()
    signals.is_away = True
    async with client_of(store, settings, signals, intake) as client:
        assert (await client.get("/readyz")).status_code == 200


async def test_after_a_write_failed_on_a_full_disk_a_process_is_not_ready_for_a_while(
    api: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await api.get("/readyz")).status_code == 200
    async with store.single() as tx:
        if store.dialect.name == "sqlite":
            await tx.fetch(Statement("", "PRAGMA max_page_count = 1")())
        else:
            await tx.execute(Statement(FILL_POSTGRES, "")())
    refused = await api.post("/api/events", json=EVENT)
    assert refused.status_code == 503
    assert refused.json()["type"] == "urn:bongsu:store-full"
    answer = await api.get("/readyz")
    assert answer.status_code == 503
    assert "Free some space" in answer.json()["detail"]
    # Where the store is, is nobody's business.
    assert store.location not in answer.text
    monkeypatch.setattr(stores, "FAILED_DISK_SECONDS", 0)
    assert (await api.get("/readyz")).status_code == 200


async def test_a_file_without_room_to_grow_is_not_ready_before_a_write_fails(
    api: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=4096))
    if store.dialect.name != "sqlite":
        store.check_disk()  # a server's disk is not ours to look at
        return
    with pytest.raises(StoreFull, match="4096 bytes are free"):
        store.check_disk()
    assert (await api.get("/readyz")).status_code == 503
