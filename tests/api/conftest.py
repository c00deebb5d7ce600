"""The HTTP application in this process, on a real store."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from bongsu.api.app import build_api
from bongsu.chat.fanout import Fanout
from bongsu.chat.order import ChatOrder
from bongsu.counters.calls import Counters
from bongsu.desk.jobs import build_jobs
from bongsu.ingress.intake import Intake
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from tests.conftest import KEYS
from tests.support.served_app import ServedApp, served_app
from tests.support.servers import PostgresServer


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
    async with running(ChatOrder(store, Fanout(signals), settings)) as order, running(Counters(store)) as counters:
        keys = Keys.load(settings)
        more: dict[str, Any] = {"chat_order": order, "counters": counters, "all_jobs": jobs}
        app = build_api(store, intake, keys, settings, lambda: False, signals, **more)
        transport = httpx.ASGITransport(app)
        headers = {"Authorization": "Bearer server-key-of-the-tests"}
        async with httpx.AsyncClient(transport=transport, base_url="http://bongsu", headers=headers) as client:
            yield client


@pytest.fixture
def member_token(settings: Settings) -> str:
    return Keys.load(settings).member_token("m-1", timedelta(hours=1))


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    """The application of a whole file of tests, for those that Hypothesis calls. Without the limit on calls of a member."""
    folder, url = tmp_path_factory.mktemp("served"), ""
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.create_database(request.getfixturevalue("postgres_template"))
    else:
        shutil.copy(request.getfixturevalue("sqlite_template"), folder / "bongsu.db")
    origins = "https://shop.example"
    settings = Settings(data_dir=folder, database_url=url, member_rate=0, cors_origins=origins, **KEYS)
    with served_app(settings, is_demo=True) as served:
        yield served
    if url:
        server.drop_database(url)
