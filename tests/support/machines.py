"""Random schedules against a model: what every state machine that runs on a store has in common."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, ClassVar, TypeVar

import hypothesis
from hypothesis import HealthCheck
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from bongsu.settings import Settings
from bongsu.store import Store, Transaction
from bongsu.store.core.query import same
from tests.support.long_runs import examples

_T = TypeVar("_T")


class StoreMachine(RuleBasedStateMachine):
    """Runs against one store, emptied for each example. A test calls `run_machine` in `opened`."""

    # Those that are emptied, in this order.
    tables: ClassVar[Sequence[str]]

    settings: ClassVar[Settings]
    store: ClassVar[Store]
    loop: ClassVar[asyncio.AbstractEventLoop]
    _entered: ClassVar[AsyncExitStack]

    def __init__(self) -> None:
        super().__init__()
        self.run(self.empty())

    @classmethod
    def run(cls, work: Coroutine[Any, Any, _T]) -> _T:
        return cls.loop.run_until_complete(work)

    @classmethod
    def enter(cls, context: AbstractAsyncContextManager[_T]) -> _T:
        """Until the store is closed."""
        return cls.run(cls._entered.enter_async_context(context))

    def write(self, work: Callable[[Transaction], Awaitable[_T]]) -> _T:
        async def write() -> _T:
            async with self.store.transaction() as tx:
                return await work(tx)

        return self.run(write())

    async def empty(self) -> None:
        async with self.store.transaction() as tx:
            for table in self.tables:
                await tx.execute(same(f"DELETE FROM bongsu_{table}")())


@contextlib.contextmanager
def opened(machine: type[StoreMachine], settings: Settings) -> Iterator[None]:
    """The store that all examples of the machine run against."""
    machine.loop = asyncio.new_event_loop()
    machine.settings, machine.store, machine._entered = settings, Store.open(settings), AsyncExitStack()
    machine._entered.push_async_callback(machine.store.close)
    try:
        yield
    finally:
        machine.run(machine._entered.aclose())
        machine.loop.close()


def run_machine(machine: type[StoreMachine], few: int, steps: int) -> None:
    """Try so many examples of so many steps."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine,
        settings=hypothesis.settings(max_examples=examples(few), stateful_step_count=steps, suppress_health_check=checks),
    )
