"""A run: what a step commits, and who may write (fencing)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bongsu import Event, publish
from bongsu.clock.run import Run
from bongsu.clock.runs import Runs
from bongsu.errors import RunLost
from bongsu.runtime.process import process_name
from bongsu.store import Store
from bongsu.store import runs as statements
from bongsu.store.runs import RunRow
from tests.support.runs import LEASE_SECONDS, begin_run, end_lease, event_types, make_job, saved_run


async def test_a_step_commits_what_it_did_with_cursor_and_counts(store: Store) -> None:
    run = await begin_run(store)
    assert (run.cursor, run.counts, run.done, run.total) == (None, {}, 0, None)
    for number in (1, 2):
        async with run.step() as step:
            await publish(step, Event(event_type=f"e.{number}"))
            step.save(cursor={"after": number}, counts={"sent": number, "none": 0}, done=1, total=5)
            step.save(counts={"sent": 10})
    assert (run.cursor, run.counts, run.done, run.total) == ({"after": 2}, {"sent": 23}, 2, 5)
    row = await saved_run(store)
    assert (row.cursor, row.counts, row.done, row.total, row.claim_count) == ({"after": 2}, {"sent": 23}, 2, 5, 0)
    assert await event_types(store) == ["e.1", "e.2"]


async def test_a_step_that_raises_leaves_nothing(store: Store) -> None:
    run = await begin_run(store)
    await run.save(cursor=1, counts={"sent": 1})
    with pytest.raises(ZeroDivisionError):
        async with run.step() as step:
            await publish(step, Event(event_type="e"))
            step.save(cursor=2, counts={"sent": 1})
            raise ZeroDivisionError
    assert (run.cursor, run.counts) == (1, {"sent": 1})
    assert ((await saved_run(store)).cursor, await event_types(store)) == (1, [])


async def test_steps_of_one_run_take_turns(store: Store) -> None:
    run = await begin_run(store)

    async def add() -> None:
        async with run.step() as step:
            step.save(cursor=(run.cursor or 0) + 1)

    await asyncio.gather(*(add() for _ in range(5)))
    assert run.cursor == (await saved_run(store)).cursor == 5


async def test_a_step_publishes_each_event_once(store: Store) -> None:
    run, event = await begin_run(store), Event(event_type="e")
    async with run.step() as step:
        first = await publish(step, event, Event(event_type="f"))
        again = await publish(step, event)
    assert (len(first.accepted), first.duplicates, again.duplicates) == (2, (), (event.event_id,))


async def test_a_step_within_a_step_is_refused_and_leaves_nothing(store: Store) -> None:
    run = await begin_run(store)
    with pytest.raises(RuntimeError, match="within a step"):
        async with asyncio.timeout(30), run.step() as step:
            step.save(cursor=1)
            await run.save(cursor=2)
    assert (await saved_run(store)).cursor is None
    await run.save(cursor=3)
    assert (await saved_run(store)).cursor == 3


async def test_a_step_that_begins_during_a_heartbeat_waits_for_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    renew, begun, may_end = statements.renew, asyncio.Event(), asyncio.Event()

    async def slow(*given: Any) -> RunRow | None:
        begun.set()
        await may_end.wait()
        return await renew(*given)

    monkeypatch.setattr(statements, "renew", slow)
    run = await begin_run(store)
    await run.save(cursor=1)
    heartbeat = asyncio.create_task(run.renew())
    await begun.wait()
    asyncio.get_running_loop().call_soon(may_end.set)
    await run.save(cursor=2)
    await heartbeat
    assert (await saved_run(store)).cursor == 2


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
    run = await begin_run(store)
    await end_lease(store)
    if is_taken:
        assert await Runs(store, LEASE_SECONDS).take_over(await saved_run(store)) is not None
    elif late == "finish":
        return  # see below
    before = await saved_run(store)
    with pytest.raises(RunLost):
        await LATE[late](run)
    assert run.is_lost
    after = await saved_run(store)
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

    ended = await Runs(store, LEASE_SECONDS).run_by_hand(make_job(work), "test")
    assert (ended.run.result, ended.run.error) == ((None, "ValueError: the reason") if fails else ("done", None))


async def test_a_lost_run_cannot_be_ended_by_its_old_owner_who_stops(store: Store) -> None:
    run = await begin_run(store)
    await end_lease(store)
    await Runs(store, LEASE_SECONDS).take_over(await saved_run(store))
    await run.release()
    assert not (await saved_run(store)).is_lease_over


async def test_an_abandoned_run_is_taken_over_by_one(store: Store) -> None:
    await begin_run(store, cursor="[7]", counts='{"sent": 3}')
    await end_lease(store)
    found = await saved_run(store)
    taken = await asyncio.gather(*(Runs(store, LEASE_SECONDS).take_over(found) for _ in range(4)))
    (row,) = [one for one in taken if one is not None]
    assert (row.epoch, row.leased_by, row.claim_count, row.cursor, row.counts) == (2, process_name(), 2, [7], {"sent": 3})


async def test_nobody_takes_a_run_over_during_a_step_however_long(store: Store) -> None:
    if store.dialect.name == "sqlite":
        return  # has one writer: during a step nobody else writes
    run = await begin_run(store, 1.0)
    async with run.step() as step:
        while not (found := await saved_run(store)).is_abandoned:
            await asyncio.sleep(0.01)
        assert await Runs(store, LEASE_SECONDS).take_over(found) is None
        step.save(cursor=1)
    assert ((await saved_run(store)).epoch, (await saved_run(store)).cursor) == (1, 1)
