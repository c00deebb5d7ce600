"""Events that can give critical notices are decided before others, however many of these came earlier."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

from bongsu.decide.progress import Decision
from bongsu.decide.worker import BATCH, EventWorker
from bongsu.model import Event, Everyone, Listed, Notice, NoticeType
from bongsu.rules import CRITICAL_DIRECT, App, Rules, catalogue
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from tests.support.decisions import (
    IN_APP,
    Clock,
    ClockedDecider,
    add_members,
    notified_counts,
    rules_notifying,
    run_worker,
    trigger_event,
)
from tests.support.outbox import add_events
from tests.support.rows import set_columns

CRITICAL = NoticeType("CRITICAL", IN_APP, is_critical=True)
CONFIRMED = Event(event_type="reservation.confirmed", target_id="guest", ref_id="r1")


def likes(count: int) -> list[Event]:
    return [Event(event_type="post.liked", actor_id="a", target_id="author", ref_id=str(n)) for n in range(count)]


def worker_of(store: Store, settings: Settings, rules: Rules, order: list[str], chunk: int = 10_000) -> EventWorker:
    return EventWorker(store, rules, settings, ClockedDecider(store, settings, Clock(), chunk), noted(order))


def noted(order: list[str]) -> Callable[[Decision], None]:
    return lambda decision: order.extend(event.claimed.event.event_type for event in decision.events)


async def test_a_confirmation_is_decided_before_likes_that_came_earlier(store: Store, settings: Settings) -> None:
    await add_events(store, *likes(2 * BATCH))
    await add_events(store, CONFIRMED)
    order: list[str] = []
    worker = worker_of(store, settings, catalogue(settings), order)
    await worker.tick()
    assert order[0] == "reservation.confirmed"
    # And the likes of the same claim after it.
    assert order.count("post.liked") == BATCH - 1
    await worker.stop()


async def test_a_confirmation_that_comes_during_a_campaign_waits_for_one_step(store: Store, settings: Settings) -> None:
    await add_members(store, *(f"m{number}" for number in range(9)))
    order: list[str] = []

    class Late(EventWorker):
        """It comes when this tick has claimed what it takes."""

        async def _continue(self) -> int:
            await add_events(store, CONFIRMED)
            return await super()._continue()

    rules = Rules(catalogue(settings), rules_notifying(Everyone()))
    await add_events(store, trigger_event("campaign"))
    worker = Late(store, rules, settings, ClockedDecider(store, settings, Clock(), 2), noted(order))
    await worker.tick()
    assert order == ["said", "reservation.confirmed", "said"]
    await worker.stop()


async def test_other_events_keep_a_share(store: Store, settings: Settings) -> None:
    """The oldest of all are claimed with every claim, however many critical ones wait."""
    await add_events(store, *likes(3))
    await set_columns(store, "events", due=timedelta(seconds=-1))
    await add_events(store, *(Event(event_type="reservation.confirmed", target_id="g", ref_id=str(n)) for n in range(30)))
    async with store.transaction() as tx:
        claimed = await outbox.claim(tx, 10, 60, "w", ["reservation.confirmed", "other"])
    assert sorted(one.event.event_type for one in claimed) == ["post.liked"] * 2 + ["reservation.confirmed"] * 8


async def test_several_critical_types_are_claimed_by_their_due_times(store: Store) -> None:
    events = [Event(event_type=f"c{number % 3}", ref_id=str(number)) for number in range(12)]
    await add_events(store, *events)
    for number in range(12):
        await set_columns(store, "events", {"ref_id": str(number)}, due=timedelta(seconds=number - 100))
    async with store.transaction() as tx:
        claimed = await outbox.claim_critical(tx, 6, 60, "w", ["c0", "c1", "c2"])
        others = await outbox.claim_critical(tx, 100, 60, "w", ["c1"])
    assert [one.event.ref_id for one in claimed] == ["0", "1", "2", "3", "4", "5"]
    assert [one.event.ref_id for one in others] == ["7", "10"]


async def test_a_claim_of_critical_types_takes_nothing_else(store: Store) -> None:
    await add_events(store, *likes(3))
    async with store.transaction() as tx:
        assert await outbox.claim_critical(tx, 10, 60, "w", ["reservation.confirmed"]) == []


# --- which types they are -----------------------------------------------------------------------------------------------


def test_the_built_in_rules_declare_what_can_be_critical(settings: Settings) -> None:
    rules = catalogue(settings)
    assert rules.critical_types == sorted({"reservation.confirmed", "notice.published", CRITICAL_DIRECT})


def test_a_rule_may_declare_that_it_can_give_critical_notices() -> None:
    app = App()

    @app.rule("order.paid", critical=True)
    def paid(_event: Event) -> None: ...

    assert Rules(app).critical_types == ["order.paid"]
    assert Rules(app).is_critical("order.paid")


def test_a_rule_that_declares_nothing_is_known_by_what_it_gave() -> None:
    rules = Rules(rules_notifying(lambda _event: Listed(("a",)), CRITICAL))
    assert rules.critical_types == []
    rules.detect(trigger_event())
    assert rules.critical_types == ["said"]


def test_a_rule_that_is_declared_not_critical_stays_so() -> None:
    app = App()

    @app.rule("said", critical=False)
    def rarely(_event: Event) -> Iterable[Notice]:
        return rules_notifying(Listed(("a",)), CRITICAL).detect(trigger_event())

    app.detect(trigger_event())
    assert app.critical_types == []


async def test_what_a_rule_gave_counts_for_the_next_events(store: Store, settings: Settings) -> None:
    rules = Rules(catalogue(settings), rules_notifying(Listed(("guest",)), CRITICAL))
    order: list[str] = []
    worker = worker_of(store, settings, rules, order)
    await add_events(store, trigger_event("first"))
    await worker.tick()
    await add_events(store, *likes(BATCH))
    await add_events(store, trigger_event("second"))
    order.clear()
    await worker.tick()
    assert order[0] == "said"
    await run_worker(worker)
    assert (await notified_counts(store))["guest"] == 2
