"""Runs: what a step commits, who may write, what happens to a job whose run is lost, too long, or interrupted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from bongsu import Event, publish
from bongsu.clock import runs as module
from bongsu.clock.run import Run, Step
from bongsu.clock.runs import MOST_CLAIMS, Runs
from bongsu.errors import (
    JobRunning,
    RunLost,
    StoreBusy,
    StoreError,
    StoreRolledBack,
    StoreTooSlow,
    StoreUnreachable,
)
from bongsu.model.job import Job, Work
from bongsu.runtime.process import process_name
from bongsu.store import Store, Transaction
from bongsu.store import runs as statements
from bongsu.store.core.dead_claims import release_dead_claims
from bongsu.store.core.query import same
from bongsu.store.runs import NewRun, RunRow
from tests.support.rows import set_columns
from tests.support.runs import LEASE_SECONDS, run_by_hand

# Heartbeats come several times a second, and nothing waits long for a lease to end.
SHORT = 0.3

LOCK = same("SELECT run_id FROM bongsu_runs FOR UPDATE")
TYPES = same("SELECT event_type FROM bongsu_events ORDER BY event_type")


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_BACKOFF", 0.001)


async def begin(store: Store, lease_seconds: float = LEASE_SECONDS, **columns: Any) -> Run:
    """A run that this process holds, without a heartbeat."""
    async with store.transaction() as tx:
        row = await statements.begin(tx, NewRun("job", "test"), "first:1", lease_seconds)
        assert row is not None
        if columns:
            await set_columns(tx, "runs", **columns)
    return Run(store, await saved(store), lease_seconds)


async def saved(store: Store) -> RunRow:
    """The run as it is in the store."""
    async with store.read() as tx:
        row = await statements.find_last(tx, "job")
    assert row is not None
    return row


async def end_lease(store: Store) -> None:
    await set_columns(store, "runs", due=timedelta(seconds=-1))


async def event_types(store: Store) -> list[str]:
    async with store.read() as tx:
        return [row["event_type"] for row in await tx.fetch(TYPES())]


def job(work: Work, **more: Any) -> Job:
    return Job("job", "Works.", work, "* * * * *", **more)


# --- steps ------------------------------------------------------------------------------------------------------------


async def test_a_step_commits_what_it_did_with_cursor_and_counts(store: Store) -> None:
    run = await begin(store)
    assert (run.cursor, run.counts, run.done, run.total) == (None, {}, 0, None)
    for number in (1, 2):
        async with run.step() as step:
            await publish(step, Event(event_type=f"e.{number}"))
            step.save(cursor={"after": number}, counts={"sent": number, "none": 0}, done=1, total=5)
            step.save(counts={"sent": 10})
    assert (run.cursor, run.counts, run.done, run.total) == ({"after": 2}, {"sent": 23}, 2, 5)
    row = await saved(store)
    assert (row.cursor, row.counts, row.done, row.total, row.claim_count) == ({"after": 2}, {"sent": 23}, 2, 5, 0)
    assert await event_types(store) == ["e.1", "e.2"]


async def test_a_step_that_raises_leaves_nothing(store: Store) -> None:
    run = await begin(store)
    await run.save(cursor=1, counts={"sent": 1})
    with pytest.raises(ZeroDivisionError):
        async with run.step() as step:
            await publish(step, Event(event_type="e"))
            step.save(cursor=2, counts={"sent": 1})
            raise ZeroDivisionError
    assert (run.cursor, run.counts) == (1, {"sent": 1})
    assert ((await saved(store)).cursor, await event_types(store)) == (1, [])


async def test_steps_of_one_run_take_turns(store: Store) -> None:
    run = await begin(store)

    async def add() -> None:
        async with run.step() as step:
            step.save(cursor=(run.cursor or 0) + 1)

    await asyncio.gather(*(add() for _ in range(5)))
    assert run.cursor == (await saved(store)).cursor == 5


async def test_a_step_publishes_each_event_once(store: Store) -> None:
    run, event = await begin(store), Event(event_type="e")
    async with run.step() as step:
        first = await publish(step, event, Event(event_type="f"))
        again = await publish(step, event)
    assert (len(first.accepted), first.duplicates, again.duplicates) == (2, (), (event.event_id,))


async def test_a_step_within_a_step_is_refused_and_leaves_nothing(store: Store) -> None:
    run = await begin(store)
    with pytest.raises(RuntimeError, match="within a step"):
        async with asyncio.timeout(30), run.step() as step:
            step.save(cursor=1)
            await run.save(cursor=2)
    assert (await saved(store)).cursor is None
    await run.save(cursor=3)
    assert (await saved(store)).cursor == 3


async def test_a_step_that_begins_during_a_heartbeat_waits_for_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    renew, begun, may_end = statements.renew, asyncio.Event(), asyncio.Event()

    async def slow(*given: Any) -> RunRow | None:
        begun.set()
        await may_end.wait()
        return await renew(*given)

    monkeypatch.setattr(statements, "renew", slow)
    run = await begin(store)
    await run.save(cursor=1)
    heartbeat = asyncio.create_task(run.renew())
    await begun.wait()
    asyncio.get_running_loop().call_soon(may_end.set)
    await run.save(cursor=2)
    await heartbeat
    assert (await saved(store)).cursor == 2


# --- fencing ----------------------------------------------------------------------------------------------------------


async def write(run: Run) -> None:
    async with run.step() as step:
        await publish(step, Event(event_type="late"))


LATE: dict[str, Callable[[Run], Awaitable[object]]] = {
    "step": write,
    "save": lambda run: run.save(cursor=9),
    "renew": Run.renew,
    "finish": lambda run: run.finish("late", None),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("is_taken", [False, True])
async def test_an_owner_past_its_lease_writes_nothing(store: Store, late: str, is_taken: bool) -> None:
    run = await begin(store)
    await end_lease(store)
    if is_taken:
        assert await Runs(store, LEASE_SECONDS).take_over(await saved(store)) is not None
    elif late == "finish":
        return  # see below
    before = await saved(store)
    with pytest.raises(RunLost):
        await LATE[late](run)
    assert run.is_lost
    after = await saved(store)
    assert (after.cursor, after.epoch, after.finished_at) == (None, before.epoch, None)
    assert await event_types(store) == []


@pytest.mark.parametrize("fails", [False, True])
async def test_a_run_past_its_lease_that_nobody_took_over_ends_as_its_job_did(store: Store, fails: bool) -> None:
    """As after a last step that took longer than the lease: taken over, it would only do the same again."""

    async def work(_run: Run) -> str:
        await end_lease(store)
        if fails:
            raise ValueError("the reason")
        return "done"

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(job(work), "test")
    assert (ended.run.result, ended.run.error) == ((None, "ValueError: the reason") if fails else ("done", None))


async def test_a_lost_run_cannot_be_ended_by_its_old_owner_who_stops(store: Store) -> None:
    run = await begin(store)
    await end_lease(store)
    await Runs(store, LEASE_SECONDS).take_over(await saved(store))
    await run.release()
    assert not (await saved(store)).is_lease_over


async def test_an_abandoned_run_is_taken_over_by_one(store: Store) -> None:
    await begin(store, cursor="[7]", counts='{"sent": 3}')
    await end_lease(store)
    found = await saved(store)
    taken = await asyncio.gather(*(Runs(store, LEASE_SECONDS).take_over(found) for _ in range(4)))
    (row,) = [one for one in taken if one is not None]
    assert (row.epoch, row.leased_by, row.claim_count, row.cursor, row.counts) == (2, process_name(), 2, [7], {"sent": 3})


async def test_nobody_takes_a_run_over_during_a_step_however_long(store: Store) -> None:
    if store.dialect.name == "sqlite":
        return  # has one writer: during a step nobody else writes
    run = await begin(store, 1.0)
    async with run.step() as step:
        while not (found := await saved(store)).is_abandoned:
            await asyncio.sleep(0.01)
        assert await Runs(store, LEASE_SECONDS).take_over(found) is None
        step.save(cursor=1)
    assert ((await saved(store)).epoch, (await saved(store)).cursor) == (1, 1)


# --- the lease while a job works --------------------------------------------------------------------------------------


async def test_a_heartbeat_keeps_the_lease_while_a_job_works(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    renew, renewed = statements.renew, asyncio.Semaphore(0)

    async def count(*given: Any) -> RunRow | None:
        row = await renew(*given)
        renewed.release()
        return row

    monkeypatch.setattr(statements, "renew", count)

    async def work(_run: Run) -> str:
        for _ in range(6):  # two leases
            await renewed.acquire()
        return "still there"

    ended = await Runs(store, 5 * SHORT).run_by_hand(job(work), "test")
    assert (ended.run.result, ended.run.epoch) == ("still there", 1)


async def test_a_job_whose_run_is_lost_is_cancelled(store: Store) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def work(_run: Run) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    running = asyncio.create_task(Runs(store, SHORT).run_by_hand(job(work), "test"))
    await begun.wait()
    await set_columns(store, "runs", epoch=7)
    with pytest.raises(RunLost):
        await running
    assert cancelled.is_set()
    assert (await saved(store)).finished_at is None


async def test_a_job_that_ignores_the_loss_of_its_run_finishes_nothing(store: Store) -> None:
    async def work(run: Run) -> str:
        await set_columns(store, "runs", epoch=7)
        with contextlib.suppress(RunLost):
            await run.save(cursor=1)
        return "as if nothing had happened"

    with pytest.raises(RunLost):
        await Runs(store, LEASE_SECONDS).run_by_hand(job(work), "test")
    row = await saved(store)
    assert (row.cursor, row.finished_at, row.result) == (None, None, None)


async def test_a_run_that_takes_too_long_is_ended_with_an_error(store: Store) -> None:
    async def work(_run: Run) -> str:
        await asyncio.Event().wait()
        return "never"

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(job(work, at_most_for=timedelta(milliseconds=1)), "test")
    assert ended.run.error == "TimeoutError: ended after 0:00:00.001000, its at_most_for"


async def test_taken_over_after_its_time_it_is_ended_without_being_worked_on(store: Store) -> None:
    async def work(_run: Run) -> str:
        raise AssertionError

    await begin(store, started_at=timedelta(hours=-2))
    await end_lease(store)
    ended = await Runs(store, LEASE_SECONDS).run_by_hand(job(work), "test")
    assert (ended.run.error or "").startswith("TimeoutError: ended after 1:00:00")


async def test_a_run_that_crashes_its_processes_is_given_up(store: Store) -> None:
    calls = []

    async def work(run: Run) -> str:
        calls.append(run.run_id)
        return "well"

    for claims, is_given_up in ((MOST_CLAIMS - 1, False), (MOST_CLAIMS, True)):
        await begin(store, claim_count=claims)
        await end_lease(store)
        ended = await Runs(store, LEASE_SECONDS).run_by_hand(job(work), "test")
        assert (ended.run.error is not None) == is_given_up
    assert len(calls) == 1
    assert ended.run.error == "RuntimeError: given up: 5 processes in a row crashed while running it"


async def test_a_job_that_cancels_itself_has_failed(store: Store) -> None:
    async def work(_run: Run) -> str:
        raise asyncio.CancelledError

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(job(work), "test")
    assert ended.run.error == "RuntimeError: the job cancelled itself"


@pytest.mark.parametrize(("result", "text"), [(7, "7"), (0, "0"), (None, ""), ({"sent": 3}, "{'sent': 3}")])
async def test_a_job_may_return_anything(store: Store, result: Any, text: str) -> None:
    async def work(_run: Run) -> Any:
        return result

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(job(work), "test")
    assert (ended.run.result, ended.run.error) == (text, None)


async def test_a_job_whose_result_cannot_be_shown_has_failed(store: Store) -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError("no words")

    async def work(_run: Run) -> Any:
        return Mute()

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(job(work), "test")
    assert (ended.run.result, ended.run.error) == (None, "ValueError: no words")


async def test_the_errors_of_a_group_are_named(store: Store) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    async def work(_run: Run) -> str:
        raise ExceptionGroup("unhandled errors", [KeyError("shop"), ExceptionGroup("more", [Mute()])])

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(job(work), "test")
    assert ended.run.error == "KeyError: 'shop'; Mute:"


# --- by hand ----------------------------------------------------------------------------------------------------------


async def test_running_what_is_running_names_its_owner(store: Store) -> None:
    async def work(run: Run) -> str:
        with pytest.raises(JobRunning, match=f"job is run by {process_name()} since "):
            await run_by_hand(store, job(work))
        return "alone"

    assert (await run_by_hand(store, job(work))).result == "alone"


async def test_running_what_is_in_a_step_longer_than_its_lease_names_its_owner(store: Store) -> None:
    if store.dialect.name == "sqlite":
        return  # has one writer: a run by hand waits for the step
    await begin(store)
    await end_lease(store)
    async with asyncio.timeout(30), store.transaction() as step:
        await step.fetch(LOCK())
        with pytest.raises(JobRunning, match="job is run by first:1 since "):
            await Runs(store, LEASE_SECONDS).run_by_hand(job(lambda _run: asyncio.sleep(0, "never")), "test")


async def test_runs_with_different_subjects_are_under_way_at_once(store: Store) -> None:
    runs = Runs(store, LEASE_SECONDS)

    async def inner(run: Run) -> str:
        return run.subject

    async def work(run: Run) -> str:
        ended = await runs.run_by_hand(job(inner), "test", subject="b")
        with pytest.raises(JobRunning):
            await runs.run_by_hand(job(inner), "test", subject="a")
        return run.subject + (ended.run.result or "")

    assert (await runs.run_by_hand(job(work), "test", subject="a")).run.result == "ab"


async def test_by_hand_an_abandoned_run_is_gone_on_with(store: Store) -> None:
    async def work(run: Run) -> str:
        return f"from {run.cursor}, for {run.requested_by}"

    await begin(store, cursor="7")
    await end_lease(store)
    assert (await run_by_hand(store, job(work))).result == "from 7, for test"


async def test_steps_are_reported_as_they_are_committed(store: Store) -> None:
    async def work(run: Run) -> str:
        for _ in range(3):
            await run.save(done=2, total=6)
        return ""

    seen: list[tuple[int, int | None]] = []
    await Runs(store, LEASE_SECONDS).run_by_hand(job(work), "test", on_step=lambda run: seen.append((run.done, run.total)))
    assert seen == [(2, 6), (4, 6), (6, 6)]


# --- outages ----------------------------------------------------------------------------------------------------------


class Unanswered:
    """A store whose next commits succeed and are not answered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.unanswered = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._store.transaction() as tx:
            yield tx
        self._fail()

    @contextlib.asynccontextmanager
    async def single(self) -> AsyncIterator[Transaction]:
        async with self._store.single() as tx:
            yield tx
        self._fail()

    def _fail(self) -> None:
        if self.unanswered:
            self.unanswered -= 1
            raise StoreUnreachable("connection reset")


