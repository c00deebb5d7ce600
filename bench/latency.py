"""How long an event takes from accepted to decided, when a hundred a second are about a hundred members each."""

from __future__ import annotations

import asyncio
import statistics
import time
from uuid import UUID

from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.ingress.intake import Intake
from bongsu.model import Event
from bongsu.render.templates import Templates
from bongsu.rules import catalogue
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import EVENTS_TOPIC
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import as_uuid, same

SECONDS = 30
EVENTS_A_SECOND = 100
INTERESTED = 100
MEMBERS = 10_000
LOOK_SECONDS = 0.01

NEWEST = same("SELECT event_id FROM bongsu_messages ORDER BY message_id DESC LIMIT 300")


async def latency(settings: Settings) -> str:
    """A sentence with the median and the 99th percentile."""
    # Every member is notified of hundreds of products: the daily limit is not what is measured here.
    store, settings = Store.open(settings), settings.model_copy(update={"daily_limit": 1_000_000})
    await _fill(store)
    signals = LocalSignals()
    worker = EventWorker(store, catalogue(settings), settings, Decider(store, Templates.load(), settings))
    try:
        with signals.listen(EVENTS_TOPIC, lambda _data: worker.wake()):
            async with running(worker), running(Intake(store, signals, "bench")) as intake:
                seconds = await _measure(store, intake)
    finally:
        await store.close()
    hundredths = statistics.quantiles(seconds, n=100)
    return (
        f"{EVENTS_A_SECOND} price events a second about {INTERESTED} interested members each, {SECONDS} s on PostgreSQL: "
        f"accepted to deliveries ready {hundredths[49] * 1000:.0f} ms at the median, {hundredths[98] * 1000:.0f} ms at the "
        f"99th percentile, of {len(seconds):,} events (budget: under 1 s)."
    )


async def _fill(store: Store) -> None:
    products = SECONDS * EVENTS_A_SECOND
    async with store.transaction() as tx:
        for statement in (
            f"INSERT INTO bongsu_members (member_id) SELECT 'm' || n FROM generate_series(0, {MEMBERS - 1}) n",
            f"""INSERT INTO bongsu_devices (member_id, device_id, token, platform, has_consent)
                SELECT 'm' || n, 'phone', 'token-' || n, 'ANDROID', true FROM generate_series(0, {MEMBERS - 1}) n""",
            f"""INSERT INTO bongsu_behaviors (product_id, member_id, action)
                SELECT 'p' || p, 'm' || ((p * {INTERESTED} + n) % {MEMBERS}), 'VIEW'
                FROM generate_series(0, {products - 1}) p, generate_series(0, {INTERESTED - 1}) n""",
        ):
            await tx.execute(same(statement)())
    async with store.single() as tx:
        await tx.execute(same("VACUUM ANALYZE")())


async def _measure(store: Store, intake: Intake) -> list[float]:
    accepted: dict[UUID, float] = {}
    decided: dict[UUID, float] = {}
    watcher = asyncio.create_task(_watch(store, decided))
    began = time.perf_counter()
    tasks = []
    for number in range(SECONDS * EVENTS_A_SECOND):
        await asyncio.sleep(max(0.0, began + number / EVENTS_A_SECOND - time.perf_counter()))
        tasks.append(asyncio.create_task(_accept(intake, number, accepted)))
    await asyncio.gather(*tasks)
    while len(decided) < len(accepted):
        await asyncio.sleep(LOOK_SECONDS)
    watcher.cancel()
    return [max(0.0, decided[event_id] - at) for event_id, at in accepted.items()]


async def _accept(intake: Intake, number: int, accepted: dict[UUID, float]) -> None:
    event = Event(
        event_type="product.price_changed", ref_id=f"p{number}", payload={"previousPrice": 100, "currentPrice": 50}
    )
    await intake.accept([event])
    accepted[event.event_id] = time.perf_counter()


async def _watch(store: Store, decided: dict[UUID, float]) -> None:
    """When each event's message, and with it its deliveries, can be read. Some are committed out of order."""
    while True:
        async with store.read() as tx:
            rows = await tx.fetch(NEWEST())
        now = time.perf_counter()
        for row in rows:
            decided.setdefault(as_uuid(row["event_id"]), now)
        await asyncio.sleep(LOOK_SECONDS)
