"""The daily recommendation: who gets one, once a day, whoever works on the run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bongsu.clock.jobs import built_in_jobs
from bongsu.clock.jobs.recommend import Recommend, describe
from bongsu.clock.recommenders import Recommendation, Recommendations, RecommendedProduct
from bongsu.clock.runs import Runs
from bongsu.clock.scheduler import Clock
from bongsu.decide.worker import EventWorker
from bongsu.desk.erase import Erasures
from bongsu.errors import RunLost
from bongsu.model import Action, Product
from bongsu.model.job import Job
from bongsu.rules import catalogue
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import EVENTS_TOPIC
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import runs as statements
from bongsu.store.members import products
from bongsu.store.runs import RunRow
from tests.support import decisions
from tests.support.decisions import ClockedDecider, add_behaviors, add_members, decide, results_by_member, rows, run_worker
from tests.support.rows import set_columns
from tests.support.runs import LEASE_SECONDS, run_by_hand

NOW = datetime.now(UTC)
NINE = NOW.replace(hour=0, minute=0, second=0, microsecond=0)  # in Seoul
MEMBERS = [f"m-{number:02}" for number in range(25)]


class Fixed:
    """A recommender that knows one product for all but some; `before` is called with each page."""

    def __init__(self, without: Sequence[str] = (), failed: Sequence[str] = (), before: Any = None) -> None:
        self._without, self._failed, self._before = set(without), set(failed), before
        self.asked: list[str] = []

    async def recommend(self, member_ids: Sequence[str]) -> Recommendations:
        if self._before is not None:
            await self._before(member_ids)
        self.asked += member_ids
        found = {
            member_id: Recommendation([RecommendedProduct("p-1", "연필"), RecommendedProduct("p-2", None)], "fixed")
            for member_id in member_ids
            if member_id not in self._without | self._failed
        }
        return Recommendations(found, self._failed & set(member_ids))

    @contextlib.asynccontextmanager
    async def open(self, since: datetime) -> AsyncIterator[Fixed]:
        yield self


MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(store: Store, settings: Settings) -> MakeJob:
    def make(recommender: Fixed | None = None, page: int = 4, signals: LocalSignals | None = None) -> Job:
        opened = (recommender or Fixed()).open
        return Recommend(store, signals or LocalSignals(), settings, opened, page).job("0 9 * * *", is_enabled=True)

    return make


async def events(store: Store) -> list[str]:
    """The members that events are for, each as often as there are events."""
    found = await rows(store, "SELECT target_id FROM bongsu_events WHERE event_type = 'recommendation.ready'")
    return sorted(row["target_id"] for row in found)


async def last_run(store: Store) -> RunRow:
    async with store.read() as tx:
        row = await statements.find_last(tx, "recommend")
    assert row is not None
    return row


async def test_each_active_member_gets_one_event_and_nobody_else(store: Store, make_job: MakeJob) -> None:
    await add_members(store, "never", "z-last")
    await add_behaviors(store, "p", *MEMBERS[:5], at=NOW - timedelta(days=6))
    await add_behaviors(store, "p", "bought", action=Action.PURCHASE, at=NOW - timedelta(days=1))
    await add_behaviors(store, "p", "long-ago", at=NOW - timedelta(days=8))
    woken: list[bytes | None] = []
    signals = LocalSignals()
    with signals.listen(EVENTS_TOPIC, woken.append):
        run = await run_by_hand(store, make_job(Fixed([MEMBERS[1]], [MEMBERS[2], MEMBERS[3]]), signals=signals))
    assert run.result == "3 notified, 3 skipped (1 without a recommendation, 2 for whom the recommender failed)"
    assert (run.done, run.total, run.counts) == (9, 9, {"notified": 3, "failed": 2, "without": 1})
    assert await events(store) == ["bought", MEMBERS[0], MEMBERS[4]]
    assert woken


async def test_the_event_has_the_products(store: Store, make_job: MakeJob) -> None:
    await add_behaviors(store, "p", "a", at=NOW)
    await run_by_hand(store, make_job())
    (row,) = await rows(store, "SELECT ref_id, actor_id, CAST(payload AS text) AS payload FROM bongsu_events")
    assert (row["ref_id"], row["actor_id"]) == ("p-1", None)
    for text in ('"productId"', '"p-1"', '"연필"', '"p-2"', '"strategy"', '"fixed"'):
        assert text in row["payload"]


async def test_nobody_gets_two_on_one_day_whoever_asks(store: Store, make_job: MakeJob) -> None:
    """A run by hand repeats what was skipped, and only that."""
    await add_behaviors(store, "p", *MEMBERS, at=NOW - timedelta(days=1))
    runs = Runs(store, LEASE_SECONDS)
    first = await runs.run_slot(make_job(Fixed(failed=MEMBERS[:3])), NINE)
    again = await runs.run_slot(make_job(), NINE + timedelta(hours=14))  # 23:00 of the same day in Seoul
    next_day = await runs.run_slot(make_job(), NINE + timedelta(days=1))
    assert first is not None
    assert again is not None
    assert next_day is not None
    assert first.run.result == "22 notified, 3 skipped (3 for whom the recommender failed)"
    assert again.run.result == "3 notified, 0 skipped, 22 had theirs already"
    assert next_day.run.result == "25 notified, 0 skipped"
    assert await events(store) == sorted([*MEMBERS, *MEMBERS])


async def test_each_day_has_its_own_however_long_the_dedup_window_is(
    store: Store, make_job: MakeJob, settings: Settings
) -> None:
    """By hand at one o'clock at night in Seoul, which is the day before in UTC."""
    await add_behaviors(store, "p", "a", at=NOW)
    runs, patient = Runs(store, LEASE_SECONDS), settings.model_copy(update={"duplicate_hours": 23})
    for slot in (NINE - timedelta(hours=24), NINE - timedelta(hours=8)):
        assert await runs.run_slot(make_job(), slot) is not None
        await decide(store, patient, catalogue(settings))
    assert await results_by_member(store) == {"a": {"NOTIFIED": 2}}