async def walk(run: Run, step: Step, numbers: int) -> bool:
    """One number a step, each published as an event of its own; whether there are more."""
    number = (run.cursor or 0) + 1
    await publish(step, Event(event_type=f"e.{number}"))
    step.save(cursor=number, done=1)
    return number < numbers


async def test_a_step_whose_commit_was_not_answered_is_not_repeated(store: Store) -> None:
    away: Any = Unanswered(store)

    async def work(run: Run) -> str:
        is_more = run.cursor != 5
        while is_more:
            away.unanswered = run.cursor == 2
            async with run.step() as step:
                is_more = await walk(run, step, 5)
        away.unanswered = 1  # of the run's end
        return "done"

    ended = await Runs(away, LEASE_SECONDS).run_by_hand(job(work), "test")
    assert (ended.run.result, ended.run.done, ended.run.cursor) == ("done", 5, None)
    assert await event_types(store) == [f"e.{number}" for number in range(1, 6)]


@pytest.mark.parametrize("error", [StoreUnreachable, StoreRolledBack, StoreBusy])
async def test_a_job_that_finds_the_store_away_is_called_again(store: Store, error: type[StoreError]) -> None:
    calls = []

    async def work(run: Run) -> str:
        calls.append(run.cursor)
        if len(calls) < 4:
            raise error("for a moment")
        return "at last"

    assert (await run_by_hand(store, job(work))).result == "at last"
    assert len(calls) == 4


