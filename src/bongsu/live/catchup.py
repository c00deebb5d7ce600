"""Reads from the store what members here have not been told, many members at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice, repeat
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu import telemetry
from bongsu.live import frames
from bongsu.live.room import Room
from bongsu.live.vocabulary import Known, Vocabulary
from bongsu.loop import Loop
from bongsu.store import Store
from bongsu.store import live as statements
from bongsu.store.live import Fresh

# Read in one statement: some milliseconds of work, so that whoever else uses the store or this loop does not notice, and
# telling begins soon. Fewer, or portions that grow → reading one takes longer than the telling beside it.
MEMBERS = 500
NEWS = 2_000
# Notifications told before others have their turn, the reading of the next portion among them.
PIECE = 100


class Present(Protocol):
    """Who is here."""

    def rooms(self) -> list[Room]: ...

    def room(self, member_id: str) -> Room | None: ...


class CatchUp(Loop):
    """Marks say that a member may have news. They are sets: however often one is marked, it is read once."""

    def __init__(self, store: Store, present: Present, vocabulary: Vocabulary) -> None:
        super().__init__("live-catch-up", poll_seconds=60)
        self._store = store
        self._present = present
        self._vocabulary = vocabulary
        # At most everybody who is here, in the order they were marked.
        self._marked: dict[str, None] = {}
        # Those of everybody who are still to be looked at, and whether to begin with all of them again after that: a signal
        # that comes while they are is not to put those at the end off.
        self._crowd: list[Room] = []
        self._is_for_all = False

    def mark(self, member_ids: Iterable[str]) -> None:
        """These may have news, or another number of unread ones."""
        self._marked.update(dict.fromkeys(member_ids))
        self.wake()

    def hear(self, data: bytes | None) -> None:
        """A signal names messages with many readers, or some may have been missed.

        Everybody here is looked for: to ask first who of them is a reader would take as long as to ask what they have.
        """
        if data is None:
            self.mark(room.member_id for room in self._present.rooms())
            return
        self._is_for_all = True
        self.wake()

    async def tick(self) -> int:
        if self._is_for_all and not self._crowd:
            self._crowd, self._is_for_all = self._present.rooms(), False
        done = await self._look(self._next_marked, len(self._marked), with_counts=True)
        return done + await self._look(self._next_of_crowd, len(self._crowd), with_counts=False)

    def _next_marked(self) -> list[Room]:
        members = list(islice(self._marked, MEMBERS))
        for one in members:
            del self._marked[one]
        return [room for one in members if (room := self._present.room(one)) is not None]

    def _next_of_crowd(self) -> list[Room]:
        some, self._crowd = self._crowd[:MEMBERS], self._crowd[MEMBERS:]
        return some

    async def _look(self, take: Callable[[], list[Room]], count: int, *, with_counts: bool) -> int:
        """Those who are marked by now, a portion after the other. While one is told, the store is reading the next."""
        if not count:
            return 0
        async with self._store.read() as connection:
            # One moment for a whole crowd: what changes for one of them meanwhile marks that one, and is read later.
            as_of = None if with_counts else await statements.find_now(connection)
            ahead: _Portion | None = self._begin(connection, take(), as_of)
            left = math.ceil(count / MEMBERS)
            try:
                while ahead is not None:
                    found = await ahead.reading
                    left -= 1
                    ahead = self._begin(connection, take(), as_of) if left else None
                    await self._tell(found)
            except BaseException:
                if ahead is not None:
                    ahead.reading.cancel()
                    await asyncio.wait({ahead.reading})
                    self.mark(room.member_id for room in ahead.rooms)
                raise
        return count

    def _begin(self, connection: AsyncConnection, rooms: list[Room], as_of: datetime | None) -> _Portion:
        live: list[Room] = []
        cursors: dict[str, int] = {}
        for room in rooms:
            if (cursor := room.cursor()) is not None:
                live.append(room)
                cursors[room.member_id] = cursor
        return _Portion(rooms, asyncio.create_task(self._read(connection, live, cursors, as_of)))

    async def _read(
        self, connection: AsyncConnection, rooms: list[Room], cursors: dict[str, int], as_of: datetime | None
    ) -> _Found:
        """Without a moment they are looked at one by one, those with nothing new too."""
        with_counts = as_of is None
        as_of = as_of or await statements.find_now(connection)
        fresh = await statements.find_news(connection, cursors, NEWS) if cursors else ()
        counts: list[tuple[Room, int]] = []
        if with_counts:
            news = {place for alike in fresh for place in alike.places}
            others = [room for place, room in enumerate(rooms) if place not in news]
            unread = await statements.find_counts(connection, [room.member_id for room in others]) if others else {}
            counts = [(room, unread[room.member_id]) for room in others if room.member_id in unread]
        if sum(len(alike.places) for alike in fresh) == NEWS:
            # Of some there may be more, and of others nothing yet.
            self.mark(cursors)
        words = await self._vocabulary.learn(connection, {alike.message_id for alike in fresh})
        return _Found(rooms, list(cursors.values()), fresh, counts, words, as_of)

    async def _tell(self, found: _Found) -> None:
        news, told = found.in_order(), 0
        for first in range(0, len(news), PIECE):
            told += self._deliver(news[first : first + PIECE], found)
            await asyncio.sleep(0)
        for place, (room, unread) in enumerate(found.counts, 1):
            room.count(unread, found.as_of)
            if place % PIECE == 0:
                await asyncio.sleep(0)
        telemetry.LIVE_TOLD.inc(told)

    def _deliver(self, news: Sequence[Telling], found: _Found) -> int:
        """The next that the store has for those who were asked for. To how many streams it was news.

        It is behind them then, also when it is not said because the member does not want it.
        """
        told, rooms, behind, as_of = 0, found.rooms, found.behind, found.as_of
        for notification_id, place, unread, chunk in news:
            after = behind[place]
            # A stream that becomes live before the member's next one has missed this one, and is not told past it.
            behind[place] = notification_id
            for stream in rooms[place].streams:
                if not stream.is_live:
                    stream.has_missed = True
                elif stream.cursor < after:
                    # It has become live since the others' cursors were taken, and has more to be told than they.
                    self.mark([stream.member_id])
                else:
                    told += stream.tell(notification_id, chunk, unread, as_of)
        return told


# A notification's id, its reader's place, how many that one has not read, and its frame: nothing where it is not to be told.
Telling = tuple[int, int, int | None, bytes]


@dataclass(frozen=True)
class _Found:
    """What the store has for a portion of those here: beyond which id of each, what, in which words; how many of the others'
    are unread; and when that was so."""

    rooms: list[Room]
    behind: list[int]
    fresh: Sequence[Fresh]
    counts: Sequence[tuple[Room, int]]
    words: Known
    as_of: datetime

    def in_order(self) -> list[Telling]:
        return sorted(
            chain.from_iterable(
                zip(alike.notification_ids, alike.places, alike.unread, self._frames(alike), strict=False)
                for alike in self.fresh
            )
        )

    def _frames(self, alike: Fresh) -> Iterable[bytes]:
        phrase = self.words.get(alike.message_id)
        # Who wants nothing gets only what is critical; of whom nothing is known, everything.
        if phrase is None or not (alike.is_enabled or phrase.is_critical or alike.is_enabled is None):
            return repeat(b"")
        return frames.notifications(alike.notification_ids, frames.rest(alike.created_at, phrase.end))


@dataclass(frozen=True)
class _Portion:
    """Those who are being read."""

    rooms: list[Room]
    reading: asyncio.Task[_Found]
