"""Group commit: one write for what comes together, bounded, and an item that fails costs its own submission alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.errors import StoreUnreachable, TooBusy
from bongsu.runtime.group_commit import GroupCommit


class Writes:
    """Writes numbers and doubles them; refuses a batch with a negative number, as a database does with a bad row."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.stored: list[int] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.began = asyncio.Event()

    async def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.began.set()
        await self.may_write.wait()
        if any(number < 0 for number in numbers):
            raise ValueError("negative")
        if 0 in numbers:
            raise StoreUnreachable("away")
        self.stored += numbers
        return [number * 2 for number in numbers]


def group(writes: Writes, batch_limit: int = 100, waiting_limit: int = 100, small: int = 100) -> GroupCommit[int, int]:
    return GroupCommit("numbers", writes, batch_limit=batch_limit, waiting_limit=waiting_limit, small=small)


async def outcomes(commits: GroupCommit[int, int], *submissions: Sequence[int]) -> list[list[int] | BaseException]:
    """What becomes of submissions that are queued together."""
    tasks = [asyncio.create_task(commits.submit(items)) for items in submissions]
    await asyncio.sleep(0)
    while not all(task.done() for task in tasks):
        await commits.tick()
        await asyncio.sleep(0)
    return list(await asyncio.gather(*tasks, return_exceptions=True))


async def test_submissions_that_wait_together_share_one_write() -> None:
    writes = Writes()
    assert await outcomes(group(writes), [1], [2, 3], [4]) == [[2], [4, 6], [8]]
    assert writes.batches == [[1, 2, 3, 4]]


async def test_nothing_is_answered_before_its_write_has_returned() -> None:
    writes = Writes()
    writes.may_write.clear()
    commits = group(writes)
    await commits.start()
    answer = asyncio.create_task(commits.submit([1]))
    await writes.began.wait()
    assert not answer.done()
    writes.may_write.set()
    assert await answer == [2]
    await commits.stop()


async def test_a_submission_that_fails_fails_alone() -> None:
    writes = Writes()
    first, bad, second, third = await outcomes(group(writes), [1, 2], [3, -1], [4], [5])
    assert (first, second, third) == ([2, 4], [8], [10])
    assert isinstance(bad, ValueError)
    assert sorted(writes.stored) == [1, 2, 4, 5], "all or nothing for each submission, and nothing twice"


async def test_a_store_that_is_away_fails_the_whole_batch_at_once() -> None:
    writes = Writes()
    failed = await outcomes(group(writes), [1], [0], [2])
    assert all(isinstance(error, StoreUnreachable) for error in failed)
    assert len(writes.batches) == 1, "nothing is tried again while the store is away"


async def test_a_batch_has_a_limit_and_a_larger_submission_goes_alone() -> None:
    writes = Writes()
    await outcomes(group(writes, batch_limit=3), [1, 2], [3], [4, 5, 6, 7], [8])
    assert writes.batches == [[1, 2, 3], [4, 5, 6, 7], [8]]


async def test_small_submissions_and_bulk_take_turns() -> None:
    writes = Writes()
    await outcomes(group(writes, batch_limit=3, small=1), [1, 2], [3, 4], [5, 6], [7], [8])
    assert writes.batches[:2] in ([[1, 2], [7, 8]], [[7, 8], [1, 2]])
    assert writes.batches[2:] == [[3, 4], [5, 6]]


@pytest.mark.parametrize(("gone", "waits"), [([1, 2], [3]), ([3], [1, 2])])
async def test_a_caller_who_has_gone_does_not_keep_the_others_waiting(gone: list[int], waits: list[int]) -> None:
    """Whosever turn it is: an empty batch would put the loop to sleep with a submission in its queue."""
    writes = Writes()
    commits = group(writes, small=1)
    for is_turn_of_bulk in (False, True):
        commits._is_turn_of_bulk = is_turn_of_bulk
        leaving, staying = (asyncio.create_task(commits.submit(items)) for items in (gone, waits))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        assert await commits.tick() == len(waits)
        assert await staying == [item * 2 for item in waits]


async def test_past_the_limit_a_submission_is_refused_and_a_stream_waits() -> None:
    writes = Writes()
    commits = group(writes, waiting_limit=2)
    waiting = asyncio.create_task(commits.submit([1, 2]))
    await asyncio.sleep(0)
    with pytest.raises(TooBusy):
        await commits.submit([3])
    in_turn = asyncio.create_task(commits.submit_in_turn([4, 5]))
    await asyncio.sleep(0)
    assert await commits.tick() == 2, "the stream's items are not in the queue yet"
    assert await waiting == [2, 4]
    while not in_turn.done():
        await commits.tick()
        await asyncio.sleep(0)
    assert in_turn.result() == [8, 10]


async def test_a_caller_who_has_gone_is_not_written() -> None:
    writes = Writes()
    commits = group(writes)
    gone = asyncio.create_task(commits.submit([1]))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    assert await outcomes(commits, [2]) == [[4]]
    assert writes.batches == [[2]]


async def test_a_stop_refuses_what_is_queued_and_what_comes_later() -> None:
    writes = Writes()
    writes.may_write.clear()
    commits = group(writes, waiting_limit=1)
    await commits.start()
    under_way = asyncio.create_task(commits.submit([1]))
    await writes.began.wait()
    queued = asyncio.create_task(commits.submit([2]))
    in_turn = asyncio.create_task(commits.submit_in_turn([3]))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(commits.stop())
    await asyncio.sleep(0)
    writes.may_write.set()
    await stopping
    assert await under_way == [2]
    for refused in (queued, in_turn, asyncio.create_task(commits.submit([4]))):
        with pytest.raises(TooBusy):
            await refused
    assert writes.stored == [1]


@given(st.lists(st.lists(st.integers(-2, 9).filter(bool), min_size=1, max_size=4), max_size=12), st.integers(1, 10))
async def test_whatever_fails_each_submission_is_stored_once_or_not_at_all(submissions: list[list[int]], limit: int) -> None:
    writes = Writes()
    answers = await outcomes(group(writes, batch_limit=limit), *submissions)
    good = [items for items in submissions if min(items) > 0]
    assert [answer for answer in answers if isinstance(answer, list)] == [[item * 2 for item in items] for items in good]
    assert sorted(writes.stored) == sorted(item for items in good for item in items)
