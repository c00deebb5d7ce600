"""The daily recommendation: one event for each active member, from which all that follows is that of any event.

The run pages through the members. The recommender is asked between two steps, because no transaction may wait for a service;
a step stores the events of a page with the cursor in the list of members. The id of an event is made from the day and the
member, so no member gets two on one day: not from a page that is repeated, nor from a second run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid5
from zoneinfo import ZoneInfo

import orjson

from bongsu.clock.recommenders import OpenRecommender, Recommendation, Recommendations, Recommender
from bongsu.clock.run import Run
from bongsu.model.job import Job
from bongsu.rules.recommend import READY
from bongsu.runtime import telemetry
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import EVENTS_TOPIC
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from bongsu.store.members import recommendations as statements
from bongsu.store.outbox import NewEvent

# Members of one step. More gains little, and a process that dies repeats as many calls of a recommender.
PAGE = 1_000
# Made once, at random. Another would give all members a second recommendation on the day of the update.
_NAMESPACE = UUID("6f1d7c3a-52c0-4d0b-9b39-0f6f5f3f8f0e")

# Why members are skipped.
_WHY = {"without": "without a recommendation", "failed": "for whom the recommender failed"}


def event_id(day: str, member_id: str) -> UUID:
    return uuid5(_NAMESPACE, f"{day} {member_id}")


def describe(counts: Mapping[str, int]) -> str:
    """What a run did."""
    skipped = counts.get("without", 0) + counts.get("failed", 0)
    why = ", ".join(f"{counts[name]} {words}" for name, words in _WHY.items() if counts.get(name))
    parts = [f"{counts.get('notified', 0)} notified", f"{skipped} skipped" + (f" ({why})" if why else "")]
    if again := counts.get("again"):
        parts.append(f"{again} had theirs already")
    return ", ".join(parts)


class Recommend:
    def __init__(
        self, store: Store, signals: Signals, settings: Settings, open_recommender: OpenRecommender, page: int = PAGE
    ) -> None:
        self._store = store
        self._signals = signals
        self._zone: ZoneInfo = settings.zone
        self._days = timedelta(days=settings.recommendation_days)
        self._open_recommender = open_recommender
        self._page = page

    def job(self, cron: str, *, is_enabled: bool) -> Job:
        return Job(
            "recommend",
            "Recommends products to each member who was active lately.",
            self.work,
            cron,
            is_enabled=is_enabled,
            at_most_for=timedelta(hours=1),
            at_least_for=timedelta(minutes=5),
        )

    async def work(self, run: Run) -> str:
        """The cursor is the last member that was looked at."""
        since = run.scheduled_for - self._days
        if run.total is None:
            async with self._store.read() as tx:
                members = await statements.count_members(tx)
            await run.save(total=members)
        async with self._open_recommender(since) as recommender:
            while page := await self._next_page(run, since):
                await self._recommend(run, recommender, page)
        return describe(run.counts)

    async def _next_page(self, run: Run, since: datetime) -> list[tuple[str, bool]]:
        async with self._store.read() as tx:
            return await statements.find_page(tx, run.cursor or "", since, self._page)

    async def _recommend(self, run: Run, recommender: Recommender, page: Sequence[tuple[str, bool]]) -> None:
        active = [member_id for member_id, is_active in page if is_active]
        answer = await recommender.recommend(active) if active else Recommendations({})
        async with run.step() as step:
            # The recommender may take minutes: an event to a member who was erased meanwhile would insert them again.
            kept = await statements.keep_members(step, answer.found)
            found = {member_id: each for member_id, each in answer.found.items() if member_id in kept}
            events = self._events(run.scheduled_for, found)
            new = len(await outbox.add(step, events))
            failed = len(answer.failed)
            counts = {
                "notified": new,
                "again": len(events) - new,
                "failed": failed,
                "without": len(active) - len(events) - failed,
            }
            step.save(cursor=page[-1][0], counts=counts, done=len(page))
        telemetry.EVENTS_ACCEPTED.labels("recommend").inc(new)
        telemetry.EVENTS_DUPLICATE.labels("recommend").inc(len(events) - new)
        if new:
            self._signals.send(EVENTS_TOPIC)

    def _events(self, scheduled_for: datetime, found: Mapping[str, Recommendation]) -> list[NewEvent]:
        day = scheduled_for.astimezone(self._zone).date().isoformat()
        return [
            NewEvent(
                event_id(day, member_id),
                READY,
                scheduled_for,
                None,
                member_id,
                recommended.products[0].product_id,
                _payload(recommended, day),
            )
            for member_id, recommended in found.items()
        ]


def _payload(recommended: Recommendation, day: str) -> str:
    products = [
        {"productId": product.product_id, **({"productName": product.name} if product.name else {})}
        for product in recommended.products
    ]
    strategy = {"strategy": recommended.strategy} if recommended.strategy else {}
    return orjson.dumps({"products": products, "day": day, **strategy}).decode()
