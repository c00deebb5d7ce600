"""recommend: a run of the daily recommendation with the embedded recommender, until everybody's event is stored.

Against the events alone: as many of the same size, stored in transactions as large, for nobody in particular.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from bench.ground import Ground
from bench.measure import Contest, Measure
from bongsu.clock.jobs.recommend import PAGE, Recommend
from bongsu.clock.recommenders.embedded import OpenEmbedded
from bongsu.clock.runs import Runs
from bongsu.model import new_id
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Statement, Store, outbox
from bongsu.store.core.query import same
from bongsu.store.outbox import NewEvent

TITLE = "recommend"
# 2,000 members a second on a machine that stores 40,000 events a second, and has one core for each.
BUDGET = 0.05
MEMBERS, FEW = 100_000, 20_000
ACTIONS, PRODUCTS = 10, 5_000

_PAYLOAD = (
    '{"products":[{"productId":"product-1","productName":"Name of product-1"},{"productId":"product-20",'
    '"productName":"Name of product-20"},{"productId":"product-300","productName":"Name of product-300"}],'
    '"strategy":"seen-together"}'
)

# Every member does so many things with products, of which some are much more popular than others.
_ACT = """
    WITH RECURSIVE m (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM m WHERE number < {members}),
    a (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM a WHERE number < {actions})
    INSERT INTO bongsu_behaviors (product_id, member_id, action, acted_at)
    SELECT 'product-' || CAST({uniform} * {uniform} * {products} AS integer), 'member-' || CAST(m.number AS text),
           CASE a.number % 5 WHEN 0 THEN 'PURCHASE' WHEN 1 THEN 'CLICK' ELSE 'VIEW' END, {lately}
    FROM m, a WHERE true ON CONFLICT DO NOTHING"""
_UNIFORM = {"postgres": "random()", "sqlite": "(abs(random()) % 1000000 / 1000000.0)"}
_LATELY = {
    "postgres": "now() - random() * interval '6 days'",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS integer) - abs(random()) % (6 * 86400000000)",
}
_FILL = (
    "INSERT INTO bongsu_members (member_id) SELECT DISTINCT member_id FROM bongsu_behaviors",
    """INSERT INTO bongsu_products (product_id, name)
       SELECT DISTINCT product_id, 'Name of ' || product_id FROM bongsu_behaviors""",
    "ANALYZE",
)


async def contests(ground: Ground) -> AsyncGenerator[Contest, None]:
    members = FEW if ground.is_quick else MEMBERS
    for make in (ground.postgres, ground.sqlite):
        async with _shop(await make(), members) as shop:
            yield Contest(
                f"{shop.name}, {members:,} active members",
                "the events alone",
                "member",
                Measure.SPEED,
                shop.store_events,
                shop.recommend,
                shop.clear,
                units_a_turn=members,
                budget=BUDGET,
            )


@dataclass(frozen=True)
class _Shop:
    name: str
    store: Store
    settings: Settings
    members: int

    async def recommend(self) -> None:
        opened = OpenEmbedded(self.store, self.settings.recommendation_limit)
        job = Recommend(self.store, LocalSignals(), self.settings, opened).job("0 9 * * *", is_enabled=True)
        run = (await Runs(self.store, self.settings.lease_seconds).run_by_hand(job, "bench")).run
        assert run.counts == {"notified": self.members}, f"{run.result or run.error}: not everybody was notified"

    async def store_events(self) -> None:
        now = datetime.now(UTC)
        for _ in range(self.members // PAGE):
            async with self.store.transaction() as tx:
                event = NewEvent(new_id(), "recommendation.ready", now, None, "member-1", "product-1", _PAYLOAD)
                await outbox.add(tx, [event._replace(event_id=new_id()) for _ in range(PAGE)])

    async def clear(self) -> None:
        async with self.store.transaction() as tx:
            await tx.execute(same("DELETE FROM bongsu_events")(), same("DELETE FROM bongsu_runs")())


@contextlib.asynccontextmanager
async def _shop(settings: Settings, members: int) -> AsyncIterator[_Shop]:
    store = Store.open(settings)
    texts = {
        database: _ACT.format(
            members=members, actions=ACTIONS, products=PRODUCTS, uniform=_UNIFORM[database], lately=_LATELY[database]
        )
        for database in ("postgres", "sqlite")
    }
    try:
        async with store.transaction() as tx:
            await tx.execute(Statement(**texts)(), *(same(text)() for text in _FILL))
        yield _Shop("PostgreSQL" if not settings.is_embedded else "SQLite", store, settings, members)
    finally:
        await store.close()
