"""Fixtures: real servers for the whole run, a fresh store for each test."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from bongsu.runtime import telemetry
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from tests.simulator.running import Simulator, simulating
from tests.support.long_runs import LONG_FILES
from tests.support.mariadb import MariadbServer, find_mariadb
from tests.support.quick import is_quick
from tests.support.rabbitmq import RabbitServer, find_rabbitmq
from tests.support.servers import (
    PostgresServer,
    RedisServer,
    ServerMissing,
    ends_of_logs,
    find_postgres,
    find_redis,
    unexpected_deadlocks,
)

# A developer's own settings must not reach into the tests.
for name in [name for name in os.environ if name.startswith("BONGSU_")]:
    del os.environ[name]

telemetry.configure_logs()

# No test says how fast anything is: on a busy machine an example takes as long as it takes.
# The same examples in every run, so that a change alone makes a test fail; `make chaos` draws new ones.
hypothesis.settings.register_profile(
    "bongsu",
    deadline=None,
    derandomize="CHAOS_SEEDS" not in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("bongsu")

KEYS = {"jwt_secret": "a test secret of more than thirty-two bytes", "api_keys": "server-key-of-the-tests"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only the tests that need no server and no other process")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=[test for test in items if not is_quick(test)])
        items[:] = [test for test in items if is_quick(test)]
    # With more than one process, what takes longest begins first: at the end no process waits for it. See the Makefile.
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda test: places.get(test.nodeid.partition("::")[0], len(places)))


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: the collector need not look at it again and again, which took a
    fifth of the processor time of the tests of the API."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the servers logged last stands below a failure."""
    report = yield
    if report.failed:
        report.sections += [(f"the end of the log of {name}", text) for name, text in ends_of_logs()]
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_deadlocks() -> Iterator[None]:
    """A deadlock is a defect, also where a repeated transaction hides it. The logs of the servers that this process started
    are searched when it has run its tests: it is set up first, and so the servers have been stopped by then."""
    yield
    if found := unexpected_deadlocks():
        report = "\n\n".join(f"in {deadlock.test}\n{deadlock.text}" for deadlock in found)
        pytest.fail(
            f"PostgreSQL found {len(found)} deadlocks, see docs/decisions/0007-locks-in-one-order.md.\n\n{report}",
            pytrace=False,
        )


@pytest.fixture(scope="session")
def postgres(_no_deadlocks: None) -> Iterator[PostgresServer]:
    try:
        server = find_postgres()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    """Started by the first test that needs it."""
    try:
        server = find_mariadb()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    try:
        server = find_redis()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def rabbit_server() -> Iterator[RabbitServer]:
    try:
        server = find_rabbitmq()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    """FCM, in a process of its own."""
    with simulating() as running:
        yield running


@pytest.fixture
def rabbitmq_url(rabbit_server: RabbitServer) -> str:
    """A broker with none of our queues."""
    rabbit_server.empty()
    return rabbit_server.url


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> Iterator[str]:
    """A migrated database to copy: a copy takes a fifth of the time of a migration."""
    url = postgres.create_database()
    _migrate(Settings(database_url=url))
    yield url
    postgres.drop_database(url)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a migrated database, to copy."""
    folder = tmp_path_factory.mktemp("template")
    _migrate(Settings(data_dir=folder))
    return folder / "bongsu.db"


def _migrate(settings: Settings) -> None:
    async def migrate_and_close() -> None:
        store = Store.open(settings)
        await migrate(store)
        await store.close()

    # In a thread of its own: the first test that asks may already have an event loop in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, migrate_and_close()).result()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A database of the test's own, empty."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def migrated_postgres_url(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A database of the test's own, migrated."""
    url = postgres.create_database(postgres_template)
    yield url
    postgres.drop_database(url)


SettingsMaker = Callable[..., Settings]


@pytest.fixture
def migrated_settings(request: pytest.FixtureRequest, tmp_path: Path) -> SettingsMaker:
    """Makes settings for a store of the test's own that has its tables, on the database of that name."""

    def make(database: str, **more: Any) -> Settings:
        url = ""
        if database == "postgresql":
            url = request.getfixturevalue("migrated_postgres_url")
        else:
            shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "bongsu.db")
        return Settings(data_dir=tmp_path, database_url=url, poll_seconds=0.05, **KEYS, **more)

    return make


# A test with one of these fixtures needs the tables. Any other gets an empty database: it migrates it, or is refused by it.
NEED_TABLES = {"store", "migrated"}


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path, migrated_settings: SettingsMaker) -> Settings:
    """Settings for a store of the test's own: every test that asks for it runs on both databases."""
    if not NEED_TABLES.isdisjoint(request.fixturenames):
        return migrated_settings(request.param)
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else ""
    return Settings(data_dir=tmp_path, database_url=url, poll_seconds=0.05, **KEYS)


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[Store]:
    store = Store.open(settings)
    await migrate(store)  # nothing to do, unless a test has settings of its own
    yield store
    await store.close()


@pytest.fixture
def environment(settings: Settings, tmp_path: Path) -> dict[str, str]:
    """What a child process needs in its environment to use the same store."""
    return {
        "PATH": os.environ["PATH"],
        "BONGSU_DATA_DIR": str(settings.data_dir),
        "BONGSU_DATABASE_URL": settings.database_url,
        "BONGSU_JWT_SECRET": settings.jwt_secret,
        "BONGSU_API_KEYS": settings.api_keys,
        "BONGSU_POLL_SECONDS": "0.05",
    }


@pytest.fixture
def migrated(environment: dict[str, str]) -> dict[str, str]:
    """The same, and the store has its tables."""
    return environment
