"""How the dispatcher sends on any channel: `start`, and the outcome comes by a callback.

Push sends thousands a second and calls back from its connections, without a task for each. A sender that is awaited, as
users write them, gets a task for each send here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from bongsu.deliver.channels.details import without_address
from bongsu.deliver.channels.limits.guard import Guard
from bongsu.deliver.channels.limits.priority_semaphore import PrioritySemaphore
from bongsu.model.outcome import Outcome, Outgoing, Sender, Unknown
from bongsu.runtime import telemetry

# Called once with the outcome of a send; perhaps before `start` returns.
OnOutcome = Callable[[Outcome], None]

_log = telemetry.log("bongsu.deliver")


class CallbackSender(Protocol):
    """What a dispatcher sends with."""

    @property
    def channel(self) -> str: ...

    def start(self, outgoing: Outgoing, on_outcome: OnOutcome) -> asyncio.Task[None] | None:
        """Begin to send. Where that takes a task, return it: cancelling it gives the send up, and nothing is called back."""
        ...

    def is_waiting(self, task: asyncio.Task[None]) -> bool:
        """Whether the send of that task has not begun: it waits for its turn, and nothing is lost if it is given up."""
        ...

    @property
    def is_held(self) -> bool:
        """Whether nothing passes now but a probe."""
        ...

    async def close(self) -> None: ...


async def send_and_wait(sender: CallbackSender, outgoing: Outgoing) -> Outcome:
    """One send, awaited."""
    outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    task = sender.start(outgoing, partial(_settle, outcome))
    try:
        return await outcome
    except asyncio.CancelledError:
        if task is not None:
            task.cancel()
        raise


def _settle(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


class GuardedSender:
    """A sender that is awaited, behind its guard."""

    def __init__(self, sender: Sender, guard: Guard | None = None, semaphore: PrioritySemaphore | None = None) -> None:
        """With `semaphore`, only so many sends are under way at once."""
        self.sender = sender
        self.channel: str = sender.channel
        self._guard = guard or Guard(sender.channel)
        self._semaphore = semaphore
        self._waiting: set[asyncio.Task[None]] = set()

    def start(self, outgoing: Outgoing, on_outcome: OnOutcome) -> asyncio.Task[None] | None:
        if (held := self._guard.admit(outgoing)) is not None:
            on_outcome(held)
            return None
        if self._semaphore is None:
            return asyncio.create_task(self._send(outgoing, on_outcome))
        task = asyncio.create_task(self._send_in_turn(self._semaphore, outgoing, on_outcome))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return task

    def is_waiting(self, task: asyncio.Task[None]) -> bool:
        return task in self._waiting

    @property
    def is_held(self) -> bool:
        return self._guard.is_held

    async def _send_in_turn(self, semaphore: PrioritySemaphore, outgoing: Outgoing, on_outcome: OnOutcome) -> None:
        async with semaphore.permit(outgoing):
            if (task := asyncio.current_task()) is not None:
                self._waiting.discard(task)
            await self._send(outgoing, on_outcome)

    async def send(self, outgoing: Outgoing) -> Outcome:
        return await send_and_wait(self, outgoing)

    async def close(self) -> None:
        await self.sender.close()

    async def _send(self, outgoing: Outgoing, on_outcome: OnOutcome) -> None:
        began = time.perf_counter()
        outcome: Outcome
        try:
            outcome = without_address(await self.sender.send(outgoing), outgoing)
        except asyncio.CancelledError as cancelled:
            self._guard.crashed(outgoing, cancelled, began)
            raise
        except Exception as error:
            _log.error("sender raised", channel=self.channel, exc_info=error)
            self._guard.crashed(outgoing, error, began)
            # It may have sent before it raised.
            outcome = Unknown("CRASHED", type(error).__name__)
        else:
            self._guard.answered(outgoing, outcome, began)
        on_outcome(outcome)
