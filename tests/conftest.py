"""Fixtures: real servers for the whole run, a fresh store for each test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest

from bongsu.runtime import telemetry
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from tests.support.processes import bongsu
from tests.support.servers import (
    PostgresServer,
    RedisServer,
    ServerMissing,
    find_postgres,
    find_redis,
    unexpected_deadlocks,
)

# A developer's own settings must not reach into the tests.
for name in [name for name in os.environ if name.startswith("BONGSU_")]:
    del os.environ[name]

telemetry.configure_logs()

# No test says how fast anything is: on a busy machine an example takes as long as it takes.
hypothesis.settings.register_profile("bongsu", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("bongsu")

KEYS = {"jwt_secret": "a test secret of more than thirty-two bytes", "api_keys": "server-key-of-the-tests"}


@pytest.fixture(scope="session", autouse=True)
def _no_deadlocks() -> Iterator[None]:
    """A deadlock is a defect, also where a repeated transaction hides it. The logs of the servers that this process started
    are searched when it has run its tests: it is set up first, and so the servers have been stopped by then."""
    yield
    if found := unexpected_deadlocks():
        told = "\n\n".join(f"in {one.test}\n{one.text}" for one in found)
        pytest.fail(
            f"PostgreSQL found {len(found)} deadlocks, see docs/decisions/0010-locks-in-one-order.md.\n\n{told}",
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
def redis_server() -> Iterator[RedisServer]:
    try:
        server = find_redis()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """A database of the test's own, empty."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Settings for a store of the test's own: every test that asks for it runs on both databases."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else ""
    return Settings(data_dir=tmp_path, database_url=url, poll_seconds=0.05, **KEYS)


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[Store]:
    store = Store.open(settings)
    await migrate(store)
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
    done = bongsu("migrate", environment=environment)
    assert done.returncode == 0, done.stderr
    return environment
