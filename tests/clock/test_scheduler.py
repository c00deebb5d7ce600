"""The clock: each slot once, whoever else has a clock; what was missed; what crashes; what others have abandoned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from bongsu.clock.run import Run
from bongsu.clock.runs import Runs
from bongsu.clock.scheduler import Clock, store_time
from bongsu.errors import StoreUnreachable
from bongsu.model.job import Job
from bongsu.settings import Settings
from bongsu.store import Store, Transaction
from bongsu.store import runs as statements
from bongsu.store.core.query import same
from bongsu.store.runs import NewRun
from tests.support.processes import forks
from tests.support.rows import set_columns
from tests.support.runs import LEASE_SECONDS

SEOUL = ZoneInfo("Asia/Seoul")
NINE = datetime(2026, 3, 1, 0, 0, tzinfo=UTC)  # in Seoul
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class Wall:
    """A store's time that a test moves."""

    def __init__(self, now: datetime = NINE - MINUTE) -> None:
        self.now = now

    async def __call__(self) -> datetime:
        return self.now


class Counted:
    """A job that counts its runs."""

    def __init__(
        self, name: str = "count", cron: str = "*/5 9-21 * * *", error: Exception | None = None, **more: Any
    ) -> None:
        self.runs = 0
        self.error = error
        self.job = Job(name, "Counts.", self.work, cron, **more)

    async def work(self, _run: Run) -> str:
        self.runs += 1
        if self.error is not None:
            raise self.error
        return f"run {self.runs}"


def clock(store: Store, wall: Wall, *jobs: Counted | Job) -> Clock:
    return Clock(store, [one if isinstance(one, Job) else one.job for one in jobs], SEOUL, now=wall)


async def turn(*clocks: Clock) -> None:
    await asyncio.gather(*(one.tick() for one in clocks))
    await asyncio.gather(*(one.wait_finished() for one in clocks))


async def run_slot(store: Store, job: Job, slot: datetime) -> None:
    """As if it had run at its time."""
    await Runs(store, LEASE_SECONDS).run_slot(job, slot)
    await set_columns(store, "runs", {"slot": slot}, started_at=slot, finished_at=slot)


async def runs(store: Store, *columns: str) -> list[tuple[Any, ...]]:
    query = same(f"SELECT job, slot, {', '.join(columns or ('result', 'error'))} FROM bongsu_runs ORDER BY job, slot")
    async with store.read() as tx:
        rows = await tx.fetch(query())
    return [(row[0], row[1] and store.dialect.time(row[1]), *row[2:]) for row in map(tuple, rows)]


# --- each slot once ---------------------------------------------------------------------------------------------------


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
    assert await runs(store) == [("count", slot, f"run {number}", None) for number, slot in enumerate(slots, 1)]


def _rival(settings: Settings, slots: list[datetime], barrier: Any, counted: Any) -> None:
    """A process that takes each slot if it can, together with its rivals."""

    async def count(_run: Run) -> str:
        with counted.get_lock():
            counted.value += 1
        return ""

    async def work() -> None:
        store = Store.open(settings)
        runs = Runs(store, LEASE_SECONDS)
        for slot in slots:
            barrier.wait()
            await runs.run_slot(Job("count", "Counts.", count, "* * * * *"), slot)
        await store.close()

    asyncio.run(work())


