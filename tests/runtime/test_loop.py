"""Loop: the contract of everything that runs."""

from __future__ import annotations

import asyncio

from bongsu.errors import StoreRolledBack
from bongsu.runtime.backoff import doubling
from bongsu.runtime.loop import Loop, running_together
from bongsu.runtime.telemetry import LOOP_CRASHES

FOREVER = 3600


class Work(Loop):
    """Does what it is given; None is a tick that finds nothing."""

    def __init__(self, poll_seconds: float = FOREVER) -> None:
        super().__init__("work", poll_seconds)
        self.todo: list[object] = []
        self.done: list[object] = []
        self.entered = asyncio.Event()
        self.may_leave = asyncio.Event()
        self.may_leave.set()

    async def tick(self) -> int:
        self.entered.set()
        await self.may_leave.wait()
        if not self.todo:
            return 0
        job = self.todo.pop(0)
        if isinstance(job, Exception):
            raise job
        self.done.append(job)
        return 1


def crashes() -> float:
    return float(LOOP_CRASHES.labels("work")._value.get())


async def idle(loop: Loop) -> None:
    async with asyncio.timeout(20):
        await loop.idle.wait()


async def test_it_ticks_until_there_is_nothing_left_then_waits_to_be_woken() -> None:
    work = Work()
    work.todo = [1, 2, 3]
    await work.start()
    await idle(work)
    assert work.done == [1, 2, 3]
    work.todo.append(4)
    work.wake()
    await idle(work)
    assert work.done == [1, 2, 3, 4]
    await work.stop()


class Patient(Work):
    pause_seconds = FOREVER


async def test_one_that_pauses_after_work_is_not_woken_from_it_and_stops_at_once() -> None:
    work = Patient()
    work.todo = [1, 2, 3]
    await work.start()
    async with asyncio.timeout(20):
        while work.done != [1]:
            await asyncio.sleep(0)
        work.wake()
        for _ in range(100):
            await asyncio.sleep(0)
        assert work.done == [1]
        await work.stop()


class Gathering(Work):
    pause_seconds = 0.01


async def test_what_comes_during_a_pause_is_found_after_it() -> None:
    work = Gathering()
    work.todo = [1]
    await work.start()
    async with asyncio.timeout(20):
        while work.done != [1]:
            await asyncio.sleep(0)
        work.todo += [2, 3]
        work.wake()
        await idle(work)
    assert work.done == [1, 2, 3]
    await work.stop()


async def test_without_a_wake_it_finds_work_at_the_next_poll() -> None:
    work = Work(poll_seconds=0.01)
    await work.start()
    await idle(work)
    work.todo.append("found by polling")
    async with asyncio.timeout(20):
        while not work.done:
            work.entered.clear()
            await work.entered.wait()
    await work.stop()
    assert work.done == ["found by polling"]


async def test_a_wake_during_a_tick_is_not_lost() -> None:
    work = Work()
    work.may_leave.clear()
    await work.start()
    await work.entered.wait()
    work.todo.append("came during the tick")
    work.wake()
    work.may_leave.set()
    await idle(work)
    assert work.done == ["came during the tick"]
    await work.stop()


async def test_a_crash_is_counted_and_the_loop_goes_on() -> None:
    before = LOOP_CRASHES.labels("work")._value.get()
    work = Work()
    work.todo = [RuntimeError("once"), RuntimeError("twice"), "after the crashes"]
    await work.start()
    await idle(work)
    assert work.done == ["after the crashes"]
    assert work.crashed.is_set()
    assert LOOP_CRASHES.labels("work")._value.get() == before + 2
    await work.stop()


async def test_stop_lets_the_tick_under_way_finish() -> None:
    work = Work()
    work.todo = ["under way", "not begun"]
    work.may_leave.clear()
    await work.start()
    await work.entered.wait()
    stopping = asyncio.create_task(work.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    work.may_leave.set()
    await stopping
    assert work.done == ["under way"]


async def test_stop_does_not_wait_for_a_backoff() -> None:
    work = Work()
    work.todo = [RuntimeError(str(number)) for number in range(100)]
    await work.start()
    await work.crashed.wait()
    async with asyncio.timeout(20):
        await work.stop()
    assert len(work.todo) > 90


async def test_stop_may_come_twice_or_before_start_and_start_may_come_again() -> None:
    work = Work()
    await work.stop()
    await work.start()
    await work.start()
    await idle(work)
    await work.stop()
    await work.stop()
    work.todo.append("second life")
    work.idle.clear()
    await work.start()
    async with asyncio.timeout(20):
        await work.idle.wait()
    await work.stop()
    assert work.done == ["second life"]


def test_backoff_doubles_to_a_limit_with_jitter() -> None:
    for tries, exact in ((1, 1), (2, 2), (3, 4), (4, 8), (50, 60)):
        waits = {doubling(1, tries, 60) for _ in range(50)}
        assert len(waits) > 1
        assert all(0.8 * exact <= wait <= 1.2 * exact for wait in waits)


async def test_a_tick_whose_transaction_was_rolled_back_is_repeated_and_counts_as_a_crash_only_the_second_time() -> None:
    work = Work()
    before = crashes()
    work.todo = [StoreRolledBack("deadlock detected"), 1]
    await work.start()
    await idle(work)
    assert work.done == [1]
    assert (crashes(), work.crashed.is_set()) == (before, False)
    work.todo = [StoreRolledBack("deadlock detected"), StoreRolledBack("deadlock detected"), 2]
    work.wake()
    await idle(work)
    assert work.done == [1, 2]
    assert (crashes(), work.crashed.is_set()) == (before + 1, True)
    await work.stop()


class StopsAfterTheOther(Work):
    """Its stop ends when that of the other has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.other = self
        self.asked_to_stop = asyncio.Event()

    async def stop(self) -> None:
        self.asked_to_stop.set()
        async with asyncio.timeout(20):
            await self.other.asked_to_stop.wait()
        await super().stop()


async def test_what_runs_together_is_stopped_at_the_same_time() -> None:
    """Else each that hangs would add to the time of the stop."""
    first, second = StopsAfterTheOther(), StopsAfterTheOther()
    first.other, second.other = second, first
    async with running_together([first, second]):
        await idle(first)
        await idle(second)
    assert first.is_stopping and second.is_stopping
