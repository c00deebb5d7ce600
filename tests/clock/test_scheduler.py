"""The clock: each slot once, whoever else has a clock; what was missed; what crashes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from bongsu.clock import Clock, Job
from bongsu.clock.scheduler import run_by_hand, run_slot, store_time
from bongsu.errors import StoreUnreachable
from bongsu.settings import Settings
from bongsu.store import Store, Transaction, job_runs
from bongsu.store.core.query import same
from tests.support.processes import forks

SEOUL = ZoneInfo("Asia/Seoul")
NINE = datetime(2026, 3, 1, 0, 0, tzinfo=UTC)  # in Seoul
MINUTE = timedelta(minutes=1)


class Wall:
    """A store's time that a test moves."""

    def __init__(self, now: datetime = NINE - MINUTE) -> None:
        self.now = now

    async def __call__(self) -> datetime:
        return self.now


class Counted:
    """A job that counts its runs."""

    def __init__(self, name: str = "count", cron: str = "*/5 9-21 * * *", error: Exception | None = None) -> None:
        self.runs = 0
        self.error = error
        self.job = Job(name, cron, "Counts.", self.run)

    async def run(self) -> str:
        self.runs += 1
        if self.error is not None:
            raise self.error
        return f"run {self.runs}"


def clock(store: Store, wall: Wall, *jobs: Counted) -> Clock:
    return Clock(store, [one.job for one in jobs], SEOUL, now=wall)


async def turn(*clocks: Clock) -> None:
    await asyncio.gather(*(one.tick() for one in clocks))
    await asyncio.gather(*(one.wait_finished() for one in clocks))


async def runs(store: Store) -> list[tuple[Any, ...]]:
    query = same("SELECT job, slot, result, error, finished_at IS NOT NULL AS ended FROM bongsu_job_runs ORDER BY job, slot")
    async with store.read() as tx:
        rows = await tx.fetch(query())
    return [(row["job"], store.dialect.time(row["slot"]), row["result"], row["error"], bool(row["ended"])) for row in rows]


async def test_a_slot_is_run_once_by_one_of_many_clocks(store: Store) -> None:
    wall, counted = Wall(), Counted()
    rivals = [clock(store, wall, counted) for _ in range(4)]
    await turn(*rivals)
    assert counted.runs == 0
    for number in range(3):
        wall.now = NINE + number * 5 * MINUTE
        await turn(*rivals)
        await turn(*rivals)
        assert counted.runs == number + 1
    slots = [NINE + number * 5 * MINUTE for number in range(3)]
    expected = [("count", slot, f"run {number}", None, True) for number, slot in enumerate(slots, 1)]
    assert await runs(store) == expected


def _rival(settings: Settings, slots: list[datetime], barrier: Any, counted: Any) -> None:
    """A process that takes each slot if it can, together with its rivals."""

    async def count() -> str:
        with counted.get_lock():
            counted.value += 1
        return ""

    async def work() -> None:
        store = Store.open(settings)
        for slot in slots:
            barrier.wait()
            await run_slot(store, Job("count", "* * * * *", "Counts.", count), slot)
        await store.close()

    asyncio.run(work())


