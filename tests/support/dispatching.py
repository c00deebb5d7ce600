"""One delivery for each member, and a dispatcher that sends them."""

from __future__ import annotations

import asyncio
from typing import Any

from bongsu.deliver.channels.callback import CallbackSender, GuardedSender
from bongsu.deliver.dispatcher import Dispatcher
from bongsu.model import Channel, Guarantee, Listed, NoticeType
from bongsu.settings import Settings
from bongsu.store import Store
from tests.support.decisions import add_members, decide, rows, rules_notifying, trigger_event
from tests.support.senders import AnsweringSender, CallingBackSender

MOST_ONCE = NoticeType("ONCE", (Channel.PUSH, Channel.IN_APP))
LEAST_ONCE = NoticeType("AGAIN", (Channel.PUSH, Channel.IN_APP), guarantee=Guarantee.AT_LEAST_ONCE)


async def one_delivery(store: Store, settings: Settings, kind: NoticeType = MOST_ONCE, *who: str) -> None:
    await add_members(store, *(who or ("a",)), device=True)
    await decide(store, settings, rules_notifying(Listed(who or ("a",)), kind), trigger_event())


def dispatching(store: Store, sender: AnsweringSender, settings: Settings, concurrency: int | None = None) -> Dispatcher:
    channel: CallbackSender = sender if isinstance(sender, CallingBackSender) else GuardedSender(sender)
    return Dispatcher(store, channel, settings, concurrency)


async def dispatch_all(store: Store, sender: AnsweringSender, settings: Settings, concurrency: int = 8) -> None:
    """Until nothing is READY or SENDING."""
    dispatcher = dispatching(store, sender, settings, concurrency)
    async with asyncio.timeout(30):
        while await rows(store, "SELECT 1 FROM bongsu_deliveries WHERE status IN ('READY', 'SENDING') LIMIT 1"):
            await dispatcher.tick()
    await dispatcher.stop()


async def states(store: Store, columns: str = "status, code") -> list[tuple[Any, ...]]:
    found = await rows(store, f"SELECT {columns} FROM bongsu_deliveries ORDER BY message_id, member_id")
    return [tuple(row) for row in found]
