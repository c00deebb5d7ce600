"""How long an event takes from the commit in another service's database until it is stored here."""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from tests.ingress.databases import Place, connect_plainly
from tests.support.mariadb import find_mariadb

from bench.ground import Ground
from bench.sample import COLUMNS, new_row
from bongsu.ingress.consumer import Consumer
from bongsu.ingress.decode import Rejected, decode_event
from bongsu.ingress.intake import Intake
from bongsu.ingress.relay import open_outbox, open_relay
from bongsu.ingress.relay.source import BUSY_FOR_SECONDS
from bongsu.model import Event
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Share, Store
from bongsu.store.outbox import NewEvent

BUDGET_SECONDS = 0.100
EVENTS_A_SECOND = 20
SECONDS, QUICK_SECONDS = 30, 10
# Single events, each after the relay has found nothing for so long that it looks at its longest interval.
SINGLES, QUICK_SINGLES = 40, 10
IDLE_SECONDS = BUSY_FOR_SECONDS + 0.5
# Once: what a longer silence does to connections.
SILENCE_SECONDS = 70.0
PATIENCE_SECONDS = 30.0

Events = Sequence[Event | NewEvent]


async def report(ground: Ground) -> str:
    """A line for each database; both are relayed at the same time, by one process."""
    mariadb = find_mariadb()
    try:
        places = {
            "PostgreSQL": Place("postgresql", (await ground.postgres()).database_url),
            "MariaDB": Place("mysql", mariadb.create_database()),
        }
        home = await ground.postgres()
        lines = await asyncio.gather(*(_line(name, home, place, ground.is_quick) for name, place in places.items()))
    finally:
        mariadb.stop()
    return "\n".join(
        [
            f"From the caller's commit until the event is committed in PostgreSQL: {EVENTS_A_SECOND} events a second, "
            f"each in a transaction of its own; single events, each after {IDLE_SECONDS} s without any; and one after "
            f"{SILENCE_SECONDS:.0f} s (budget: 99 of 100 in {BUDGET_SECONDS * 1000:.0f} ms).",
            "",
            "| outbox in | events | median | 99 of 100 | | single events | median | slowest | | after a silence |",
            "|---|--:|--:|--:|---|--:|--:|--:|---|--:|",
            *lines,
        ]
    )


async def _line(name: str, home: Settings, place: Place, is_quick: bool) -> str:
    async with _relaying(home, place) as arrivals:
        busy = await arrivals.measure(
            (QUICK_SECONDS if is_quick else SECONDS) * EVENTS_A_SECOND, 1 / EVENTS_A_SECOND, spread=1 / EVENTS_A_SECOND
        )
        # Anywhere between two looks.
        singles = await arrivals.measure(QUICK_SINGLES if is_quick else SINGLES, IDLE_SECONDS, spread=0.1)
        await asyncio.sleep(0 if is_quick else SILENCE_SECONDS)
        (silent,) = await arrivals.measure(1, IDLE_SECONDS, spread=0.1)
    slowest = statistics.quantiles(busy, n=100)[98]
    cells = (
        f"{len(busy):,}", _millis(statistics.median(busy)), _millis(slowest), _verdict(slowest),
        f"{len(singles)}", _millis(statistics.median(singles)), _millis(max(singles)), _verdict(max(singles)),
        _millis(silent),
    )  # fmt: skip
    return f"| {name} | {' | '.join(cells)} |"


class _Arrivals:
    """Commits events in a database, and notes when each is stored."""

    def __init__(self, intake: Intake, place: Place) -> None:
        self._intake = intake
        self._place = place
        self._stored: dict[str, float] = {}
        self._came = asyncio.Event()

    async def accept(self, events: Events) -> Sequence[bool | Rejected]:
        answers = await self._intake.accept_in_turn(events)
        now = time.perf_counter()
        self._stored.update((str(event.event_id), now) for event in events)
        self._came.set()
        return answers

    async def measure(self, count: int, pause: float, spread: float) -> list[float]:
        """Seconds, of so many events with a pause before each."""
        dice = random.Random(count)
        committed: dict[UUID, float] = {}
        with contextlib.closing(connect_plainly(self._place)) as connection:
            began = time.perf_counter()
            for number in range(1, count + 1):
                at = began + number * pause + dice.uniform(0, spread)
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
                row = new_row()
                committed[row[0]] = await asyncio.to_thread(_commit, connection, row)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not committed.keys() <= {UUID(name) for name in self._stored}:
                self._came.clear()
                await self._came.wait()
        return [max(0.0, self._stored[str(event_id)] - at) for event_id, at in committed.items()]


def _commit(connection: object, row: Sequence[object]) -> float:
    """When it was committed."""
    marks = ", ".join(["%s"] * len(COLUMNS))
    values = [value if value is None else str(value).removesuffix("+00:00") for value in row]
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute(f"INSERT INTO bongsu_outbox ({', '.join(COLUMNS)}) VALUES ({marks})", values)
    connection.commit()  # type: ignore[attr-defined]
    return time.perf_counter()


@contextlib.asynccontextmanager
async def _relaying(settings: Settings, place: Place) -> AsyncIterator[_Arrivals]:
    database = open_outbox(place.where)
    await database.create()
    await database.close()
    store = Store.open(settings)
    async with running(Intake(store.share(Share.INGEST), LocalSignals(), "outbox")) as intake:
        arrivals = _Arrivals(intake, place)
        async with running(Consumer[Event | NewEvent](open_relay("bench", place.where), decode_event, arrivals.accept)):
            yield arrivals
    await store.close()


def _verdict(seconds: float) -> str:
    return "met" if seconds <= BUDGET_SECONDS else "missed"


def _millis(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
