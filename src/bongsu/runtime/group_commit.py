"""Group commit: many small writes share one transaction.

While one batch is written, the next submissions queue; then they share one write. Small submissions and bulk queue apart
and take turns, so that a small one waits for one batch of a burst and not for all of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from bongsu.errors import BongsuError, StoreError, TooBusy
from bongsu.runtime.loop import Loop

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(eq=False)
class _Submission(Generic[_T, _R]):
    items: Sequence[_T]
    result: asyncio.Future[list[_R]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class GroupCommit(Loop, Generic[_T, _R]):
    """Start it, then `submit` from any number of tasks.

    `write` stores a batch of items, all or none, and returns one result for each. The queue is bounded: past
    `waiting_limit` items a `submit` is refused, and a `submit_in_turn` waits, so that a stream is read no faster than it is
    stored (backpressure).
    """

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[_T]], Awaitable[Sequence[_R]]],
        *,
        batch_limit: int,
        waiting_limit: int,
        small: int = 1,
        common_errors: tuple[type[Exception], ...] = (StoreError,),
    ) -> None:
        """A submission of more than `small` items is bulk. `common_errors` are not an item's fault: they fail the whole
        batch, and nothing is tried again."""
        super().__init__(name, poll_seconds=60)
        self._write = write
        self.batch_limit = batch_limit
        self.waiting_limit = waiting_limit
        self._common_errors = common_errors
        self._small = small
        self._small_waiting: deque[_Submission[_T, _R]] = deque()
        self._bulk_waiting: deque[_Submission[_T, _R]] = deque()
        self._is_turn_of_bulk = False
        self._waiting_items = 0
        self._has_capacity = asyncio.Event()

    async def submit(self, items: Sequence[_T]) -> list[_R]:
        """Write the items, all or none; return their results when they are committed."""
        if not items:
            return []
        if self.is_stopping or self._waiting_items + len(items) > self.waiting_limit:
            raise TooBusy(f"{self._waiting_items} items are waiting to be stored")
        return await self._enqueue(items)

    async def submit_in_turn(self, items: Sequence[_T]) -> list[_R]:
        """Like `submit`, but wait while the queue is full."""
        while self._waiting_items and self._waiting_items + len(items) > self.waiting_limit and not self.is_stopping:
            self._has_capacity.clear()
            await self._has_capacity.wait()
        if self.is_stopping:
            raise TooBusy("The service is stopping")
        return await self._enqueue(items)

    async def tick(self) -> int:
        batch = self._next_batch()
        if batch:
            await self._write_batch(batch)
        return sum(len(submission.items) for submission in batch)

    async def stop(self) -> None:
        """Finish the batch under way; refuse what is queued and what comes later."""
        await super().stop()
        self._has_capacity.set()
        for queue in (self._small_waiting, self._bulk_waiting):
            while queue:
                queue.popleft().fail(TooBusy("The service is stopping"))

    async def _enqueue(self, items: Sequence[_T]) -> list[_R]:
        submission: _Submission[_T, _R] = _Submission(items)
        (self._small_waiting if len(items) <= self._small else self._bulk_waiting).append(submission)
        self._waiting_items += len(items)
        self.wake()
        return await submission.result

    def _next_batch(self) -> list[_Submission[_T, _R]]:
        """Of small submissions or of bulk, by turns; only of those whose callers still wait."""
        for queue in (self._small_waiting, self._bulk_waiting):
            while queue and queue[0].result.done():
                self._take(queue)
        self._is_turn_of_bulk = bool(self._bulk_waiting) and not (self._small_waiting and self._is_turn_of_bulk)
        queue = self._bulk_waiting if self._is_turn_of_bulk else self._small_waiting
        batch: list[_Submission[_T, _R]] = []
        size = 0
        while queue and (not batch or size + len(queue[0].items) <= self.batch_limit):
            submission = self._take(queue)
            if not submission.result.done():
                batch.append(submission)
                size += len(submission.items)
        return batch

    def _take(self, queue: deque[_Submission[_T, _R]]) -> _Submission[_T, _R]:
        submission = queue.popleft()
        self._waiting_items -= len(submission.items)
        self._has_capacity.set()
        return submission

    async def _write_batch(self, batch: Sequence[_Submission[_T, _R]]) -> None:
        """Write it in one transaction. If an item is at fault, write the halves apart until its submission is alone."""
        try:
            results = await self._write([item for submission in batch for item in submission.items])
        except self._common_errors as error:
            for submission in batch:
                submission.fail(error)
        except Exception as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._write_batch(batch[:middle])
                await self._write_batch(batch[middle:])
                return
            batch[0].fail(error)
            if not isinstance(error, BongsuError):
                self._log.error("write failed", items=len(batch[0].items), exc_info=error)
        else:
            remaining = iter(results)
            for submission in batch:
                own = list(islice(remaining, len(submission.items)))
                if not submission.result.done():
                    submission.result.set_result(own)
