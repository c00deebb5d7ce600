"""Channels whose provider is the test itself, and dispatchers that send to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bongsu.deliver.channels.callback import GuardedSender, OnOutcome
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.model import Channel
from bongsu.model.outcome import Accepted, Outcome, Outgoing
from bongsu.settings import Settings
from bongsu.store import Store
from tests.support.decisions import rows

ACCEPTED = Accepted("ref")


class AnsweringSender:
    """A channel that gives the answers it is given, and keeps what it was to send."""

    def __init__(self, answer: Callable[[Outgoing], Outcome] | Outcome = ACCEPTED, channel: str = Channel.PUSH) -> None:
        self.channel = channel
        self.sent: list[Outgoing] = []
        self._answer = answer

    async def send(self, outgoing: Outgoing) -> Outcome:
        self.sent.append(outgoing)
        return self._answer(outgoing) if callable(self._answer) else self._answer

    async def close(self) -> None: ...


class HeldSender(AnsweringSender):
    """Answers when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def send(self, outgoing: Outgoing) -> Outcome:
        self.has_begun.set()
        outcome = await super().send(outgoing)
        await self.may_answer.wait()
        return outcome


class CallingBackSender(AnsweringSender):
    """Starts everything without a task; the test calls back with the outcomes."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[OnOutcome] = []

    def start(self, outgoing: Outgoing, on_outcome: OnOutcome) -> asyncio.Task[None] | None:
        self.under_way.append(on_outcome)
        return None

    is_held = False

    def is_waiting(self, task: asyncio.Task[None]) -> bool:
        return False


async def dispatch_due(store: Store, settings: Settings, sender: AnsweringSender | None = None) -> list[Outgoing]:
    """What a new process sends of what is due."""
    sender = sender or AnsweringSender()
    dispatcher = Dispatcher(store, GuardedSender(sender), settings)
    while await dispatcher.tick():
        pass
    await dispatcher.stop()
    return sender.sent


async def until_all_ended(store: Store, dispatcher: Dispatcher) -> None:
    """Until no delivery is READY or SENDING."""
    async with asyncio.timeout(60):
        while await rows(store, "SELECT 1 FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING') LIMIT 1"):
            dispatcher.wake()
            await dispatcher.idle.wait()
