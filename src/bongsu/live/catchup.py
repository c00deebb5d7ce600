"""Reads from the store what members here have not been told, many members at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice, repeat
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu import telemetry
from bongsu.live import frames
from bongsu.live.vocabulary import Known, Vocabulary
from bongsu.loop import Loop
from bongsu.store import Store
from bongsu.store import live as statements
from bongsu.store.live import Fresh

# Read in one statement: some milliseconds of work, so that whoever else uses the store or this loop does not notice.
MEMBERS = 500
CROWD = 1_000
NEWS = 2_000
# Notifications told before others have their turn, the reading of the next portion among them.
PIECE = 100


# A notification's id, its reader, how many that one has not read, and what stands behind the id in its frame: nothing where
# it is not to be told.
Telling = tuple[int, str, int | None, bytes]


class Present(Protocol):
    """Who is here, and how they are told."""

    def members(self) -> list[str]: ...

    def cursors(self, member_ids: Iterable[str]) -> dict[str, int]: ...

    def deliver(self, news: Iterable[Telling], behind: dict[str, int], as_of: datetime) -> int: ...

    def count(self, member_id: str, unread: int, as_of: datetime) -> None: ...


class CatchUp(Loop):
    """Marks say that a member may have news. They are sets: however often one is marked, it is read once."""

    def __init__(self, store: Store, present: Present, vocabulary: Vocabulary) -> None:
        super().__init__("live-catch-up", poll_seconds=60)
        self._store = store
        self._present = present
        self._vocabulary = vocabulary
        # At most everybody who is here, each. In the order they were marked.
        self._marked: dict[str, None] = {}
        self._crowd: dict[str, None] = {}

    def mark(self, member_ids: Iterable[str]) -> None:
        """These may have news, or another number of unread ones."""
        self._marked.update(dict.fromkeys(member_ids))
        self.wake()

    def hear(self, data: bytes | None) -> None:
        """A signal names messages with many readers, or some may have been missed.

        Everybody here is looked for: to ask first who of them is a reader would take as long as to ask what they have.
        """
        if data is None:
            self.mark(self._present.members())
            return
        self._crowd.update(dict.fromkeys(self._present.members()))
        self.wake()

    async def tick(self) -> int:
        done = await self._look(self._marked, MEMBERS, with_counts=True)
        return done + await self._look(self._crowd, CROWD, with_counts=False)

    async def _look(self, marks: dict[str, None], limit: int, *, with_counts: bool) -> int:
        """Those who are marked by now, a portion after the other. While one is told, the store is reading the next."""
        marked = left = len(marks)
        if not left:
            return 0
        async with self._store.read() as connection:
            # One moment for a whole crowd: what changes for one of them meanwhile marks that one, and is read later.
            as_of = None if with_counts else await statements.find_now(connection)
            # Small ones first, so that telling begins soon, and no reading takes longer than the telling beside it.
            size = step = limit // 8
            ahead = self._begin(connection, marks, min(left, size), as_of)
            try:
                while ahead is not None:
                    found = await ahead.reading
                    left -= len(ahead.members)
                    size = min(limit, size + step)
                    ahead = self._begin(connection, marks, min(left, size), as_of)
                    await self._tell(found)
            except BaseException:
                if ahead is not None:
                    ahead.reading.cancel()
                    await asyncio.wait({ahead.reading})
                    marks.update(dict.fromkeys(ahead.members))
                raise
        return marked

    def _begin(
        self, connection: AsyncConnection, marks: dict[str, None], limit: int, as_of: datetime | None
    ) -> _Portion | None:
        members = list(islice(marks, limit))
        if not members:
            return None
        for one in members:
            del marks[one]
        return _Portion(members, asyncio.create_task(self._read(connection, self._present.cursors(members), as_of)))

    async def _read(self, connection: AsyncConnection, cursors: dict[str, int], as_of: datetime | None) -> _Found:
        """Without a moment they are looked at one by one, those with nothing new too."""
        with_counts = as_of is None
        as_of = as_of or await statements.find_now(connection)
        fresh = await statements.find_news(connection, cursors, NEWS) if cursors else ()
        counts: dict[str, int] = {}
        if with_counts and (others := cursors.keys() - {one for alike in fresh for one in alike.member_ids}):
            counts = await statements.find_counts(connection, list(others))
        if sum(len(alike.member_ids) for alike in fresh) == NEWS:
            # Of some there may be more, and of others nothing yet.
            self.mark(cursors)
        words = await self._vocabulary.learn(connection, {alike.message_id for alike in fresh})
        return _Found(cursors, fresh, counts, words, as_of)

    async def _tell(self, found: _Found) -> None:
        news, told = found.in_order(), 0
        for first in range(0, len(news), PIECE):
            told += self._present.deliver(news[first : first + PIECE], found.cursors, found.as_of)
            await asyncio.sleep(0)
        for place, (member_id, unread) in enumerate(found.counts.items(), 1):
            self._present.count(member_id, unread, found.as_of)
            if place % PIECE == 0:
                await asyncio.sleep(0)
        telemetry.LIVE_TOLD.inc(told)


@dataclass(frozen=True)
class _Found:
    """What the store has for a portion of the members: beyond where, what, in which words; how many of the others' are
    unread; and when that was so."""

    cursors: dict[str, int]
    fresh: Sequence[Fresh]
    counts: dict[str, int]
    words: Known
    as_of: datetime

    def in_order(self) -> list[Telling]:
        return sorted(
            chain.from_iterable(
                zip(alike.notification_ids, alike.member_ids, alike.unread, repeat(self._rest(alike)), strict=False)
                for alike in self.fresh
            )
        )

    def _rest(self, alike: Fresh) -> bytes:
        phrase = self.words.get(alike.message_id)
        # Who wants nothing gets only what is critical; of whom nothing is known, everything.
        if phrase is None or not (alike.is_enabled or phrase.is_critical or alike.is_enabled is None):
            return b""
        return frames.rest(alike.created_at, phrase.end)


@dataclass(frozen=True)
class _Portion:
    """Members who are being read."""

    members: list[str]
    reading: asyncio.Task[_Found]
