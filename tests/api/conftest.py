"""The HTTP application in this process, on a real store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest

from bongsu.api.app import build_api
from bongsu.desk.jobs import build_jobs
from bongsu.ingress.intake import Intake
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store


@pytest.fixture
def signals() -> LocalSignals:
    return LocalSignals()


@pytest.fixture
async def intake(store: Store, signals: LocalSignals) -> AsyncIterator[Intake]:
    async with running(Intake(store, signals, "http")) as intake:
        yield intake


@pytest.fixture
async def api(store: Store, settings: Settings, signals: LocalSignals, intake: Intake) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the server key; take the header away to call without."""
    jobs = build_jobs(settings, store, signals)
    app = build_api(store, intake, Keys.load(settings), settings, lambda: False, signals, all_jobs=jobs)
    transport = httpx.ASGITransport(app)
    headers = {"Authorization": "Bearer server-key-of-the-tests"}
    async with httpx.AsyncClient(transport=transport, base_url="http://bongsu", headers=headers) as client:
        yield client


@pytest.fixture
def member_token(settings: Settings) -> str:
    return Keys.load(settings).member_token("m-1", timedelta(hours=1))
