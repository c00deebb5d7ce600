"""A quota that processes share: together they never use more than it, whatever their timing, and ask the store rarely."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from bongsu.deliver.channels.limits import quota as module
from bongsu.deliver.channels.limits.quota import LEASE_SECONDS, Quota
from bongsu.deliver.channels.push.sender import Push
from bongsu.model import Channel
from bongsu.model.outcome import Accepted, Retry
from bongsu.settings import Settings
from bongsu.store import Store, Transaction
from bongsu.store.deliveries.quotas import draw
from tests.simulator.running import Simulator
from tests.support.decisions import rows
from tests.support.push import outgoing
from tests.support.rows import set_columns

PROCESSES = 4


@contextlib.asynccontextmanager
async def stores(settings: Settings) -> AsyncIterator[list[Store]]:
    """As many processes would have: one each, on the same database."""
    opened = [Store.open(settings) for _ in range(PROCESSES)]
    yield opened
    for one in opened:
        await one.close()


def bound(per_minute: int, seconds: float) -> float:
    """The most that may be sent in that time: what is there at first, and what flows in."""
    capacity = per_minute / 100
    return capacity + (per_minute - capacity) / (60 + LEASE_SECONDS) * seconds


@pytest.mark.slow
async def test_processes_together_send_no_more_than_the_quota(store: Store, settings: Settings) -> None:
    per_minute, each = 60_000, 400
    async with stores(settings) as several:
        quotas = [Quota(one, Channel.PUSH, "q", per_minute) for one in several]
        taken: list[float] = []
        began = time.monotonic()

        async def use(quota: Quota) -> None:
            for _ in range(each):
                while not await quota.wait():
                    pass  # on a slow machine the others may have been first for long
                taken.append(time.monotonic() - began)

        # Two senders to a process: both wait for one draw.
        await asyncio.gather(*(use(quota) for quota in quotas for _ in range(2)))
    assert len(taken) == 2 * PROCESSES * each
    for number, moment in enumerate(sorted(taken), 1):
        assert number <= bound(per_minute, moment) + 1


async def test_a_busy_process_asks_the_store_rarely(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = []

    async def counted(*given: object) -> float:
        draws.append(given)
        return await draw(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "draw", counted)
    # By its clock it is so fast that no time passes.
    quota = Quota(store, Channel.PUSH, "q", 600_000, lambda: 1000.0)
    for _ in range(5_000):
        assert quota.take() or await quota.wait()
    # 16, 32, 64, … and from then on 2,400 at a time.
    assert len(draws) <= 12


async def test_what_an_idle_process_has_drawn_and_not_used_goes_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def draw_without_flow(
        tx: Transaction, name: str, asked: float, back: float, capacity: float, _flow: float
    ) -> float:
        return await draw(tx, name, asked, back, capacity, 0.0)

    # By the store's clock no time passes: what is in the bucket has been there from the beginning or was given back.
    monkeypatch.setattr(module, "draw", draw_without_flow)
    now = 1000.0
    quota = Quota(store, Channel.PUSH, "q", 600_000, lambda: now)
    for _ in range(50):
        assert not quota.take()
        assert await quota.wait()
        now += LEASE_SECONDS
    ((tokens, granted),) = await rows(store, "SELECT tokens, granted FROM bongsu_quotas")
    assert granted == 16
    # All but the 49 that were used and the portion that is held now.
    assert tokens == pytest.approx(6_000 - 49 - 16)


async def test_a_bucket_fills_by_the_stores_clock(store: Store) -> None:
    async with store.transaction() as tx:
        assert await draw(tx, "q", 60, 0, 60, 10) == 60
    await set_columns(store, "quotas", drawn_at=timedelta(seconds=-4))
    async with store.transaction() as tx:
        assert await draw(tx, "q", 30, 0, 60, 10) == 30
    await set_columns(store, "quotas", drawn_at=timedelta(hours=1))
    async with store.transaction() as tx:
        ((before,),) = await rows(store, "SELECT tokens FROM bongsu_quotas")
        assert await draw(tx, "q", 60, 0, 60, 10) == pytest.approx(before), "what is later by the clock takes nothing away"


async def test_quotas_of_two_projects_are_two(store: Store) -> None:
    async with store.transaction() as tx:
        assert await draw(tx, "a", 50, 0, 60, 0) == 50
        assert await draw(tx, "b", 50, 0, 60, 0) == 50
        assert await draw(tx, "a", 50, 0, 60, 0) == 10
        assert await draw(tx, "a", 50, 0, 60, 0) == 0
        assert await draw(tx, "a", 50, 20, 60, 0) == 20
        assert await draw(tx, "b", 50, 1_000, 60, 0) == 50, "never above the brim"
        assert await draw(tx, "b", 50, 0, 60, 0) == 10


async def test_pushes_of_two_processes_keep_it_together(
    store: Store, settings: Settings, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAIT_SECONDS", 60.0)
    per_minute, each = 6_000, 50
    async with stores(settings) as several:
        configured = Settings(fcm_url=simulator.address)
        pushes = [Push(configured, store=one, per_minute=per_minute) for one in several[:2]]
        began = time.monotonic()
        outcomes = await asyncio.gather(*(push.send(outgoing()) for push in pushes for _ in range(each)))
        took = time.monotonic() - began
        for push in pushes:
            await push.close()
    assert all(isinstance(one, Accepted) for one in outcomes)
    assert simulator.stats()["accepted"] == 2 * each <= bound(per_minute, took) + 1


async def test_a_quota_used_up_delays_sends_and_is_no_attempt(
    store: Store, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One at first, and none that flows in: the test takes as long as it takes.
    push = Push(Settings(fcm_url=simulator.address), store=store, per_minute=1)
    push._pace = Push(Settings(fcm_url=simulator.address))._pace  # its own pace would have it wait
    monkeypatch.setattr(module, "MOST_WAIT_SECONDS", 60.0)
    assert isinstance(await push.send(outgoing()), Accepted)
    monkeypatch.setattr(module, "MOST_WAIT_SECONDS", 0.05)
    outcome = await push.send(outgoing())
    assert isinstance(outcome, Retry)
    assert (outcome.code, outcome.is_held) == ("QUOTA_SHARED", True)
    assert simulator.stats()["accepted"] == 1
    await push.close()


async def test_a_quota_that_cannot_be_read_allows_no_send(simulator: Simulator) -> None:
    away = Store.open(Settings(database_url="postgresql://nobody@127.0.0.1:1/nowhere"))
    push = Push(Settings(fcm_url=simulator.address), store=away)
    outcomes = await asyncio.gather(*(push.send(outgoing()) for _ in range(3)))
    assert {(one.code, one.is_held) for one in outcomes if isinstance(one, Retry)} == {("QUOTA_UNKNOWN", True)}
    assert simulator.stats()["accepted"] == 0
    await push.close()
    await away.close()


# --- who goes first -----------------------------------------------------------------------------------------------------


async def test_who_goes_first_has_the_next_permits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAIT_SECONDS", 60.0)

    async def draw_one(*_: object) -> float:
        """Never so many at once that there is one for everybody, however slow the store is."""
        return 1.0

    monkeypatch.setattr(module, "draw", draw_one)
    quota = Quota(store, Channel.PUSH, "q", 600)
    order: list[str] = []

    async def use(name: str, *, is_first: bool) -> None:
        assert await quota.wait(is_first=is_first)
        order.append(name)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(use("other", is_first=False))
        while quota._drawing is None or quota._drawing.done():
            await asyncio.sleep(0)
        for _ in range(5):
            group.create_task(use("first", is_first=True))
    # One may have been granted before they came.
    assert order.index("first") <= 1
    assert order[order.index("first") :] == ["first"] * 5 + ["other"] * (10 - order.index("first"))


@pytest.mark.slow
async def test_who_goes_first_uses_no_more_than_the_quota_either(store: Store, settings: Settings) -> None:
    per_minute, each = 60_000, 300
    async with stores(settings) as several:
        quotas = [Quota(one, Channel.PUSH, "q", per_minute) for one in several]
        taken: list[float] = []
        began = time.monotonic()

        async def use(quota: Quota, *, is_first: bool) -> None:
            for _ in range(each):
                while not (quota.take(is_first=is_first) or await quota.wait(is_first=is_first)):
                    pass
                taken.append(time.monotonic() - began)

        await asyncio.gather(*(use(quota, is_first=is_first) for quota in quotas for is_first in (True, False, True)))
    assert len(taken) == 3 * PROCESSES * each
    for number, moment in enumerate(sorted(taken), 1):
        assert number <= bound(per_minute, moment) + 1


async def test_a_wait_that_is_given_up_leaves_the_permits_to_others(store: Store) -> None:
    quota = Quota(store, Channel.PUSH, "q", 600)
    for _ in range(6):
        assert await quota.wait()
    waiting = [asyncio.create_task(quota.wait(is_first=True)) for _ in range(50)]
    while quota._drawing is None or quota._drawing.done():
        await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    async with asyncio.timeout(30):
        assert await quota.wait()


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_a_push_that_is_critical_overtakes_those_that_wait_unless_it_is_one_of_many(
    store: Store, simulator: Simulator, monkeypatch: pytest.MonkeyPatch, is_bulk: bool
) -> None:
    monkeypatch.setattr(module, "MOST_WAIT_SECONDS", 60.0)
    push = Push(Settings(fcm_url=simulator.address), store=store, per_minute=600)
    others = [asyncio.create_task(push.send(outgoing(f"other-{number:02}"))) for number in range(20)]
    while simulator.stats()["accepted"] < 6:
        await asyncio.sleep(0.01)
    before = simulator.stats()["messages"]
    critical = push.send(outgoing("critical", is_critical=True, is_bulk=is_bulk))
    outcomes = await asyncio.gather(critical, *others)
    await push.close()
    assert all(isinstance(one, Accepted) for one in outcomes)
    tokens = [message["token"] for message in simulator.ledger()["messages"]]
    if is_bulk:
        assert tokens.index("critical") >= 15
    else:
        # What was granted or posted at that moment.
        assert tokens.index("critical") <= before + 3
