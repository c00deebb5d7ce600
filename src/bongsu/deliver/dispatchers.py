"""One dispatcher per channel, so that a slow provider costs its own channel only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from bongsu.deliver.channels.registry import senders
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.deliver.waking import DispatcherWaker
from bongsu.rules import Rules
from bongsu.runtime.loop import running
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.messages.content import MessageCache


@contextlib.asynccontextmanager
async def dispatchers(
    store: Store, settings: Settings, rules: Rules, waker: DispatcherWaker, message_cache: MessageCache
) -> AsyncIterator[None]:
    """While the block runs, every channel that is configured has a dispatcher."""
    started = []
    async with contextlib.AsyncExitStack() as stack:
        for channel, sender in senders(settings, rules.senders, store).items():
            stack.push_async_callback(sender.close)
            dispatcher = Dispatcher(store, sender, settings, rules.concurrency.get(channel), message_cache)
            started.append(await stack.enter_async_context(running(dispatcher)))
            stack.enter_context(waker.waking(dispatcher))
        yield
        # Together: one after the other, slow channels would take longer than an orchestrator waits.
        await asyncio.gather(*(dispatcher.stop() for dispatcher in started))
