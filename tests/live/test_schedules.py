"""Readers of both wires come and go while inboxes are written to: whatever the order of things, at the end each page shows
what the inbox has, and got each event once and in order."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest

from bongsu.errors import StoreUnreachable
from bongsu.runtime import loop
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.inbox import changes
from bongsu.store.inbox import live as statements
from tests.live.client import EventSource
from tests.live.harness import READERS, Live, bearer, live_on, write
from tests.live.model import Shown, Writer, find_inbox

MEMBERS = [f"m-{number}" for number in range(5)]
# Over each wire, of each member.
READERS_EACH = 2
WRITERS = 8
# Each is a schedule of its own: which reader comes and goes when, which announcement is late, doubled or lost, and when the
# store fails.
SEEDS = range(1 + int(os.environ.get("CHAOS_SEEDS", "1")))


@pytest.mark.parametrize("seed", SEEDS)
async def test_pages_that_come_and_go_show_what_the_inbox_has(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    for member in MEMBERS:
        await write(store, member)
    changed = {"sse_ping_seconds": 0.5, "sse_max_connections": 10}
    monkeypatch.setattr(loop, "LAST_BACKOFF", 0.2)
    async with live_on(store, settings.model_copy(update=changed)) as live:
        done = asyncio.Event()
        readers = [_Reader(live, member, wire) for member in MEMBERS for wire in READERS for _ in range(READERS_EACH)]
        assert len(readers) == 20
        reading = [asyncio.create_task(one.come_and_go(random.Random(dice.random()), done)) for one in readers]
        with monkeypatch.context() as patched:
            fail_at_times(patched, random.Random(dice.random()))
            writers = [Writer(live.ringer, live.signals, MEMBERS, dice.random()) for _ in range(WRITERS)]
            await asyncio.gather(*(writer.write(12) for writer in writers))
        done.set()
        await asyncio.gather(*reading)


def fail_at_times(patched: pytest.MonkeyPatch, dice: random.Random) -> None:
    """The store is away for one statement in ten."""
    for module, name in (
        (statements, "find_new"), (statements, "find_counts"), (statements, "find_inbox_state"),
        (statements, "find_recipients"), (changes, "find_changes"), (changes, "find_missed_changes"),
    ):  # fmt: skip
        find = getattr(module, name)

        async def find_or_fail(*arguments: Any, find: Any = find) -> Any:
            if dice.random() < 0.1:
                raise StoreUnreachable
            return await find(*arguments)

        patched.setattr(module, name, find_or_fail)


class _Reader:
    """A page that is opened and closed, and remembers where it was."""

    def __init__(self, live: Live, member: str, wire: str) -> None:
        self._live = live
        self._member = member
        self._wire = wire
        self._cursor = "0"
        self._shown = Shown()

    async def come_and_go(self, dice: random.Random, done: asyncio.Event) -> None:
        while not done.is_set():
            async with self._page() as page:
                enough = dice.randint(0, 6)
                ending = asyncio.create_task(done.wait())
                having = asyncio.create_task(page.until(lambda page, many=enough: len(page.frames) >= many))  # type: ignore[misc]
                await asyncio.wait({ending, having}, return_when=asyncio.FIRST_COMPLETED)
                for task in (ending, having):
                    task.cancel()
                await asyncio.gather(ending, having, return_exceptions=True)
            self._take(page)
        await self._stay()

    async def _stay(self) -> None:
        """The last time it stays until nothing is missing."""
        inbox, unread, last = await find_inbox(self._live.store, self._member)
        async with self._page() as page:
            await page.until(lambda page: int(page.last_id) >= last and {"unread": unread} in page.seen("badge")[-1:])
        self._take(page)
        assert (self._shown.items, self._shown.unread) == (inbox, unread)

    def _page(self) -> EventSource:
        page = READERS[self._wire]([self._live.address], bearer(self._live.settings, self._member))
        page.last_id = self._cursor
        return page

    def _take(self, page: EventSource) -> None:
        self._shown.apply(page.frames)
        self._cursor = page.last_id
