"""Processes that send to chat rooms, and are killed right after an answer. For tests/chat/test_instances.py."""

from __future__ import annotations

import asyncio
import os
import signal
from multiprocessing.connection import Connection
from uuid import UUID

from bongsu.settings import Settings
from bongsu.store import Store
from tests.support.chat import chatting


def send_and_die(settings: Settings, room_id: UUID, answers: Connection) -> None:
    """Killed by itself, as by kill -9, as soon as the first answer is known to the other side."""

    async def work() -> None:
        async with chatting(Store.open(settings), settings) as chat:

            async def send(number: int) -> None:
                (seq,) = await chat.send(room_id, "a", f"text-{number}")
                answers.send((seq, f"text-{number}"))
                if number == 9:
                    os.kill(os.getpid(), signal.SIGKILL)

            await asyncio.gather(*(send(number) for number in range(30)))

    asyncio.run(work())


def send_many(settings: Settings, rooms: list[UUID], senders: list[str], count: int) -> None:
    """Every sender sends to every room, one message after the other; all at once."""

    async def work() -> None:
        store = Store.open(settings)
        async with chatting(store, settings) as chat:
            texts = [str(number) for number in range(count)]
            await asyncio.gather(*(chat.send(room, sender, *texts) for sender in senders for room in rooms))
        await store.close()

    asyncio.run(work())