@pytest.mark.parametrize(("error", "calls"), [(StoreBusy, module.BUSY_ATTEMPTS), (StoreTooSlow, 1)])
async def test_a_store_that_stays_busy_is_how_the_run_ends(store: Store, error: type[StoreError], calls: int) -> None:
    called = []

    async def work(run: Run) -> str:
        called.append(run.cursor)
        raise error("locked")

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(job(work), "test")
    assert isinstance(ended.raised, error)
    assert (ended.run.error, len(called)) == (str(ended.raised), calls)


async def test_progress_between_two_failures_makes_the_first_forgotten(store: Store) -> None:
    async def work(run: Run) -> str:
        if run.done < 2 * module.BUSY_ATTEMPTS:
            await run.save(done=1)
            raise StoreBusy("locked")
        return "done"

    assert (await run_by_hand(store, job(work))).result == "done"


async def test_a_store_away_for_longer_than_the_lease_loses_the_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def work(_run: Run) -> str:
        begun.set()
        raise StoreUnreachable("gone")

    async def fail(*_given: object) -> None:
        raise StoreUnreachable("gone")

    running = asyncio.create_task(Runs(store, SHORT).run_by_hand(job(work), "test"))
    await begun.wait()
    monkeypatch.setattr(statements, "renew", fail)
    with pytest.raises(RunLost):
        await running
    assert (await saved(store)).finished_at is None


async def test_a_start_that_is_alone_on_an_embedded_store_ends_the_leases_of_dead_processes(store: Store) -> None:
    await begin(store)
    async with release_dead_claims(store):
        assert (await saved(store)).is_abandoned == (store.dialect.name == "sqlite")
