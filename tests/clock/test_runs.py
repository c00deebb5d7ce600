"""Runs: begun by hand, and what happens to a job whose run is lost, too long, or interrupted by an outage."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
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
from bongsu.runtime.process import process_name
from bongsu.store import Store, Transaction
from bongsu.store import runs as statements
from bongsu.store.core.dead_claims import release_dead_claims
from bongsu.store.core.query import same
from bongsu.store.runs import RunRow
from tests.support.rows import set_columns
from tests.support.runs import LEASE_SECONDS, begin_run, end_lease, event_types, make_job, run_by_hand, saved_run

# Heartbeats come several times a second, and nothing waits long for a lease to end.
SHORT = 0.3

LOCK = same("SELECT run_id FROM bongsu_runs FOR UPDATE")


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_BACKOFF", 0.001)


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

    ended = await Runs(store, 5 * SHORT).run_by_hand(make_job(work), "test")
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

    running = asyncio.create_task(Runs(store, SHORT).run_by_hand(make_job(work), "test"))
    await begun.wait()
    await set_columns(store, "runs", epoch=7)
    with pytest.raises(RunLost):
        await running
    assert cancelled.is_set()
    assert (await saved_run(store)).finished_at is None


async def test_a_job_that_ignores_the_loss_of_its_run_finishes_nothing(store: Store) -> None:
    async def work(run: Run) -> str:
        await set_columns(store, "runs", epoch=7)
        with contextlib.suppress(RunLost):
            await run.save(cursor=1)
        return "as if nothing had happened"

    with pytest.raises(RunLost):
        await Runs(store, LEASE_SECONDS).run_by_hand(make_job(work), "test")
    row = await saved_run(store)
    assert (row.cursor, row.finished_at, row.result) == (None, None, None)


async def test_a_run_that_takes_too_long_is_ended_with_an_error(store: Store) -> None:
    async def work(_run: Run) -> str:
        await asyncio.Event().wait()
        return "never"

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(make_job(work, at_most_for=timedelta(milliseconds=1)), "test")
    assert ended.run.error == "TimeoutError: ended after 0:00:00.001000, its at_most_for"


async def test_taken_over_after_its_time_it_is_ended_without_being_worked_on(store: Store) -> None:
    async def work(_run: Run) -> str:
        raise AssertionError

    await begin_run(store, started_at=timedelta(hours=-2))
    await end_lease(store)
    ended = await Runs(store, LEASE_SECONDS).run_by_hand(make_job(work), "test")
    assert (ended.run.error or "").startswith("TimeoutError: ended after 1:00:00")


async def test_a_run_that_crashes_its_processes_is_given_up(store: Store) -> None:
    calls = []

    async def work(run: Run) -> str:
        calls.append(run.run_id)
        return "well"

    for claims, is_given_up in ((MOST_CLAIMS - 1, False), (MOST_CLAIMS, True)):
        await begin_run(store, claim_count=claims)
        await end_lease(store)
        ended = await Runs(store, LEASE_SECONDS).run_by_hand(make_job(work), "test")
        assert (ended.run.error is not None) == is_given_up
    assert len(calls) == 1
    assert ended.run.error == "RuntimeError: given up: 5 processes in a row crashed while running it"


async def test_a_job_that_cancels_itself_has_failed(store: Store) -> None:
    async def work(_run: Run) -> str:
        raise asyncio.CancelledError

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(make_job(work), "test")
    assert ended.run.error == "RuntimeError: the job cancelled itself"


@pytest.mark.parametrize(("result", "text"), [(7, "7"), (0, "0"), (None, ""), ({"sent": 3}, "{'sent': 3}")])
async def test_a_job_may_return_anything(store: Store, result: Any, text: str) -> None:
    async def work(_run: Run) -> Any:
        return result

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(make_job(work), "test")
    assert (ended.run.result, ended.run.error) == (text, None)


async def test_a_job_whose_result_cannot_be_shown_has_failed(store: Store) -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError("no words")

    async def work(_run: Run) -> Any:
        return Mute()

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(make_job(work), "test")
    assert (ended.run.result, ended.run.error) == (None, "ValueError: no words")


async def test_the_errors_of_a_group_are_named(store: Store) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    async def work(_run: Run) -> str:
        raise ExceptionGroup("unhandled errors", [KeyError("shop"), ExceptionGroup("more", [Mute()])])

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(make_job(work), "test")
    assert ended.run.error == "KeyError: 'shop'; Mute:"


# --- by hand ----------------------------------------------------------------------------------------------------------


async def test_running_what_is_running_names_its_owner(store: Store) -> None:
    async def work(run: Run) -> str:
        with pytest.raises(JobRunning, match=f"job is run by {process_name()} since "):
            await run_by_hand(store, make_job(work))
        return "alone"

    assert (await run_by_hand(store, make_job(work))).result == "alone"


async def test_running_what_is_in_a_step_longer_than_its_lease_names_its_owner(store: Store) -> None:
    if store.dialect.name == "sqlite":
        return  # has one writer: a run by hand waits for the step
    await begin_run(store)
    await end_lease(store)
    async with asyncio.timeout(30), store.transaction() as step:
        await step.fetch(LOCK())
        with pytest.raises(JobRunning, match="job is run by first:1 since "):
            await Runs(store, LEASE_SECONDS).run_by_hand(make_job(lambda _run: asyncio.sleep(0, "never")), "test")


async def test_runs_with_different_subjects_are_under_way_at_once(store: Store) -> None:
    runs = Runs(store, LEASE_SECONDS)

    async def inner(run: Run) -> str:
        return run.subject

    async def work(run: Run) -> str:
        ended = await runs.run_by_hand(make_job(inner), "test", subject="b")
        with pytest.raises(JobRunning):
            await runs.run_by_hand(make_job(inner), "test", subject="a")
        return run.subject + (ended.run.result or "")

    assert (await runs.run_by_hand(make_job(work), "test", subject="a")).run.result == "ab"


async def test_by_hand_an_abandoned_run_is_gone_on_with(store: Store) -> None:
    async def work(run: Run) -> str:
        return f"from {run.cursor}, for {run.requested_by}"

    await begin_run(store, cursor="7")
    await end_lease(store)
    assert (await run_by_hand(store, make_job(work))).result == "from 7, for test"


async def test_steps_are_reported_as_they_are_committed(store: Store) -> None:
    async def work(run: Run) -> str:
        for _ in range(3):
            await run.save(done=2, total=6)
        return ""

    seen: list[tuple[int, int | None]] = []
    await Runs(store, LEASE_SECONDS).run_by_hand(
        make_job(work), "test", on_step=lambda run: seen.append((run.done, run.total))
    )
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

    ended = await Runs(away, LEASE_SECONDS).run_by_hand(make_job(work), "test")
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

    assert (await run_by_hand(store, make_job(work))).result == "at last"
    assert len(calls) == 4


@pytest.mark.parametrize(("error", "calls"), [(StoreBusy, module.BUSY_ATTEMPTS), (StoreTooSlow, 1)])
async def test_a_store_that_stays_busy_is_how_the_run_ends(store: Store, error: type[StoreError], calls: int) -> None:
    called = []

    async def work(run: Run) -> str:
        called.append(run.cursor)
        raise error("locked")

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(make_job(work), "test")
    assert isinstance(ended.raised, error)
    assert (ended.run.error, len(called)) == (str(ended.raised), calls)


async def test_progress_between_two_failures_makes_the_first_forgotten(store: Store) -> None:
    async def work(run: Run) -> str:
        if run.done < 2 * module.BUSY_ATTEMPTS:
            await run.save(done=1)
            raise StoreBusy("locked")
        return "done"

    assert (await run_by_hand(store, make_job(work))).result == "done"


async def test_a_store_away_for_longer_than_the_lease_loses_the_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def work(_run: Run) -> str:
        begun.set()
        raise StoreUnreachable("gone")

    async def fail(*_given: object) -> None:
        raise StoreUnreachable("gone")

    running = asyncio.create_task(Runs(store, SHORT).run_by_hand(make_job(work), "test"))
    await begun.wait()
    monkeypatch.setattr(statements, "renew", fail)
    with pytest.raises(RunLost):
        await running
    assert (await saved_run(store)).finished_at is None


async def test_a_start_that_is_alone_on_an_embedded_store_ends_the_leases_of_dead_processes(store: Store) -> None:
    await begin_run(store)
    async with release_dead_claims(store):
        assert (await saved_run(store)).is_abandoned == (store.dialect.name == "sqlite")
