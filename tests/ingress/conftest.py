"""One database of each kind for all these tests: each test has events and orders of its own in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.ingress.databases import Onlooker, OutboxOnlooker, Place
from tests.ingress.source_rigs import OUTBOXES, empty_database
from tests.support.mariadb import MariadbServer
from tests.support.servers import PostgresServer


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def sqlite_onlooker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Onlooker]:
    async with Onlooker(Place("sqlite", str(tmp_path_factory.mktemp("ingress") / "shop.db"))) as onlooker:
        yield onlooker


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def postgresql_onlooker(postgres: PostgresServer) -> AsyncIterator[Onlooker]:
    place = Place("postgresql", postgres.create_database())
    async with Onlooker(place) as onlooker:
        yield onlooker
    postgres.drop_database(place.where)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def sqlite_outbox_onlooker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OutboxOnlooker]:
    async with OutboxOnlooker(Place("sqlite", str(tmp_path_factory.mktemp("ingress") / "elsewhere.db"))) as onlooker:
        yield onlooker


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def postgresql_outbox_onlooker(postgres: PostgresServer) -> AsyncIterator[OutboxOnlooker]:
    place = Place("postgresql", postgres.create_database())
    async with OutboxOnlooker(place) as onlooker:
        yield onlooker
    postgres.drop_database(place.where)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def mysql_outbox_onlooker(mariadb: MariadbServer) -> AsyncIterator[OutboxOnlooker]:
    place = Place("mysql", mariadb.create_database())
    async with OutboxOnlooker(place) as onlooker:
        yield onlooker
    mariadb.drop_database(place.where)


@pytest.fixture
def sqlite_place(sqlite_onlooker: Onlooker) -> Place:
    return sqlite_onlooker.place


@pytest.fixture
def postgresql_place(postgresql_onlooker: Onlooker) -> Place:
    return postgresql_onlooker.place


@pytest.fixture
def place(onlooker: Onlooker) -> Place:
    return onlooker.place


@pytest.fixture(params=OUTBOXES)
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty database of another service."""
    with empty_database(request, request.param, tmp_path) as place:
        yield place
