"""Reads from the store what members here have not been told, many members at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice, repeat
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu import telemetry
from bongsu.live import frames
from bongsu.live.room import Room
from bongsu.live.stream import LONG_AGO, Stream
from bongsu.live.vocabulary import Known, Vocabulary
from bongsu.loop import Loop
from bongsu.store import Store
from bongsu.store import live as statements
from bongsu.store.live import Fresh

# Read in one statement: some milliseconds of work, so that whoever else uses the store or this loop does not notice. The
# first are fewer, because nobody is told meanwhile.
MEMBERS = 500
FIRST_MEMBERS = 50
# Portions read while one is told: the store is late with one now and then.
AHEAD = 2
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
        self._crowd: deque[Room] = deque()
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
            self._crowd, self._is_for_all = deque(self._present.rooms()), False
        done = await self._look(self._next_marked, len(self._marked), with_counts=True)
        return done + await self._look(self._next_of_crowd, len(self._crowd), with_counts=False)

    def _next_marked(self, count: int) -> list[Room]:
        members = list(islice(self._marked, count))
        for one in members:
            del self._marked[one]
        return [room for one in members if (room := self._present.room(one)) is not None]

    def _next_of_crowd(self, count: int) -> list[Room]:
        return [self._crowd.popleft() for _ in range(count)]

    async def _look(self, take: Callable[[int], list[Room]], count: int, *, with_counts: bool) -> int:
        """Those who are marked by now, a portion after the other. While one is told, the store is reading the next."""
        if not count:
            return 0
        sizes, ahead = _sizes(count), deque[_Portion]()
        async with self._store.read() as connection:
            reader = _Reader(connection, self._vocabulary, with_counts)
            try:
                ahead.extend(reader.begin(take(size)) for size in islice(sizes, AHEAD))
                while ahead:
                    found = await ahead[0].reading
                    ahead.popleft()
                    ahead.extend(reader.begin(take(size)) for size in islice(sizes, 1))
                    await self._tell(found)
            finally:
                for portion in ahead:
                    portion.reading.cancel()
                    self.mark(room.member_id for room in portion.rooms)
                if ahead:
                    await asyncio.wait({portion.reading for portion in ahead})
        return count

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
        if found.is_full:
            # Of some there may be more, and of others nothing yet.
            self.mark(room.member_id for room in found.rooms)

    def _deliver(self, news: Sequence[Telling], found: _Found) -> int:
        """The next that the store has for those who were asked for. To how many streams it was news.

        It is behind them then, also when it is not said because the member does not want it.
        """
        rooms, behind, as_of = found.rooms, found.behind, found.as_of
        # First all is made ready, then all is written: what the system needs to write and what Python needs to go on push
        # each other out of the processor's memory.
        ready: list[tuple[Stream, bytes]] = []
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
                elif said := stream.prepare(notification_id, chunk, unread, as_of):
                    ready.append((stream, said))
        for stream, said in ready:
            stream.put(said)
        return len(ready)


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
    # There may be more than was asked for.
    is_full: bool

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


class _Reader:
    """Reads portions over one connection, one after the other."""

    def __init__(self, connection: AsyncConnection, vocabulary: Vocabulary, with_counts: bool) -> None:
        self._connection = connection
        self._vocabulary = vocabulary
        # Whether those with nothing new are looked at too, for how many they have not read.
        self._with_counts = with_counts
        self._turn = asyncio.Lock()

    def begin(self, rooms: list[Room]) -> _Portion:
        live: list[Room] = []
        cursors: dict[str, int] = {}
        for room in rooms:
            if (cursor := room.cursor()) is not None:
                live.append(room)
                cursors[room.member_id] = cursor
        return _Portion(rooms, asyncio.create_task(self._read(live, cursors)))

    async def _read(self, rooms: list[Room], cursors: dict[str, int]) -> _Found:
        async with self._turn:
            fresh = await statements.find_news(self._connection, cursors, NEWS) if cursors else []
            words = await self._vocabulary.learn(self._connection, {alike.message_id for alike in fresh})
            as_of, counts = fresh[0].as_of if fresh else LONG_AGO, []
            if self._with_counts:
                # A moment before the counts, so that none of them is taken for newer than it is.
                as_of = as_of if fresh else await statements.find_now(self._connection)
                counts = await self._count_others(rooms, fresh)
        is_full = sum(len(alike.places) for alike in fresh) == NEWS
        return _Found(rooms, list(cursors.values()), fresh, counts, words, as_of, is_full)

    async def _count_others(self, rooms: list[Room], fresh: Sequence[Fresh]) -> list[tuple[Room, int]]:
        """How much those with nothing new have not read."""
        news = {place for alike in fresh for place in alike.places}
        others = [room for place, room in enumerate(rooms) if place not in news]
        unread = await statements.find_counts(self._connection, [room.member_id for room in others]) if others else {}
        return [(room, unread[room.member_id]) for room in others if room.member_id in unread]


def _sizes(count: int) -> Iterator[int]:
    size = min(FIRST_MEMBERS, MEMBERS)
    while count > 0:
        yield min(size, count)
        count -= size
        size = min(2 * size, MEMBERS)