async def test_a_slot_is_run_once_by_one_of_many_processes(store: Store, settings: Settings) -> None:
    slots = [NINE + number * MINUTE for number in range(4)]
    barrier, counted = forks.Barrier(8), forks.Value("i", 0)
    rivals = [forks.Process(target=_rival, args=(settings, slots, barrier, counted)) for _ in range(8)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        await asyncio.to_thread(rival.join)
        assert rival.exitcode == 0
    assert counted.value == len(await runs(store)) == 4


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


async def test_a_job_that_is_not_enabled_or_has_no_schedule_is_not_begun(store: Store) -> None:
    off, requested = Counted("off", is_enabled=False), Counted("requested")
    on_request = Job("requested", "Counts.", requested.work)
    wall = Wall()
    running = clock(store, wall, off, on_request)
    await turn(running)
    wall.now = NINE
    await turn(running)
    assert (off.runs, requested.runs) == (0, 0)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_clock_that_was_ahead_and_is_set_right_runs_its_slots(store: Store, is_restarted: bool) -> None:
    wall, counted = Wall(), Counted()
    await run_slot(store, counted.job, NINE - 5 * MINUTE)
    running = clock(store, wall, counted)
    wall.now = NINE + timedelta(days=365)
    await turn(running)
    assert counted.runs == 2
    wall.now = NINE - MINUTE
    running = clock(store, wall, counted) if is_restarted else running
    await turn(running)
    assert counted.runs == 2
    for number in range(2):
        wall.now = NINE + number * 5 * MINUTE
        await turn(running)
        await turn(running)
        assert counted.runs == 3 + number


# --- missed slots -----------------------------------------------------------------------------------------------------


async def test_of_missed_slots_only_the_newest_is_made_up_and_the_run_says_so(store: Store) -> None:
    wall, counted = Wall(NINE), Counted()
    await run_slot(store, counted.job, NINE - 5 * MINUTE)
    # Nobody was there at 9:00, 9:05 and 9:10, nor at 9:15.
    wall.now = NINE + 17 * MINUTE
    await turn(clock(store, wall, counted))
    assert await runs(store, "is_made_up", "skipped") == [
        ("count", NINE - 5 * MINUTE, False, 0),
        ("count", NINE + 15 * MINUTE, True, 3),
    ]


async def test_a_slot_missed_for_too_long_is_skipped_and_the_next_run_says_so(store: Store) -> None:
    morning = Counted(cron="0 9 * * *")
    await run_slot(store, morning.job, NINE - timedelta(days=1))
    await turn(clock(store, Wall(NINE + HOUR + timedelta(microseconds=1)), morning))
    assert morning.runs == 1
    tomorrow = NINE + timedelta(days=1)
    await turn(clock(store, Wall(tomorrow), morning))
    assert (await runs(store, "is_made_up", "skipped"))[1:] == [("count", tomorrow, False, 1)]
    await turn(clock(store, Wall(tomorrow + timedelta(days=1, hours=1)), morning))
    assert (await runs(store, "is_made_up", "skipped"))[2:] == [("count", tomorrow + timedelta(days=1), True, 0)]


async def test_a_job_that_makes_up_for_nothing_still_runs_on_time(store: Store) -> None:
    never_late = Counted(misfire_grace=timedelta(0))
    await run_slot(store, never_late.job, NINE - 5 * MINUTE)
    await turn(clock(store, Wall(NINE + timedelta(minutes=2)), never_late))
    assert never_late.runs == 1
    # A clock looks once a second, so even a slot on time is begun a little late.
    await turn(clock(store, Wall(NINE + 5 * MINUTE + timedelta(seconds=1)), never_late))
    assert never_late.runs == 2


async def test_a_job_that_never_ran_has_missed_nothing(store: Store) -> None:
    wall, counted = Wall(NINE + MINUTE), Counted()
    new = clock(store, wall, counted)
    await turn(new)
    assert counted.runs == 0
    wall.now = NINE + 5 * MINUTE
    await turn(new)
    assert counted.runs == 1


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


async def test_a_run_by_hand_counts_for_the_slots_before_it(store: Store) -> None:
    counted = Counted(cron="* * * * *")
    by_hand = await Runs(store, LEASE_SECONDS).run_by_hand(counted.job, "cli:min-ji")
    assert (by_hand.run.slot, by_hand.run.requested_by, by_hand.run.result) == (None, "cli:min-ji", "run 1")
    await turn(clock(store, Wall(by_hand.run.started_at), counted))
    assert counted.runs == 1
    await turn(clock(store, Wall(by_hand.run.started_at + MINUTE), counted))
    assert counted.runs == 2


async def test_slots_within_at_least_for_of_a_start_are_skipped(store: Store) -> None:
    counted = Counted(at_least_for=10 * MINUTE)
    await run_slot(store, counted.job, NINE)
    for minute in (5, 9, 10):
        await turn(clock(store, Wall(NINE + minute * MINUTE), counted))
        assert counted.runs == 1 + (minute == 10)
    assert (await runs(store, "is_made_up", "skipped"))[1:] == [("count", NINE + 10 * MINUTE, False, 1)]


# --- slow and crashing jobs -------------------------------------------------------------------------------------------


async def test_a_job_that_crashes_says_so_and_stops_no_other(store: Store) -> None:
    wall = Wall()
    jobs = [Counted("a", error=ZeroDivisionError("by\nzero")), Counted("b", error=ValueError("\0 \ud800")), Counted("c")]
    running = clock(store, wall, *jobs)
    await turn(running)
    wall.now = NINE
    await turn(running)
    assert await runs(store) == [
        ("a", NINE, None, "ZeroDivisionError: by zero"),
        ("b", NINE, None, "ValueError:  ?"),
        ("c", NINE, "run 1", None),
    ]
    wall.now += 5 * MINUTE
    await turn(running)
    assert [one.runs for one in jobs] == [2, 2, 2]


class Waiting:
    """A job that waits until it is told to go on."""

    def __init__(self, name: str = "slow", cron: str | None = "*/5 9-21 * * *") -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.starts = 0
        self.job = Job(name, "Waits.", self.work, cron)

    async def work(self, run: Run) -> str:
        self.starts += 1
        self.begun.set()
        await self.go.wait()
        return "at last"


async def test_a_job_that_takes_long_keeps_no_other_waiting_and_is_not_begun_twice(store: Store) -> None:
    wall, slow, quick = Wall(), Waiting(), Counted("quick")
    running, rival = clock(store, wall, slow.job, quick), clock(store, wall, slow.job)
    await asyncio.gather(running.tick(), rival.tick())
    for wall.now in (NINE, NINE + 5 * MINUTE):
        await running.tick()
        await slow.begun.wait()
        await running.wait_finished("quick")
        await turn(rival)
    assert (slow.starts, quick.runs) == (1, 2)
    slow.go.set()
    await running.wait_finished()
    # The slot that came meanwhile is run by whoever looks first.
    await turn(rival)
    await turn(running)
    assert slow.starts == 2
    assert [run[1] for run in await runs(store) if run[0] == "slow"] == [NINE, NINE + 5 * MINUTE]


async def test_a_store_that_is_away_costs_no_slot(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wall, counted = Wall(), Counted()
    running = clock(store, wall, counted)
    await turn(running)
    wall.now = NINE
    with monkeypatch.context() as patch:

        async def fail(*_given: object) -> None:
            raise StoreUnreachable("gone")

        patch.setattr(statements, "begin", fail)
        await turn(running)
    assert counted.runs == 0
    await turn(running)
    assert counted.runs == 1


# --- abandoned runs ---------------------------------------------------------------------------------------------------


async def abandon(store: Store, new: NewRun, **columns: Any) -> None:
    """A run whose process died."""
    async with store.transaction() as tx:
        assert await statements.begin(tx, new, "dead:1", 60)
        await set_columns(tx, "runs", {"job": new.job, "subject": new.subject}, due=timedelta(seconds=-1), **columns)


def cursors(seen: list[Any]) -> Callable[[Run], Awaitable[str]]:
    async def work(run: Run) -> str:
        seen.append((run.subject, run.slot, run.cursor, run.input))
        return f"from {run.cursor}"

    return work


async def test_a_clock_goes_on_with_what_others_abandoned_by_hand_too(store: Store) -> None:
    seen: list[Any] = []
    jobs = [Job("daily", "", cursors(seen), "0 9 * * *"), Job("on-request", "", cursors(seen))]
    await abandon(store, NewRun("daily", "clock", slot=NINE), cursor="7")
    for subject in "ab":
        await abandon(store, NewRun("on-request", "cli:x", subject, input={"who": subject}), cursor='"m"')
    await abandon(store, NewRun("of another app", "clock", slot=NINE))
    await turn(clock(store, Wall(), *jobs))
    assert sorted(seen, key=str) == [
        ("", NINE, 7, None), ("a", None, "m", {"who": "a"}), ("b", None, "m", {"who": "b"}),
    ]  # fmt: skip
    ended = {(job, slot, result) for job, slot, result, _ in await runs(store)}
    assert ended == {("daily", NINE, "from 7"), ("on-request", None, "from m"), ("of another app", NINE, None)}


async def test_of_many_abandoned_requests_a_clock_takes_a_few_at_a_time(store: Store) -> None:
    slow = Waiting("on-request", None)
    for number in range(6):
        await abandon(store, NewRun("on-request", "cli:x", f"s{number}"))
    await abandon(store, NewRun("daily", "clock", slot=NINE))
    running = clock(store, Wall(), slow.job, Job("daily", "", cursors([]), "0 9 * * *"))
    await running.tick()
    await slow.begun.wait()
    # A scheduled run does not wait for what was requested.
    await running.wait_finished("daily")
    await running.tick()
    held = same("SELECT count(*) AS held FROM bongsu_runs WHERE leased_by <> 'dead:1' AND finished_at IS NULL")
    async with store.read() as tx:
        assert [row["held"] for row in await tx.fetch(held())] == [4]
    assert [run[2] for run in await runs(store) if run[0] == "daily"] == ["from None"]
    slow.go.set()
    await running.wait_finished()
    await turn(running)
    assert [run[2] for run in await runs(store) if run[0] == "on-request"] == ["at last"] * 6


async def test_stopping_waits_for_what_runs_and_leaves_the_rest_to_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall, slow = Wall(), Waiting()
    running = Clock(store, [slow.job], SEOUL, 0.01, now=wall)
    await running.start()
    await running.idle.wait()
    wall.now = NINE
    running.wake()
    await slow.begun.wait()
    monkeypatch.setattr("bongsu.clock.scheduler.DRAIN_SECONDS", 0)
    await running.stop()
    assert await runs(store, "result", "error", "claim_count") == [("slow", NINE, None, None, 0)]
    # At once: its lease was ended.
    slow.go.set()
    await turn(clock(store, wall, slow.job))
    assert await runs(store) == [("slow", NINE, "at last", None)]
