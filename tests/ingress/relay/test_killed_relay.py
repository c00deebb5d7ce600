"""kill -9 of callers, relays and sources, and a source that is cut off: committed = stored once, rolled back = never."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from bongsu import publish
from bongsu.ingress.consumer import Consumer
from bongsu.ingress.decode import decode_event
from bongsu.ingress.intake import Intake
from bongsu.ingress.relay import mysql, open_outbox, open_relay, postgres
from bongsu.model import Event, new_id
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import as_uuid, same
from bongsu.store.outbox import NewEvent
from tests.conftest import SettingsMaker
from tests.ingress.databases import Place, connect_plainly
from tests.ingress.relay.killed_relay import LIMIT, call_and_die, relay_and_die
from tests.ingress.source_rigs import OutboxRig, empty_database, outbox_rig
from tests.support.killed_processes import kill_at_random
from tests.support.long_runs import TIMES, seeds
from tests.support.mariadb import MariadbServer, start_mariadb
from tests.support.processes import forks
from tests.support.servers import PostgresServer, ServerMissing, start_postgres
from tests.support.waiting import until

DEATHS = 5
# Of the server of a source.
CRASHES = 3
# The outbox's database and the store's. `make chaos` has all.
PAIRS = [("mariadb", "sqlite"), ("postgresql", "postgresql")]
CROSSED = [("mariadb", "postgresql"), ("postgresql", "sqlite"), ("sqlite", "postgresql")] if TIMES > 1 else []

BACKLOG = 1_000_000 if TIMES > 1 else 4_000
BACKLOG_BATCH = 500
# Two batches and their decoded events take a few megabytes; a million rows at once would take hundreds.
GROWTH_BYTES = 100_000_000


def rows(place: Place, text: str) -> list[Any]:
    with contextlib.closing(connect_plainly(place)) as connection:
        cursor = connection.cursor()
        cursor.execute(text)
        found = list(cursor.fetchall()) if cursor.description else []
        connection.commit()
        return found


async def stored_ids(settings: Settings) -> list[str]:
    store = Store.open(settings)
    async with store.read() as tx:
        found = [str(as_uuid(row["event_id"])) for row in await tx.fetch(same("SELECT event_id FROM bongsu_events")())]
    await store.close()
    return sorted(found)


@pytest.fixture
async def rig(request: pytest.FixtureRequest, tmp_path: Path, source: str) -> AsyncIterator[OutboxRig]:
    with empty_database(request, source, tmp_path) as place:
        async with outbox_rig(place) as rig:
            rows(place, "CREATE TABLE orders (ref varchar(64) PRIMARY KEY)")
            yield rig


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize(("source", "home"), PAIRS + CROSSED)
async def test_killed_callers_and_relays_store_what_was_committed_once_and_nothing_else(
    rig: OutboxRig, home: str, migrated_settings: SettingsMaker, tmp_path: Path, seed: int
) -> None:
    settings, done = migrated_settings(home), tmp_path / "no more is to come"
    loop = asyncio.get_running_loop()

    def on_loop(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result()

    await asyncio.to_thread(kill_callers_and_relays, rig, settings, done, random.Random(seed), on_loop)

    committed = sorted(ref for (ref,) in rows(rig.place, "SELECT ref FROM orders"))
    assert committed
    assert await stored_ids(settings) == committed
    assert rows(rig.place, "SELECT event_id, error FROM bongsu_outbox") == []


def kill_callers_and_relays(
    rig: OutboxRig,
    settings: Settings,
    done: Path,
    dice: random.Random,
    on_loop: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    """With each death of a relay another caller begins, and one that is still at work may be killed; the way to the source
    is cut by one death and mended by the next."""

    def start_caller() -> Any:
        caller = forks.Process(target=call_and_die, args=(rig.place, dice.randrange(10**9)), daemon=True)
        caller.start()
        return caller

    callers = [start_caller(), start_caller()]
    is_cut = False
    relay = partial(relay_and_die, rig.url, done)
    for deaths in kill_at_random(relay, settings, dice, processes=2, deaths=DEATHS, pause=(0.3, 1.0)):
        if is_cut:
            on_loop(rig.mend())
        # A file that is moved away would be written to all the same, by callers that have it open.
        is_cut = not is_cut and deaths < DEATHS and dice.random() < 0.5 and rig.forwarder is not None
        if is_cut:
            on_loop(rig.cut())
        if deaths < DEATHS:
            dice.choice(callers).kill()
            callers.append(start_caller())
        elif not done.exists():
            for caller in callers:
                caller.join()
                assert caller.exitcode in (0, -9)
            done.touch()


@pytest.fixture
async def server(source: str) -> AsyncIterator[MariadbServer | PostgresServer]:
    """One that other tests do not use."""
    start: Callable[[], MariadbServer | PostgresServer] = start_mariadb if source == "mariadb" else start_postgres
    try:
        server = await asyncio.to_thread(start)
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield server
    await asyncio.to_thread(server.stop)


class Calling:
    """In a thread: transactions of an order and its event, one after the other, on the connections that can be had."""

    def __init__(self, place: Place, seed: int) -> None:
        self._place = place
        self._dice = random.Random(seed)
        self.committed = 0
        self.enough = threading.Event()

    def run(self) -> None:
        while not self.enough.is_set():
            with (
                contextlib.suppress(pymysql.Error, psycopg.Error, OSError),
                contextlib.closing(connect_plainly(self._place)) as connection,
            ):
                if self._place.database == "mysql":
                    connection.autocommit(False)
                while not self.enough.is_set():
                    self._transact(connection)

    def _transact(self, connection: Any) -> None:
        event = Event(event_type="order.paid", ref_id=str(new_id()))
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute(f"INSERT INTO orders VALUES ('{event.event_id}')")
        publish(connection, event)
        if self._dice.random() < 0.3:
            connection.rollback()
        else:
            connection.commit()
            self.committed += 1

    async def until(self, more: int) -> None:
        """Until so many more are committed."""
        wanted = self.committed + more

        async def are_committed() -> bool:
            return self.committed >= wanted

        await until(are_committed)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize(("source", "home"), PAIRS)
async def test_what_was_committed_before_the_server_of_a_source_was_killed_is_stored_once(
    server: MariadbServer | PostgresServer, home: str, migrated_settings: SettingsMaker, seed: int
) -> None:
    dice = random.Random(seed)
    place = Place("mysql" if isinstance(server, MariadbServer) else "postgresql", server.create_database())
    settings, outbox = migrated_settings(home), open_outbox(place.where)
    await outbox.create()
    rows(place, "CREATE TABLE orders (ref varchar(64) PRIMARY KEY)")
    store, calling = Store.open(settings), Calling(place, dice.randrange(10**9))

    async def is_empty() -> bool:
        return not await outbox.has_waiting()

    async with running(Intake(store, LocalSignals(), "outbox")) as intake:

        def relaying() -> Consumer[Event | NewEvent]:
            return Consumer(open_relay("orders", place.where), decode_event, intake.accept_in_turn, limit=LIMIT)

        async with running(relaying()), running(relaying()):
            caller = asyncio.create_task(asyncio.to_thread(calling.run))
            for _ in range(CRASHES):
                await calling.until(dice.randrange(1, 200))
                await outbox.close()
                await asyncio.to_thread(server.restart)
            await calling.until(1)
            calling.enough.set()
            await caller
            await until(is_empty)
    await outbox.close()
    await store.close()
    committed = sorted(ref for (ref,) in rows(place, "SELECT ref FROM orders"))
    assert len(committed) >= calling.committed
    assert await stored_ids(settings) == committed
    assert rows(place, "SELECT event_id, error FROM bongsu_outbox") == []


@pytest.mark.parametrize("source", ["mariadb", "postgresql"])
async def test_the_rows_of_a_relay_that_has_vanished_are_relayed_by_another(
    rig: OutboxRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection stays open, as after the loss of its machine: the server has to end it."""
    for module in (mysql, postgres):
        monkeypatch.setattr(module, "STALLED_SECONDS", 1)
    await rig.put(message := {"eventId": str(new_id()), "eventType": "order.paid"})
    vanished, other = rig.source(), rig.source()
    assert [each.handle for each in await vanished.receive(10)] == [message["eventId"]]
    while not (received := await other.receive(10)):
        pass
    assert [each.handle for each in received] == [message["eventId"]]
    await other.close()
    await vanished.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", ["mariadb", "postgresql"])