async def test_a_member_who_is_erased_while_the_recommender_is_asked_gets_none(store: Store, make_job: MakeJob) -> None:
    """An event to them would make them anew."""
    await add_behaviors(store, "p", "a", "b", at=NOW)

    async def erase(_member_ids: Sequence[str]) -> None:
        await Erasures(store, LocalSignals(), LEASE_SECONDS).erase("a", "cli:tester")

    run = await run_by_hand(store, make_job(Fixed(before=erase)))
    assert await events(store) == ["b"]
    assert run.result == "1 notified, 1 skipped (1 without a recommendation)"


async def test_a_run_that_is_taken_over_doubles_nobody_and_leaves_nobody_out(store: Store, make_job: MakeJob) -> None:
    """The first process stands still while it asks the recommender, until its lease is over. A clock goes on and finishes.
    When the first one comes back it stores nothing."""
    await add_behaviors(store, "p", *MEMBERS, at=NOW - timedelta(days=1))
    second = Fixed()

    async def stand_still(member_ids: Sequence[str]) -> None:
        if MEMBERS[9] in member_ids:
            await set_columns(store, "runs", due=timedelta(seconds=-1))
            clock = Clock(store, [make_job(second)], settings_zone(), lease_seconds=LEASE_SECONDS)
            await clock.tick()
            await clock.wait_finished()

    first = Fixed(before=stand_still)
    with pytest.raises(RunLost):
        await Runs(store, LEASE_SECONDS).run_slot(make_job(first), NINE)
    run = await last_run(store)
    assert (run.result, run.epoch, run.done) == ("25 notified, 0 skipped", 2, 25)
    assert await events(store) == MEMBERS
    # It went on from the saved place: the members of the page that was under way are asked for twice, no others.
    assert second.asked == MEMBERS[8:]


def settings_zone() -> Any:
    return Settings().zone


async def test_a_run_whose_recommender_crashes_ends_with_an_error_and_the_next_does_the_rest(
    store: Store, make_job: MakeJob
) -> None:
    await add_behaviors(store, "p", *MEMBERS, at=NOW - timedelta(days=1))

    async def crash(member_ids: Sequence[str]) -> None:
        if MEMBERS[9] in member_ids:
            raise ZeroDivisionError("by zero")

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(make_job(Fixed(before=crash)), "test")
    assert (ended.run.error, ended.run.counts) == ("ZeroDivisionError: by zero", {"notified": 8})
    assert (await run_by_hand(store, make_job())).result == "17 notified, 0 skipped, 8 had theirs already"
    assert await events(store) == MEMBERS


async def test_the_built_in_job_is_listed_when_it_is_disabled_and_holds_its_lock_as_agreed(
    store: Store, settings: Settings
) -> None:
    for is_enabled in (False, True):
        given = settings.model_copy(update={"recommendation_enabled": is_enabled, "recommendation_cron": "5 4 * * *"})
        job = next(job for job in built_in_jobs(given, store, LocalSignals()) if job.name == "recommend")
        assert (job.is_enabled, job.cron) == (is_enabled, "5 4 * * *")
        assert (job.at_most_for, job.at_least_for) == (timedelta(hours=1), timedelta(minutes=5))


async def test_a_behaviour_becomes_a_recommendation_in_inbox_and_push(store: Store, settings: Settings) -> None:
    await add_members(store, "a", "b", device=True)
    async with store.transaction() as tx:
        for product_id, name in (("p-1", "연필"), ("p-2", "지우개"), ("p-3", "공책")):
            await products.put_product(tx, product_id, Product(name=name, price=1000, stock=3))
    await add_behaviors(store, "p-1", "a", "b", at=NOW - timedelta(days=2))
    await add_behaviors(store, "p-2", "b", at=NOW - timedelta(days=1))
    await add_behaviors(store, "p-3", "b", action=Action.PURCHASE, at=NOW - timedelta(days=400))
    job = next(job for job in built_in_jobs(settings, store, LocalSignals()) if job.name == "recommend")
    assert (await run_by_hand(store, job)).result == "2 notified, 0 skipped"
    decider = ClockedDecider(store, settings, decisions.Clock())
    await run_worker(EventWorker(store, catalogue(settings), settings, decider))
    found = await rows(
        store,
        """SELECT n.member_id, m.title, m.body, m.type, d.channel, d.rank FROM bongsu_notifications n
           JOIN bongsu_messages m USING (message_id) JOIN bongsu_deliveries d USING (notification_id)
           ORDER BY n.member_id""",
    )
    assert [tuple(row) for row in found] == [
        ("a", "오늘의 추천 상품", "지우개, 공책, 연필을 추천드려요!", "RECOMMENDATION", "PUSH", 6),
        ("b", "오늘의 추천 상품", "지우개, 연필을 추천드려요!", "RECOMMENDATION", "PUSH", 6),
    ]


def test_a_run_without_active_members_says_so() -> None:
    assert describe({}) == "0 notified, 0 skipped"
