"""Many members with a device each, all of whom have looked at one product; and the notification they are to get, twice over:
by us, and by the barest statements that write the same rows."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu.fanout import FanOut
from bongsu.model import Event
from bongsu.rules import catalogue
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import events as statements
from bongsu.templates import Templates
from bongsu.worker import EventWorker

PRODUCT = "the-product"

_SERIES = {
    "postgresql": "generate_series(1, {count}) AS series(n)",
    "sqlite": "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count}) SELECT n FROM s) AS t",
}
_NAME = {"postgresql": "'member-' || lpad(n::text, 8, '0')", "sqlite": "'member-' || printf('%08d', n)"}


@dataclass
class Crowd:
    """A store with so many members, and the ways to tell them all."""

    store: Store
    settings: Settings
    count: int

    @classmethod
    async def gathered(cls, settings: Settings, count: int) -> Crowd:
        # Nothing here is to be stopped for taking long.
        crowd = cls(Store.open(settings, statement_seconds=600), settings, count)
        kind = crowd.store.dialect.name
        series, name = _SERIES[kind].format(count=count), _NAME[kind]
        now = crowd.store.dialect.now
        async with crowd.store.write() as tx:
            for statement in (
                f"INSERT INTO bongsu_members (member_id) SELECT {name} FROM {series}",
                f"""INSERT INTO bongsu_devices (member_id, device_id, token, platform, has_consent)
                    SELECT {name}, 'phone', 'token-' || n, 'ANDROID', true FROM {series}""",
                f"INSERT INTO bongsu_behaviors SELECT '{PRODUCT}', {name}, 'VIEW', {now} FROM {series}",
            ):
                await tx.exec_driver_sql(statement)
        await crowd._analyze()
        return crowd

    async def forget(self) -> None:
        """As if nobody had been told: what each round begins with.

        A checkpoint comes before, not after: else the first touch of every old page would be logged whole, and only on our
        side, because the baseline touches none.
        """
        await self._checkpoint()
        async with self.store.write() as tx:
            for table in ("deliveries", "notifications", "suppressions", "messages", "events"):
                await _empty(tx, f"bongsu_{table}")
            await tx.exec_driver_sql("UPDATE bongsu_members SET capped_day = 0, capped_count = 0, unread = 0")
        await self._analyze()

    async def _analyze(self) -> None:
        """What a server does by itself, given a minute: without it the dead rows of one round would slow the next."""
        async with self.store.read() as connection:
            if self.store.dialect.name == "postgresql":
                await connection.exec_driver_sql("VACUUM ANALYZE")

    async def _checkpoint(self) -> None:
        async with self.store.read() as connection:
            if self.store.dialect.name == "postgresql":
                await connection.exec_driver_sql("CHECKPOINT")

    async def tell(self) -> None:
        """Our way: an event, the rules, every check, chunk by chunk."""
        event = Event(
            event_type="product.price_changed", ref_id=PRODUCT, payload={"previousPrice": 20000, "currentPrice": 15000}
        )
        async with self.store.write() as tx:
            await statements.add(tx, [event])
        worker = EventWorker(self.store, catalogue(self.settings), self.settings, FanOut(Templates.load(), self.settings))
        while await worker.tick():
            pass
        await self._check()

    async def tell_barely(self) -> None:
        """The same rows of the same members, in one transaction, nothing asked."""
        dialect = self.store.dialect
        async with self.store.write() as tx:
            await tx.exec_driver_sql(
                f"""INSERT INTO bongsu_messages
                        (message_id, event_id, notice, locale, type, subject, title, body, data, channels, lane, guarantee,
                         is_critical, created_at)
                    VALUES (1, '01890000-0000-7000-8000-000000000000', 0, 'ko', 'T', 's', 't', 'b', '{json.dumps({})}', 9,
                            0, 'at_most_once', false, {dialect.now})"""
            )
            await tx.exec_driver_sql(
                f"""INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
                    SELECT member_id, 1, 9, {dialect.now} FROM bongsu_behaviors WHERE product_id = '{PRODUCT}'"""
            )
            await tx.exec_driver_sql(
                f"""INSERT INTO bongsu_deliveries
                        (notification_id, member_id, message_id, channel, device_id, lane, due, created_at)
                    SELECT n.notification_id, n.member_id, 1, 'PUSH', d.device_id, 0, {dialect.now}, {dialect.now}
                    FROM bongsu_notifications n JOIN bongsu_devices d ON d.member_id = n.member_id"""
            )
        await self._check()

    async def _check(self) -> None:
        async with self.store.read() as connection:
            for table in ("notifications", "deliveries"):
                found = (await connection.exec_driver_sql(f"SELECT count(*) FROM bongsu_{table}")).scalar_one()
                assert found == self.count, f"{found} {table} instead of {self.count}"

    async def leave(self) -> None:
        await self.store.close()


async def _empty(tx: AsyncConnection, table: str) -> None:
    await tx.exec_driver_sql(f"TRUNCATE {table} CASCADE" if tx.dialect.name == "postgresql" else f"DELETE FROM {table}")
