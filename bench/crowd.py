"""Many members with a device each, all of whom have looked at one product; and two ways to notify them all: ours, and the
barest statements that write the same rows."""

from __future__ import annotations

from dataclasses import dataclass

from bongsu.decide.step import Decider
from bongsu.decide.worker import EventWorker
from bongsu.model import Event
from bongsu.render.templates import Templates
from bongsu.rules import catalogue
from bongsu.settings import Settings
from bongsu.store import Statement, Store, outbox
from bongsu.store.core.query import in_both, same

PRODUCT = "the-product"
# Rows written by one statement while the crowd is set up: statements have a time limit.
_SLICE = 100_000


def _for_each_number(insert: str, columns: str) -> Statement:
    """INSERT … SELECT of numbers from $1 to $2, where `name` is a member's id and `n` its number."""
    return Statement(
        postgres=f"""
            INSERT INTO {insert}
            SELECT {columns} FROM (
                SELECT n, 'member-' || lpad(CAST(n AS text), 8, '0') AS name
                FROM generate_series(CAST($1 AS integer), CAST($2 AS integer)) AS n) AS numbered""",
        sqlite=f"""
            INSERT INTO {insert}
            WITH RECURSIVE numbers(n) AS (SELECT $1 UNION ALL SELECT n + 1 FROM numbers WHERE n < $2)
            SELECT {columns} FROM (SELECT n, 'member-' || printf('%08d', n) AS name FROM numbers) AS numbered""",
    )


_FILL = (
    _for_each_number("bongsu_members (member_id)", "name"),
    _for_each_number(
        "bongsu_devices (member_id, device_id, token, platform, has_consent)",
        "name, 'phone', 'token-' || n, 'ANDROID', true",
    ),
    _for_each_number("bongsu_behaviors (product_id, member_id, action)", f"'{PRODUCT}', name, 'VIEW'"),
)
_EMPTY = tuple(
    Statement(f"TRUNCATE bongsu_{table} CASCADE", f"DELETE FROM bongsu_{table}")
    for table in ("deliveries", "notifications", "suppressions", "messages", "events")
)
_RESET = same("UPDATE bongsu_members SET capped_day = 0, capped_count = 0, unread = 0")
_CHECKPOINT = Statement(postgres="CHECKPOINT", sqlite="PRAGMA wal_checkpoint(TRUNCATE)")
_ANALYZE = Statement(postgres="VACUUM ANALYZE", sqlite="SELECT 1")
_BARE = (
    in_both(
        lambda d: (
            f"""
    INSERT INTO bongsu_messages (message_id, event_id, notice_index, locale, type, subject, title, body, data, channels,
                                 priority, guarantee, is_critical, created_at)
    VALUES (1, '01890000-0000-7000-8000-000000000000', 0, 'ko', 'T', 's', 't', 'b', '{{}}', 9, 0, 'at_most_once', false,
            {d.now})"""
        )
    ),
    in_both(
        lambda d: (
            f"""
    INSERT INTO bongsu_notifications (member_id, message_id, channels, created_at)
    SELECT member_id, 1, 9, {d.now} FROM bongsu_behaviors WHERE product_id = '{PRODUCT}'"""
        )
    ),
    in_both(
        lambda d: (
            f"""
    INSERT INTO bongsu_deliveries (notification_id, member_id, message_id, channel, device_id, rank, due, created_at)
    SELECT n.notification_id, n.member_id, 1, 'PUSH', d.device_id, 0, {d.now}, {d.now}
    FROM bongsu_notifications n JOIN bongsu_devices d ON d.member_id = n.member_id"""
        )
    ),
)
_COUNT = same("""
    SELECT (SELECT count(*) FROM bongsu_notifications) AS notifications,
           (SELECT count(*) FROM bongsu_deliveries) AS deliveries""")


@dataclass
class Crowd:
    """A store with so many members, and the ways to notify them all."""

    store: Store
    settings: Settings
    count: int

    @classmethod
    async def gathered(cls, settings: Settings, count: int) -> Crowd:
        crowd = cls(Store.open(settings), settings, 0)
        await crowd.grow(count)
        return crowd

    async def grow(self, count: int) -> None:
        """Until there are so many."""
        for first in range(self.count + 1, count + 1, _SLICE):
            async with self.store.transaction() as tx:
                await tx.execute(*(insert(first, min(first + _SLICE - 1, count)) for insert in _FILL))
        self.count = count
        await self._run_alone(_ANALYZE)

    async def forget(self) -> None:
        """As if no member had been notified: what each round begins with.

        A checkpoint comes before, not after: else the first change of every old page would be logged whole, and only on our
        side, because the baseline changes none.
        """
        await self._run_alone(_CHECKPOINT)
        async with self.store.transaction() as tx:
            await tx.execute(*(statement() for statement in _EMPTY), _RESET())
        # What a server does by itself, given a minute: without it the dead rows of one round would slow the next.
        await self._run_alone(_ANALYZE)

    async def _run_alone(self, statement: Statement) -> None:
        """Outside of a transaction."""
        async with self.store.single() as tx:
            await tx.execute(statement())

    async def tell(self) -> None:
        """Our way: an event, the rules, every check, chunk by chunk."""
        event = Event(
            event_type="product.price_changed", ref_id=PRODUCT, payload={"previousPrice": 20000, "currentPrice": 15000}
        )
        async with self.store.single() as tx:
            await outbox.add(tx, [event])
        decider = Decider(self.store, Templates.load(), self.settings)
        worker = EventWorker(self.store, catalogue(self.settings), self.settings, decider)
        while await worker.tick():
            pass
        await self._check()

    async def tell_barely(self) -> None:
        """The same rows of the same members, in one transaction, without any check."""
        async with self.store.transaction() as tx:
            await tx.execute(*(statement() for statement in _BARE))
        await self._check()

    async def _check(self) -> None:
        async with self.store.read() as tx:
            (row,) = await tx.fetch(_COUNT())
        assert (row["notifications"], row["deliveries"]) == (self.count, self.count)

    async def leave(self) -> None:
        await self.store.close()
