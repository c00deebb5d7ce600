"""The streams open in this process, by member, and what each of them is told.

A stream that comes is registered first, then heard of by the other processes, and only then reads what it missed; what is
new meanwhile it is not told, but reads too. After that its cursor says what it has told, and three things bring news:

- a signal with the notification in it, told when the stream has told the one before it;
- a signal that there is something, or a gap before the one in a signal: the member is read from the store;
- the time of a ping: likewise, so that a signal that was lost costs that long at most.

So nothing is told twice or out of order, whatever the order in which signals arrive.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from bongsu import telemetry
from bongsu.errors import RedisUnreachable
from bongsu.live import frames
from bongsu.live.catchup import CatchUp
from bongsu.live.messages import CHAT, NOTIFICATION, member_topic, read_chat, read_notification
from bongsu.live.registry import Registry
from bongsu.live.room import Room
from bongsu.live.stream import LONG_AGO, Stream
from bongsu.live.vocabulary import Known, Vocabulary, as_frames
from bongsu.signals import Signals
from bongsu.store import Store
from bongsu.store import live as statements
from bongsu.store.live import News, Standing

# The most that is told of what came after Last-Event-ID: who was away for longer looks at the inbox.
MISSED_LIMIT = 1_000
# Those who come at once read the store so many at a time: after a restart all come at once, and others use the store too.
READERS = 4
# Notifications written before looking whether the reader keeps up.
PIECE = 50


@dataclass
class Missed:
    """What a stream that comes tells first."""

    standing: Standing | None
    news: Sequence[News]
    is_cut: bool
    cursor: int


class Hub:
    def __init__(self, store: Store, signals: Signals, registry: Registry, replay: int) -> None:
        self._store = store
        self._signals = signals
        self._registry = registry
        self._replay = replay
        self._vocabulary = Vocabulary()
        self._rooms: dict[str, Room] = {}
        self._count = 0
        self._readers = asyncio.Semaphore(READERS)
        self.catch_up = CatchUp(store, self, self._vocabulary)

    # --- coming and going ---------------------------------------------------------------------------------------------

    async def attach(self, stream: Stream, after: int | None) -> None:
        """Bring a stream up to date and keep it so. Raises RedisUnreachable when it could not be kept so."""
        self._register(stream)
        if not await self._signals.heard(member_topic(stream.member_id)):
            raise RedisUnreachable
        await self._registry.enter(stream.member_id, stream.connection_id)
        async with self._readers, self._store.read() as connection:
            missed = await self._read_missed(connection, stream.member_id, after)
            words = await self._vocabulary.learn(connection, {one.message_id for one in missed.news})
        await self._tell_missed(stream, missed, words)
        stream.is_live = True
        if stream.has_missed:
            self.catch_up.mark([stream.member_id])

    def detach(self, stream: Stream) -> None:
        room = self._rooms.get(stream.member_id)
        if room is None or stream not in room.streams:
            return
        room.streams = tuple(one for one in room.streams if one is not stream)
        self._count -= 1
        telemetry.LIVE_STREAMS.dec()
        if not room.streams:
            del self._rooms[stream.member_id]
            room.listening.__exit__(None, None, None)
        self._registry.leave(stream.member_id, stream.connection_id)

    def _register(self, stream: Stream) -> None:
        room = self._rooms.get(stream.member_id)
        if room is None:
            hear = functools.partial(self._hear, stream.member_id)
            listening = self._signals.listen(member_topic(stream.member_id), hear)
            room = self._rooms[stream.member_id] = Room(stream.member_id, listening)
            room.listening.__enter__()
        room.streams += (stream,)
        self._count += 1
        telemetry.LIVE_STREAMS.inc()

    async def _read_missed(self, connection: AsyncConnection, member_id: str, after: int | None) -> Missed:
        standing = await statements.find_standing(connection, member_id)
        if standing is None:
            return Missed(None, (), False, 0)
        newest = standing.newest
        if after is None:
            if not (standing.unread and self._replay):
                return Missed(standing, (), False, newest)
            news = await statements.find_missed(connection, member_id, 0, newest, self._replay, only_unread=True)
            return Missed(standing, news, False, newest)
        # An id from the future is of another store: from here on everything is new.
        if after >= newest:
            return Missed(standing, (), False, newest)
        news = await statements.find_missed(connection, member_id, after, newest, MISSED_LIMIT + 1, only_unread=False)
        return Missed(standing, news[-MISSED_LIMIT:], len(news) > MISSED_LIMIT, newest)

    async def _tell_missed(self, stream: Stream, missed: Missed, words: Known) -> None:
        if missed.is_cut:
            stream.write(frames.RESET)
        standing = missed.standing
        if standing is None:
            stream.badge(0, LONG_AGO)
        else:
            stream.badge(standing.unread, standing.as_of)
        told = as_frames(missed.news, words, standing)
        for first in range(0, len(told), PIECE):
            stream.tell_all(told[first : first + PIECE])
            await stream.taken()
        if missed.cursor > stream.cursor or not missed.cursor:
            # So that whoever is cut off before the first notification says on return where it was.
            stream.cursor = missed.cursor
            stream.write(frames.cursor(missed.cursor))

    # --- news ---------------------------------------------------------------------------------------------------------

    def _hear(self, member_id: str, data: bytes | None) -> None:
        kind = data[:1] if data else b""
        if data and kind == NOTIFICATION:
            announced = read_notification(data)
            for stream in self.streams_of(member_id):
                if not stream.is_live:
                    stream.has_missed = True
                    continue
                if announced.previous > stream.cursor:
                    self.catch_up.mark([member_id])
                    continue
                if not announced.chunk:
                    stream.badge(announced.unread, announced.as_of)
                elif stream.tell(announced.notification_id, announced.chunk, announced.unread, announced.as_of):
                    telemetry.LIVE_TOLD.inc()
        elif data and kind == CHAT:
            for stream in self.streams_of(member_id):
                stream.hint(read_chat(data))
        else:
            self.catch_up.mark([member_id])

    # --- who is here --------------------------------------------------------------------------------------------------

    def streams_of(self, member_id: str) -> Sequence[Stream]:
        room = self._rooms.get(member_id)
        return () if room is None else room.streams

    def room(self, member_id: str) -> Room | None:
        return self._rooms.get(member_id)

    def rooms(self) -> list[Room]:
        return list(self._rooms.values())

    def streams(self) -> Iterator[Stream]:
        for room in list(self._rooms.values()):
            yield from room.streams

    def __len__(self) -> int:
        return self._count

    def disconnect(self, data: bytes | None) -> None:
        """An announcement that a connection has to go for a newer one of its member; it may be anybody's."""
        if data is None:
            self._registry.enter_again()
            return
        told = json.loads(data)
        for stream in self.streams_of(told["memberId"]):
            if stream.connection_id == told["connectionId"]:
                stream.end(frames.bye("replaced", frames.replaced_milliseconds()), "replaced")
