"""sources: events from outboxes in other databases into the store, against the same events over HTTP; publish on MariaDB;
how soon an event arrives."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from tests.ingress.databases import Place, connect_plainly
from tests.support.mariadb import connect, find_mariadb

from bench import relayed
from bench.bare import Bare, bare
from bench.client import encode, send_all
from bench.ground import KEYS, Ground
from bench.measure import Contest, Measure
from bench.sample import ACTOR, COLUMNS, PAYLOAD, REF, TYPE, Sample, new_row
from bench.serving import serving
from bongsu import Event, publish
from bongsu.ingress.consumer import Consumer
from bongsu.ingress.decode import decode_event
from bongsu.ingress.intake import Intake
from bongsu.ingress.relay import open_outbox, open_relay
from bongsu.model import Event as AnyEvent
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Share, Store
from bongsu.store.outbox import NewEvent

TITLE = "sources"
RELAY_BUDGET = 0.5
PUBLISH_BUDGET = 1.10
EVENTS = 20_000
TURNS = 200


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    mariadb = find_mariadb()
    home = await ground.postgres()
    try:
        elsewhere = Place("mysql", mariadb.create_database())
        beside = Place("postgresql", (await ground.postgres()).database_url)
        async with serving(home) as server, bare(home) as behind:
            for name, place in (("PostgreSQL", beside), ("MariaDB", elsewhere)):
                async with _relaying(home, place) as consumer:
                    yield _relay(name, place, server.port, behind, consumer)
        yield _publish(mariadb.create_database())
    finally:
        mariadb.stop()


async def notes(ground: Ground) -> dict[str, str]:
    return {"How soon an event arrives": await relayed.report(ground)}


@contextlib.asynccontextmanager
async def _relaying(settings: Settings, place: Place) -> AsyncIterator[Consumer[AnyEvent | NewEvent]]:
    database = open_outbox(place.where)
    await database.create()
    await database.close()
    store = Store.open(settings)
    async with running(Intake(store.share(Share.INGEST), LocalSignals(), "outbox")) as intake:
        consumer = Consumer[AnyEvent | NewEvent](open_relay("bench", place.where), decode_event, intake.accept_in_turn)
        yield consumer
        await consumer.stop()
    await store.close()


def _relay(name: str, place: Place, port: int, behind: Bare, consumer: Consumer[AnyEvent | NewEvent]) -> Contest:
    lines: list[bytes] = []

    async def prepare() -> None:
        lines[:] = [b"\n".join(Sample.of(EVENTS).documents)]
        await behind.clear()
        _fill(place)

    async def over_http() -> None:
        await send_all(port, 1, [encode("/api/events", lines[0], "application/x-ndjson", KEYS["api_keys"])])

    async def relay() -> None:
        done = 0
        while done < EVENTS:
            done += await consumer.tick()

    return Contest(
        f"relay from {name} into PostgreSQL, {EVENTS:,} waiting",
        "the same events over HTTP, NDJSON",
        "event",
        Measure.SPEED,
        over_http,
        relay,
        prepare,
        units_a_turn=EVENTS,
        budget=RELAY_BUDGET,
    )


def _fill(place: Place) -> None:
    rows = [tuple(map(_as_text, new_row())) for _ in range(EVENTS)]
    marks = ", ".join(["%s"] * len(COLUMNS))
    with contextlib.closing(connect_plainly(place)) as connection:
        cursor = connection.cursor()
        cursor.execute("DELETE FROM bongsu_outbox")
        cursor.executemany(f"INSERT INTO bongsu_outbox ({', '.join(COLUMNS)}) VALUES ({marks})", rows)
        connection.commit()


def _as_text(value: object) -> object:
    return value if value is None else str(value).removesuffix("+00:00")


def _publish(url: str) -> Contest:
    """Through PyMySQL, on one connection: an order, and beside it a row or an event."""
    with contextlib.closing(connect(url)) as operator, operator.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id bigint AUTO_INCREMENT PRIMARY KEY, member varchar(64), total int)")
    connection = connect(url, autocommit=False)
    insert = f"INSERT INTO plain_outbox ({', '.join(COLUMNS)}) VALUES ({', '.join(['%s'] * len(COLUMNS))})"

    async def prepare() -> None:
        database = open_outbox(url)
        await database.create()
        await database.close()
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS plain_outbox LIKE bongsu_outbox")
            connection.commit()

    def order() -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (member, total) VALUES (%s, %s)", ("member-90125", 99_000))

    async def baseline() -> None:
        order()
        with connection.cursor() as cursor:
            cursor.execute(insert, tuple(map(_as_text, new_row())))
        connection.commit()

    async def publishing() -> None:
        order()
        publish(connection, Event(event_type=TYPE, actor_id=ACTOR, ref_id=REF, payload=PAYLOAD))
        connection.commit()

    return Contest(
        "publish on MariaDB, PyMySQL",
        "one bare INSERT more",
        "transaction",
        Measure.TIME,
        baseline,
        publishing,
        prepare,
        turns=TURNS,
        budget=PUBLISH_BUDGET,
    )
