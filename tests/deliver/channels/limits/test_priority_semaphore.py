"""PrioritySemaphore: how many go at once, which of them wait for nobody, and that a wait given up costs no permit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest

from bongsu.deliver.channels.limits.priority_semaphore import PrioritySemaphore
from bongsu.model.outcome import Outgoing
from tests.deliver.channels.kits import outgoing

ORDINARY, CRITICAL = outgoing("a"), outgoing("a", is_critical=True)
TO_EVERYBODY = outgoing("a", is_critical=True, is_bulk=True)


class Queue:
    """Sends that wait for their turn, and hold it until the test ends them."""

    def __init__(self, permits: int) -> None:
        self.semaphore = PrioritySemaphore(permits)
        # In the order in which their semaphore came.
        self.begun: list[asyncio.Task[None]] = []
        self._ends: dict[asyncio.Task[None], asyncio.Event] = {}

    async def add(self, sends: Iterable[Outgoing]) -> list[asyncio.Task[None]]:
        added = []
        for one in sends:
            end = asyncio.Event()
            task = asyncio.create_task(self._send(one, end))
            self._ends[task] = end
            added.append(task)
        await settled()
        return added

    async def _send(self, one: Outgoing, end: asyncio.Event) -> None:
        async with self.semaphore.permit(one):
            task = asyncio.current_task()
            assert task is not None
            self.begun.append(task)
            await end.wait()

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        return [task for task in self.begun if not task.done()]

    def end(self, task: asyncio.Task[None]) -> None:
        self._ends[task].set()

    async def end_all(self) -> None:
        for end in self._ends.values():
            end.set()
        await asyncio.wait(self._ends.keys())


async def settled() -> None:
    """Every task has gone as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("others", [ORDINARY, TO_EVERYBODY], ids=["ordinary", "to everybody"])
async def test_critical_ones_to_few_wait_for_no_others(others: Outgoing) -> None:
    queue = Queue(8)
    await queue.add([others] * 100)
    assert len(queue.under_way) == 7
    (critical,) = await queue.add([CRITICAL])
    assert critical in queue.under_way
    # A second one has the permit of the first, and not the last of all.
    (second,) = await queue.add([CRITICAL])
    assert second not in queue.begun
    queue.end(critical)
    await settled()
    assert second in queue.under_way
    assert len(queue.under_way) == 8
    await queue.end_all()


async def test_critical_ones_use_all_places_that_are_free() -> None:
    queue = Queue(8)
    await queue.add([CRITICAL] * 20)
    assert len(queue.under_way) == 8
    await queue.end_all()


async def test_the_others_go_in_the_order_in_which_they_came() -> None:
    queue = Queue(3)
    waiting = await queue.add([ORDINARY, TO_EVERYBODY] * 5)
    while len(queue.begun) < len(waiting):
        queue.end(queue.under_way[0])
        await settled()
    assert queue.begun == waiting
    await queue.end_all()


async def test_a_single_place_is_for_all() -> None:
    queue = Queue(1)
    await queue.add([ORDINARY, CRITICAL, ORDINARY])
    assert len(queue.under_way) == 1
    await queue.end_all()
    assert len(queue.begun) == 3


@pytest.mark.parametrize("seed", range(100))
async def test_a_wait_given_up_costs_no_place(seed: int) -> None:
    """Wherever it is: before its first step, while it waits, when its turn has just come, while it is sent."""
    dice = random.Random(seed)
    permits = dice.randint(1, 4)
    queue = Queue(permits)
    for _ in range(20):
        tasks = await queue.add(dice.choices([ORDINARY, CRITICAL, TO_EVERYBODY], k=dice.randint(0, 3)))
        if dice.random() < 0.5:
            # Its turn may have come, and it does not know yet.
            tasks += queue.under_way
            for task in dice.sample(tasks, dice.randint(0, len(tasks))):
                queue.end(task)
        waiting = [task for task in queue._ends if not task.done()]
        for task in dice.sample(waiting, min(len(waiting), dice.randint(0, 3))):
            task.cancel()
        if dice.random() < 0.5:
            await settled()
        assert len(queue.under_way) <= permits
    await queue.end_all()
    # All permits are there again: as many as there were, and one of them for critical ones alone.
    await queue.add([ORDINARY] * 10)
    assert len(queue.under_way) == max(1, permits - 1)
    await queue.add([CRITICAL] * 10)
    assert len(queue.under_way) == permits
    await queue.end_all()
