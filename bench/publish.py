"""publish: an event in the caller's own transaction, against a bare INSERT of an equal row in its place."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from bench.bare import TABLE
from bench.ground import Ground
from bench.measure import Action, Contest, Measure
from bench.sample import ACTOR, COLUMNS, PAYLOAD, REF, TYPE, new_row
from bongsu import Event, publish

TITLE = "publish in the caller's transaction"
BUDGET = 1.10
TURNS = 200

Sides = tuple[Action, Action]
Way = Callable[[str], AbstractAsyncContextManager[Sides]]

_ORDERS = (
    "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, member text NOT NULL, total int NOT NULL)"
)
_ORDER = "INSERT INTO orders (member, total) VALUES ({}, {})"
_MEMBER, _TOTAL = "member-90125", 99_000
# Beside ours in one database, so that both sides share one connection. With a connection each, the kernel may keep one
# server process on the client's core and the other elsewhere: the same INSERT then differed by 30 %.
_PLAIN = f"CREATE TABLE plain_events (LIKE {TABLE} INCLUDING ALL)"


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    """One for each library. Both sides insert an order; then one inserts a row, and the other publishes an event."""
    url = (await ground.postgres()).database_url
    with psycopg.connect(url) as connection:
        connection.execute(_ORDERS)
        connection.execute(_PLAIN)
    for name, way in _WAYS.items():
        async with way(url) as (baseline, publishing):
            yield Contest(
                name,
                "one bare INSERT more",
                "transaction",
                Measure.TIME,
                baseline,
                publishing,
                turns=TURNS,
                budget=BUDGET,
            )


def _new_event() -> Event:
    return Event(event_type=TYPE, actor_id=ACTOR, ref_id=REF, payload=PAYLOAD)


# --- the libraries: (baseline, ours) ----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Sides]:
    order, insert = _ORDER.format("%s", "%s"), _insert(lambda _place: "%s")
    with psycopg.connect(url, autocommit=True) as connection:

        async def baseline() -> None:
            with connection.transaction():
                connection.execute(order, (_MEMBER, _TOTAL))
                connection.execute(insert, new_row())

        async def publishing() -> None:
            with connection.transaction():
                connection.execute(order, (_MEMBER, _TOTAL))
                publish(connection, _new_event())

        yield baseline, publishing


@contextlib.asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Sides]:
    order, insert = _ORDER.format("%s", "%s"), _insert(lambda _place: "%s")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:

        async def baseline() -> None:
            async with connection.transaction():
                await connection.execute(order, (_MEMBER, _TOTAL))
                await connection.execute(insert, new_row())

        async def publishing() -> None:
            async with connection.transaction():
                await connection.execute(order, (_MEMBER, _TOTAL))
                await publish(connection, _new_event())

        yield baseline, publishing


@contextlib.asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Sides]:
    order, insert = _ORDER.format("$1", "$2"), _insert(lambda place: f"${place + 1}")
    connection = await asyncpg.connect(url)

    async def baseline() -> None:
        async with connection.transaction():
            await connection.execute(order, _MEMBER, _TOTAL)
            await connection.execute(insert, *new_row())

    async def publishing() -> None:
        async with connection.transaction():
            await connection.execute(order, _MEMBER, _TOTAL)
            await publish(connection, _new_event())

    yield baseline, publishing
    await connection.close()


@contextlib.asynccontextmanager
async def _sqlalchemy(url: str) -> AsyncIterator[Sides]:
    order, insert = text(_ORDER.format(":member", ":total")), text(_insert(_named))
    engine = create_engine(_for_driver(url, "psycopg"))
    with engine.connect() as connection:

        async def baseline() -> None:
            with connection.begin():
                connection.execute(order, {"member": _MEMBER, "total": _TOTAL})
                connection.execute(insert, _by_name())

        async def publishing() -> None:
            with connection.begin():
                connection.execute(order, {"member": _MEMBER, "total": _TOTAL})
                publish(connection, _new_event())

        yield baseline, publishing
    engine.dispose()


@contextlib.asynccontextmanager
async def _sqlalchemy_session(url: str) -> AsyncIterator[Sides]:
    order, insert = text(_ORDER.format(":member", ":total")), text(_insert(_named))
    engine = create_async_engine(_for_driver(url, "asyncpg"))
    async with AsyncSession(engine) as session:

        async def baseline() -> None:
            async with session.begin():
                await session.execute(order, {"member": _MEMBER, "total": _TOTAL})
                await session.execute(insert, _by_name())

        async def publishing() -> None:
            async with session.begin():
                await session.execute(order, {"member": _MEMBER, "total": _TOTAL})
                await publish(session, _new_event())

        yield baseline, publishing
    await engine.dispose()


_WAYS: dict[str, Way] = {
    "psycopg": _psycopg,
    "psycopg, async": _psycopg_async,
    "asyncpg": _asyncpg,
    "SQLAlchemy Connection (psycopg)": _sqlalchemy,
    "SQLAlchemy AsyncSession (asyncpg)": _sqlalchemy_session,
}


def _insert(placeholder: Callable[[int], str]) -> str:
    places = ", ".join(placeholder(place) for place in range(len(COLUMNS)))
    return f"INSERT INTO plain_events ({', '.join(COLUMNS)}) VALUES ({places})"


def _named(place: int) -> str:
    """SQLAlchemy tells asyncpg that a str is text, and PostgreSQL stores no text in a jsonb column unasked."""
    name = COLUMNS[place]
    return "CAST(:payload AS jsonb)" if name == "payload" else f":{name}"


def _by_name() -> dict[str, Any]:
    return dict(zip(COLUMNS, new_row(), strict=True))


def _for_driver(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)