async def test_a_slot_is_run_once_by_one_of_many_processes(store: Store, settings: Settings) -> None:
    slots = [NINE + number * MINUTE for number in range(4)]
    barrier, counted = forks.Barrier(4), forks.Value("i", 0)
    rivals = [forks.Process(target=_rival, args=(settings, slots, barrier, counted)) for _ in range(4)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        await asyncio.to_thread(rival.join)
        assert rival.exitcode == 0
    assert counted.value == len(await runs(store)) == 4


async def test_of_missed_slots_only_the_newest_is_made_up(store: Store) -> None:
    wall, counted = Wall(NINE), Counted()
    await run_slot(store, counted.job, NINE - 5 * MINUTE)
    # Nobody was there at 9:05, 9:10 and 9:15.
    wall.now = NINE + 17 * MINUTE
    await turn(clock(store, wall, counted))
    assert [run[1] for run in await runs(store)] == [NINE - 5 * MINUTE, NINE + 15 * MINUTE]


async def test_a_slot_missed_for_too_long_is_let_go(store: Store) -> None:
    morning = Counted(cron="0 9 * * *")
    await run_slot(store, morning.job, NINE - timedelta(days=1))
    late = clock(store, Wall(NINE + timedelta(hours=1, microseconds=1)), morning)
    await turn(late)
    assert morning.runs == 1
    await turn(clock(store, Wall(NINE + timedelta(hours=1)), morning))
    assert morning.runs == 2


async def test_a_job_that_never_ran_has_missed_nothing(store: Store) -> None:
    wall, counted = Wall(NINE + MINUTE), Counted()
    new = clock(store, wall, counted)
    await turn(new)
    assert counted.runs == 0
    wall.now = NINE + 5 * MINUTE
    await turn(new)
    assert counted.runs == 1


async def test_a_run_by_hand_has_a_slot_of_its_own_and_stands_for_those_before(store: Store) -> None:
    counted = Counted(cron="* * * * *")
    first, second = await run_by_hand(store, counted.job), await run_by_hand(store, counted.job)
    assert first.slot < second.slot
    assert (first.result, second.result, counted.runs) == ("run 1", "run 2", 2)
    await turn(clock(store, Wall(second.slot), counted))
    assert counted.runs == 2
    await turn(clock(store, Wall(second.slot + MINUTE), counted))
    assert counted.runs == 3


async def test_a_job_that_crashes_says_so_and_stops_no_other(store: Store) -> None:
    wall = Wall()
    jobs = [Counted("a", error=ZeroDivisionError("by zero")), Counted("b", error=StoreUnreachable("gone")), Counted("c")]
    running = clock(store, wall, *jobs)
    await turn(running)
    wall.now = NINE
    await turn(running)
    gone = str(StoreUnreachable("gone"))
    assert await runs(store) == [
        ("a", NINE, None, "ZeroDivisionError: by zero", True),
        ("b", NINE, None, gone, True),
        ("c", NINE, "run 1", None, True),
    ]
    wall.now += 5 * MINUTE
    await turn(running)
    assert [one.runs for one in jobs] == [2, 2, 2]


async def test_a_job_that_takes_long_keeps_no_other_waiting_and_is_not_begun_twice(store: Store) -> None:
    wall, begun, go, quick = Wall(), asyncio.Event(), asyncio.Event(), Counted("quick")
    starts = []

    async def wait() -> str:
        starts.append(wall.now)
        begun.set()
        await go.wait()
        return "at last"

    slow = Job("slow", "*/5 9-21 * * *", "Waits.", wait)
    running = Clock(store, [slow, quick.job], SEOUL, now=wall)
    await running.tick()
    for wall.now in (NINE, NINE + 5 * MINUTE):
        await running.tick()
        await begun.wait()
        await running.wait_finished("quick")
    assert (starts, quick.runs) == ([NINE], 2)
    go.set()
    await running.wait_finished()
    await turn(running)
    assert starts == [NINE, NINE + 5 * MINUTE]


async def test_stopping_waits_for_what_runs_and_writes_down_what_it_cut_off(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall, begun = Wall(), asyncio.Event()

    async def wait() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    running = Clock(store, [Job("slow", "*/5 9-21 * * *", "Waits.", wait)], SEOUL, 0.01, now=wall)
    await running.start()
    await running.idle.wait()
    wall.now = NINE
    running.wake()
    await begun.wait()
    monkeypatch.setattr("bongsu.clock.scheduler.DRAIN_SECONDS", 0)
    await running.stop()
    assert await runs(store) == [("slow", NINE, None, "stopped with its process", True)]


async def test_a_store_that_is_away_costs_no_slot(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wall, counted = Wall(), Counted()
    running = clock(store, wall, counted)
    await turn(running)
    wall.now = NINE
    with monkeypatch.context() as patch:

        async def fail(*_given: object) -> bool:
            raise StoreUnreachable("gone")

        patch.setattr(job_runs, "claim", fail)
        await turn(running)
    assert counted.runs == 0
    await turn(running)
    assert counted.runs == 1


async def test_slots_follow_the_stores_time_and_not_the_processs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's time is far from this process's."""
    counted = Counted()
    times = iter((NINE - MINUTE, NINE, NINE + MINUTE))

    async def find_now(_tx: Transaction) -> datetime:
        return next(times)

    monkeypatch.setattr("bongsu.clock.scheduler.find_now", find_now)
    running = Clock(store, [counted.job], SEOUL)
    await turn(running)
    assert counted.runs == 0
    await turn(running)
    await turn(running)
    assert [run[1] for run in await runs(store)] == [NINE]


async def test_the_time_comes_from_the_store(store: Store) -> None:
    # SQLite's is in milliseconds.
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    assert before <= await store_time(store) <= datetime.now(UTC) + timedelta(milliseconds=2)


async def test_the_first_time_known_is_when_the_clock_began(store: Store) -> None:
    """The store was away when the process came up: a job that never ran has missed nothing."""
    answers: list[datetime | StoreUnreachable] = [StoreUnreachable("gone"), NINE + MINUTE, NINE + 5 * MINUTE]

    async def now() -> datetime:
        if isinstance(answer := answers.pop(0), StoreUnreachable):
            raise answer
        return answer

    counted = Counted()
    running = Clock(store, [counted.job], SEOUL, now=now)
    with pytest.raises(StoreUnreachable):
        await running.tick()
    await turn(running)
    assert counted.runs == 0
    await turn(running)
    assert counted.runs == 1
