"""Attaching while fan-outs commit: whatever the order of things, each notification once, in order, to every reader."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.inbox import live as statements
from tests.live.client import EventSource
from tests.live.harness import Live, live_on, write

MEMBERS = ("m-1", "m-2")
# Each is a schedule of its own: which reader comes and goes when, and which announcement is late, doubled or lost.
SEEDS = range(1 + int(os.environ.get("CHAOS_SEEDS", "1")))


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_gap_and_no_repeat_while_commits_and_connects_interleave(
    store: Store, settings: Settings, seed: int
) -> None:
    dice = random.Random(seed)
    written: dict[str, list[int]] = {member: (await write(store, member))[0] for member in MEMBERS}
    async with live_on(store, settings.model_copy(update={"sse_ping_seconds": 0.5})) as live:
        done = asyncio.Event()
        readers = [_Reader(live, member, written[member][0]) for member in MEMBERS for _ in range(2)]
        reading = [asyncio.create_task(one.come_and_go(random.Random(dice.random()), done)) for one in readers]
        await asyncio.gather(*(_commit(live, random.Random(dice.random()), member, written[member]) for member in MEMBERS))
        done.set()
        await asyncio.gather(*reading)
        for one in readers:
            # The first was there before the reader came, and its cursor says so.
            assert one.told == written[one.member][1:]


async def _commit(live: Live, dice: random.Random, member: str, written: list[int]) -> None:
    """Announcements arrive late, in the wrong order, twice, or not at all."""
    held: list[int] = []
    for _ in range(30):
        ids, messages = await write(live.store, member, dice.choice((1, 1, 2)))
        written += ids
        held += messages
        if dice.random() < 0.6:
            dice.shuffle(held)
            for message in held[: dice.randint(1, len(held))]:
                live.ringer.announcer.announce([message])
                if dice.random() < 0.5:
                    await live.ringer.announcer.idle.wait()
            held = held if dice.random() < 0.3 else []


class _Reader:
    """A page that is opened and closed, and remembers where it was."""

    def __init__(self, live: Live, member: str, cursor: int) -> None:
        self._live = live
        self.member = member
        self._cursor = str(cursor)
        self.told: list[int] = []

    async def come_and_go(self, dice: random.Random, done: asyncio.Event) -> None:
        while not done.is_set():
            page = self._page()
            async with page:
                enough = dice.randint(0, 4)
                ending = asyncio.create_task(done.wait())
                having = asyncio.create_task(page.until(lambda page, many=enough: len(page.told) >= many))  # type: ignore[misc]
                await asyncio.wait({ending, having}, return_when=asyncio.FIRST_COMPLETED)
                for task in (ending, having):
                    task.cancel()
                await asyncio.gather(ending, having, return_exceptions=True)
            self._take(page)
        # The last time it stays until nothing is missing.
        async with self._live.store.read() as tx:
            state = await statements.find_inbox_state(tx, self.member)
        assert state is not None
        async with self._page() as last:
            await last.until(lambda page: int(page.last_id) >= state.newest)
        self._take(last)

    def _page(self) -> EventSource:
        page = self._live.open(self.member)
        page.last_id = self._cursor
        return page

    def _take(self, page: EventSource) -> None:
        self.told += page.told
        self._cursor = page.last_id
