"""Reads from the store what members here have not been told, many members at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu import telemetry
from bongsu.live.vocabulary import Known, Vocabulary, as_frames
from bongsu.loop import Loop
from bongsu.store import Store
from bongsu.store import live as statements
from bongsu.store.live import News, Standing

# Read in one statement: some milliseconds of work, so that whoever else uses the store or this loop does not notice.
MEMBERS = 500
CROWD = 1_000
NEWS = 2_000
# Members told before others have their turn, the reading of the next portion among them.
PIECE = 50


class Present(Protocol):
    """Who is here, and how they are told."""

    def members(self) -> list[str]: ...

    def cursor_of(self, member_id: str) -> int | None: ...

    def deliver(
        self, member_id: str, after: int, last: int, chunks: Sequence[tuple[int, bytes]], standing: Standing | None
    ) -> int: ...


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
            # A small one first, so that telling begins soon.
            ahead = self._begin(connection, marks, min(left, limit // 5), with_counts)
            try:
                while ahead is not None:
                    found = await ahead.reading
                    left -= len(ahead.members)
                    ahead = self._begin(connection, marks, min(left, limit), with_counts)
                    await self._tell(found)
            except BaseException:
                if ahead is not None:
                    ahead.reading.cancel()
                    await asyncio.wait({ahead.reading})
                    marks.update(dict.fromkeys(ahead.members))
                raise
        return marked

    def _begin(self, connection: AsyncConnection, marks: dict[str, None], limit: int, with_counts: bool) -> _Portion | None:
        members = list(islice(marks, limit))
        if not members:
            return None
        for one in members:
            del marks[one]
        cursors = {one: cursor for one in members if (cursor := self._present.cursor_of(one)) is not None}
        return _Portion(members, asyncio.create_task(self._read(connection, cursors, with_counts)))

    async def _read(self, connection: AsyncConnection, cursors: dict[str, int], with_counts: bool) -> _Found:
        if not cursors:
            return _Found(cursors, {}, {}, {})
        news, standings = await statements.find_news(connection, cursors, NEWS)
        if with_counts:
            standings |= await statements.find_counts(connection, [one for one in cursors if one not in standings])
        if len(news) == NEWS:
            # Of some there may be more, and of others nothing yet.
            self.mark(cursors)
        by_member: dict[str, list[News]] = {one: [] for one in cursors} if with_counts else {}
        for one in news:
            by_member.setdefault(one.member_id, []).append(one)
        return _Found(cursors, by_member, standings, await self._vocabulary.learn(connection, news))

    async def _tell(self, found: _Found) -> None:
        told = 0
        for place, (member_id, news) in enumerate(found.news.items(), 1):
            standing, after = found.standings.get(member_id), found.cursors[member_id]
            last = news[-1].notification_id if news else after
            told += self._present.deliver(member_id, after, last, as_frames(news, found.words, standing), standing)
            if place % PIECE == 0:
                await asyncio.sleep(0)
        telemetry.LIVE_TOLD.inc(told)


@dataclass(frozen=True)
class _Found:
    """What the store has for a portion of the members: from where, by member, and the words it is said in."""

    cursors: dict[str, int]
    news: dict[str, list[News]]
    standings: dict[str, Standing]
    words: Known


@dataclass(frozen=True)
class _Portion:
    """Members who are being read."""

    members: list[str]
    reading: asyncio.Task[_Found]
