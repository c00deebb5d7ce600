"""publish in the caller's own transaction: the same promises for every library and database it is held with."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from bongsu import Event, Published, publish
from bongsu.errors import BadEvent, NotATransaction, NothingToPublishTo, NoTransactionOpen
from bongsu.model import new_id
from bongsu.store.outbox import STATEMENT_EVENTS
from tests.ingress.caller_kinds import CARELESS_WAYS, OUTBOX_WAYS, OWN_ROWS, WAYS, Way
from tests.ingress.callers import Asyncpg
from tests.ingress.databases import BOTH, NEITHER, Onlooker, OutboxOnlooker, Place

# The onlooker stays from test to test, and with it the loop its connection lives on.
pytestmark = pytest.mark.asyncio(loop_scope="package")

each_way = pytest.mark.parametrize("way", WAYS, ids=str)

# Long enough for a server under load to notice a lock; reached only when something is broken.
PATIENCE_SECONDS = 10


@pytest.fixture(autouse=True)
def django_need_not_fear_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django refuses to block a running loop; here nothing else runs on it."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")


@pytest.fixture
def onlooker(way: Way, request: pytest.FixtureRequest) -> Onlooker:
    onlooker: Onlooker = request.getfixturevalue(way.onlooker)
    return onlooker


def an_event(**fields: object) -> Event:
    """About an order of its own."""
    return Event.model_validate({"event_type": "order.paid", "ref_id": str(new_id()), **fields})


def ref(event: Event) -> str:
    assert event.ref_id is not None
    return event.ref_id


@each_way
async def test_the_callers_row_and_the_event_are_committed_together(way: Way, place: Place, onlooker: Onlooker) -> None:
    event = an_event()
    async with way.at(place) as caller:
        await caller.begin()
        await caller.order(ref(event))
        assert await caller.publish(event) == Published((event.event_id,), ())
        await caller.commit()
        assert await onlooker.looks_for(event) == BOTH


@each_way
async def test_publish_itself_commits_nothing(way: Way, place: Place, onlooker: Onlooker) -> None:
    event = an_event()
    async with way.at(place) as caller:
        await caller.begin()
        assert await caller.publish(event) == Published((event.event_id,), ())
        await caller.order(ref(event))
        assert await onlooker.looks_for(event) == NEITHER
        await caller.commit()
        assert await onlooker.looks_for(event) == BOTH


@each_way
async def test_a_rollback_leaves_neither_and_the_event_can_be_published_anew(
    way: Way, place: Place, onlooker: Onlooker
) -> None:
    event = an_event()
    async with way.at(place) as caller:
        await caller.begin()
        await caller.order(ref(event))
        assert await caller.publish(event) == Published((event.event_id,), ())
        await caller.rollback()
        assert await onlooker.looks_for(event) == NEITHER
        await caller.begin()
        await caller.order(ref(event))
        assert await caller.publish(event) == Published((event.event_id,), ())
        await caller.commit()
        assert await onlooker.looks_for(event) == BOTH


@each_way
async def test_a_caller_that_ends_without_a_commit_leaves_neither(way: Way, place: Place, onlooker: Onlooker) -> None:
    event = an_event()
    async with way.at(place) as caller:
        await caller.begin()
        await caller.order(ref(event))
        await caller.publish(event)
    assert await onlooker.looks_for(event) == NEITHER


@each_way
async def test_the_same_id_is_accepted_once_and_the_second_time_called_a_duplicate(
    way: Way, place: Place, onlooker: Onlooker
) -> None:
    first = an_event()
    again = an_event(event_id=first.event_id)
    async with way.at(place) as caller:
        await caller.begin()
        assert await caller.publish(first) == Published((first.event_id,), ())
        await caller.commit()
        await caller.begin()
        await caller.order(ref(again))
        assert await caller.publish(again) == Published((), (first.event_id,))
        await caller.commit()
    assert await onlooker.looks_for(again) == BOTH  # the duplicate did the caller's own row no harm
    assert await onlooker.reads(again) == first


@each_way
async def test_more_events_than_fit_a_statement_are_accepted_in_one_call(way: Way, place: Place) -> None:
    many = [an_event() for _ in range(STATEMENT_EVENTS + 1)]
    async with way.at(place) as caller:
        await caller.begin()
        answer = await caller.publish(*many)
        await caller.rollback()
    assert answer == Published(tuple(event.event_id for event in many), ())


@each_way
async def test_several_events_in_one_call_are_answered_in_the_order_given(
    way: Way, place: Place, onlooker: Onlooker
) -> None:
    known, twice, last = (an_event() for _ in range(3))
    other = an_event(event_id=twice.event_id)
    async with way.at(place) as caller:
        await caller.begin()
        await caller.publish(known)
        answer = await caller.publish(last, twice, known, other)
        await caller.commit()
    assert answer == Published((last.event_id, twice.event_id), (known.event_id, other.event_id))
    assert [await onlooker.reads(event) for event in (known, twice, last)] == [known, twice, last]


@each_way
async def test_whatever_an_event_holds_arrives(way: Way, place: Place, onlooker: Onlooker) -> None:
    full = an_event(
        event_type="product.price_changed",
        occurred_at=datetime(2026, 3, 1, 9, 30, 15, 123456, tzinfo=timezone(timedelta(hours=9))),
        actor_id="100% %s ? $1 :p0 {}",
        target_id="b'\"\\;--,NULL",
        payload={
            "이름": "사과 🔥",
            "nested": {"list": [1, None, True, "x\ny\t\"'\\", ":p0 %s"]},
            "big": 2**60,
            "small": 0.1,
        },
    )
    bare = Event(event_type="order.paid", occurred_at=datetime(2026, 3, 1, tzinfo=UTC))
    async with way.at(place) as caller:
        await caller.begin()
        assert await caller.publish(full, bare) == Published((full.event_id, bare.event_id), ())
        await caller.commit()
    assert await onlooker.reads(full) == full
    assert await onlooker.reads(bare) == bare


@each_way
async def test_no_events_are_no_trouble(way: Way, place: Place) -> None:
    async with way.at(place) as caller:
        assert await caller.publish() == Published((), ())


@each_way
async def test_what_is_no_event_is_refused_before_anything_is_stored(way: Way, place: Place, onlooker: Onlooker) -> None:
    event = an_event()
    async with way.at(place) as caller:
        await caller.begin()
        await caller.order(ref(event))
        with pytest.raises(BadEvent, match="Event objects, not dict"):
            await caller.publish(event, {"eventType": "order.paid"})  # type: ignore[arg-type]
        await caller.commit()
    assert await onlooker.looks_for(event) == (True, False)


@pytest.mark.parametrize("way", CARELESS_WAYS, ids=str)
async def test_autocommit_without_a_transaction_is_refused_and_nothing_is_stored(
    way: Way, place: Place, onlooker: Onlooker
) -> None:
    event = an_event()
    async with way.at(place) as caller:
        await caller.order(ref(event))
        assert await onlooker.looks_for(event) == (True, False)  # it is autocommit indeed
        with pytest.raises(NoTransactionOpen, match="Begin a transaction first"):
            await caller.publish(event)
    assert await onlooker.looks_for(event) == (True, False)


@pytest.mark.parametrize("way", OWN_ROWS, ids=str)
async def test_the_callers_own_kinds_of_rows_and_cursors_are_no_trouble_and_stay(
    way: Way, place: Place, onlooker: Onlooker
) -> None:
    known, fresh = an_event(), an_event()
    async with way.at(place) as caller:
        await caller.begin()
        assert await caller.publish(known) == Published((known.event_id,), ())
        assert await caller.publish(known, fresh) == Published((fresh.event_id,), (known.event_id,))
        await caller.commit()
        assert {name: getattr(caller.tx, name) for name in way.options} == way.options
    assert await onlooker.reads(fresh) == fresh


@pytest.mark.parametrize("first_commits", [True, False], ids=["commits", "rolls back"])
async def test_the_same_id_in_two_transactions_at_once_waits_for_the_first_to_end(
    postgresql_place: Place, first_commits: bool
) -> None:
    event = an_event()
    way = Way(Asyncpg, "postgresql")
    async with way.at(postgresql_place) as first, way.at(postgresql_place) as second:
        await first.begin()
        await second.begin()
        await first.publish(event)
        answer = asyncio.create_task(second.publish(event))
        await is_waiting_for_a_lock(postgresql_place, second.tx.get_server_pid())
        await (first.commit() if first_commits else first.rollback())
        ids = (event.event_id,)
        assert await answer == (Published((), ids) if first_commits else Published(ids, ()))


async def is_waiting_for_a_lock(place: Place, backend: int) -> None:
    connection = await asyncpg.connect(place.where)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await connection.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", backend):
            pass
    await connection.close()


async def test_in_pipeline_mode_the_answer_is_waited_for(postgresql_place: Place) -> None:
    """There the driver does not know yet, when a statement has been sent, what became of it."""
    known, fresh = an_event(), an_event()
    with psycopg.connect(postgresql_place.where) as connection, connection.pipeline():
        assert publish(connection, known) == Published((known.event_id,), ())
        assert publish(connection, known) == Published((), (known.event_id,))
        assert publish(connection, known, fresh) == Published((fresh.event_id,), (known.event_id,))
    async with (
        await psycopg.AsyncConnection.connect(postgresql_place.where) as connection_async,
        connection_async.pipeline(),
    ):
        assert await publish(connection_async, known) == Published((), (known.event_id,))


async def test_json_codecs_of_the_callers_are_not_asked(postgresql_place: Place) -> None:
    event = an_event(payload={"paid": 10_000})
    async with Way(Asyncpg, "postgresql").at(postgresql_place) as caller:
        for name in ("json", "jsonb"):
            await caller.tx.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await caller.begin()
        await caller.publish(event)
        stored = await caller.tx.fetchval("SELECT payload FROM bongsu_events WHERE event_id = $1", event.event_id)
    assert stored == {"paid": 10_000}


@pytest.mark.parametrize("way", [way for way in OUTBOX_WAYS if not way.careless], ids=str)
async def test_without_a_table_the_cure_is_named_and_the_transaction_goes_on(
    way: Way, place: Place, onlooker: OutboxOnlooker
) -> None:
    event, later = an_event(), an_event()
    onlooker.rename("bongsu_outbox", "hidden_outbox")
    try:
        async with way.at(place) as caller:
            await caller.begin()
            with pytest.raises(NothingToPublishTo, match="bongsu migrate --outbox URL") as refused:
                await caller.publish(event)
            assert "\n" not in str(refused.value)
            await caller.order(ref(event))
            await caller.commit()
    finally:
        onlooker.rename("hidden_outbox", "bongsu_outbox")
    assert await onlooker.looks_for(event) == (True, False)
    async with way.at(place) as caller:
        await caller.begin()
        await caller.publish(later)
        await caller.commit()
    assert await onlooker.reads(later) == later


class Unrelated:
    pass


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (None, "builtins.NoneType"),
        ("postgresql://localhost/shop", "builtins.str"),
        (Unrelated(), "tests.ingress.test_publish.Unrelated"),
        (create_engine("sqlite://"), "sqlalchemy.engine.base.Engine"),
        (sessionmaker(), "sqlalchemy.orm.session.sessionmaker"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_no_connection_is_refused_by_name(given: Any, named: str) -> None:
    with pytest.raises(NotATransaction, match=f"publish was handed a {re.escape(named)}. .* Pass an open SQLAlchemy"):
        publish(given, an_event())


async def test_a_cursor_is_no_connection() -> None:
    with (
        contextlib.closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(NotATransaction, match=r"sqlite3\.Cursor"),
    ):
        publish(connection.cursor(), an_event())


async def test_another_database_is_refused_by_name() -> None:
    engine = create_engine("sqlite://", poolclass=NullPool)
    engine.dialect.name = "oracle"
    with engine.connect() as connection, pytest.raises(NotATransaction, match="Connection to oracle"):
        publish(connection, an_event())
