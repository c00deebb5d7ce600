"""A connection of a driver that blocks (sqlite3, PyMySQL) in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, Protocol, TypeVar

from bongsu.errors import StoreClosed


class DriverConnection(Protocol):
    def rollback(self) -> object: ...
    def close(self) -> object: ...


_T = TypeVar("_T")
_C = TypeVar("_C", bound=DriverConnection)


class DriverThread(Generic[_C]):
    """Started and opened by its first use. Calls run in order and to their end, cancelled or not.

    Not an executor: its way to the thread and back takes as long again as a short statement.
    """

    def __init__(self, open_connection: Callable[[], _C], name: str) -> None:
        self._open = open_connection
        self._connection: _C | None = None
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run_calls, name=name, daemon=True)
        self._is_closed = False

    async def run(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Call it with the connection."""
        if self._is_closed:
            raise StoreClosed
        return await self._hand_over(self._with_connection, call, arguments)

    async def roll_back(self) -> None:
        """End a transaction, if one is open, after what is under way. Never raises for the connection's sake."""
        if not self._is_closed and self._thread.ident is not None:
            await self._hand_over(self._roll_back)

    async def disconnect(self) -> None:
        """Close the connection, after what is under way. The next use opens another."""
        if not self._is_closed and self._thread.ident is not None:
            await self._hand_over(self._close)

    async def close(self) -> None:
        """After what is under way; what comes later is refused. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.ident is not None:
            await self._hand_over(self._close)
            self._calls.put(None)
            await asyncio.to_thread(self._thread.join)

    async def _hand_over(self, call: Callable[..., _T], *arguments: Any) -> _T:
        if self._thread.ident is None:
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._calls.put(partial(_run_and_settle, loop, future, call, arguments))
        return await future

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _with_connection(self, call: Callable[..., _T], arguments: tuple[Any, ...]) -> _T:
        if self._connection is None:
            self._connection = self._open()
        return call(self._connection, *arguments)

    def _roll_back(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.rollback()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.close()


def _run_and_settle(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[_T], call: Callable[..., _T], arguments: tuple[Any, ...]
) -> None:
    try:
        settle = partial(_set_result, future, call(*arguments))
    except BaseException as error:
        settle = partial(_set_exception, future, error)
    # The loop is closed when its program ended without waiting for us.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)


def _set_result(future: asyncio.Future[_T], result: _T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[_T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