async def test_of_a_long_backlog_a_relay_holds_only_a_batch_and_all_of_it_arrives(
    rig: OutboxRig, migrated_settings: SettingsMaker
) -> None:
    fill(rig.place, BACKLOG)
    settings = migrated_settings("sqlite")
    store, outbox = Store.open(settings), open_outbox(rig.url)
    sizes: list[int] = []
    memory = [resident_bytes()]
    async with running(Intake(store, LocalSignals(), "outbox")) as intake:

        async def accept(items: Sequence[Event | NewEvent]) -> Sequence[Any]:
            sizes.append(len(items))
            memory.append(resident_bytes())
            return await intake.accept_in_turn(items)

        relay = open_relay("orders", rig.url)
        async with running(Consumer[Event | NewEvent](relay, decode_event, accept, limit=BACKLOG_BATCH)):
            while await outbox.has_waiting():
                await asyncio.sleep(0.05)
    await outbox.close()
    async with store.read() as tx:
        (found,) = await tx.fetch(same("SELECT count(*) AS count FROM bongsu_events")())
    await store.close()
    assert (found["count"], sum(sizes)) == (BACKLOG, BACKLOG)
    assert max(sizes) <= BACKLOG_BATCH
    assert max(memory) - memory[0] < GROWTH_BYTES


def fill(place: Place, count: int) -> None:
    with contextlib.closing(connect_plainly(place)) as connection:
        cursor = connection.cursor()
        if place.database == "mysql":
            cursor.executemany("INSERT INTO bongsu_outbox (event_type) VALUES (%s)", [("order.paid",)] * count)
        else:
            cursor.execute(f"INSERT INTO bongsu_outbox (event_type) SELECT 'order.paid' FROM generate_series(1, {count})")
        connection.commit()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4_096
