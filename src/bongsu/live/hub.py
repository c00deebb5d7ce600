"""The open streams of this process, by member, and what is sent to each.

A new stream is registered first, then subscribed with the other processes, and only then reads what it missed from the
store; what is new until it has caught up is not sent but read again. After that it is live: its cursor is the last
notification it has sent, and three things bring new ones:

- a signal with the notification in it, sent if the stream has sent the one before;
- a signal without, or one that shows a gap: the member's new notifications are read from the store;
- a ping: they are read as well, so a lost signal costs one ping interval at most.

So nothing is sent twice or out of order, in whatever order signals arrive. What is withdrawn moves no cursor: a cursor only
records up to where a stream has been sent everything that is in the inbox.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bongsu.errors import RedisUnreachable
from bongsu.live import frames
from bongsu.live.catchup import CatchUp
from bongsu.live.member_streams import MemberStreams
from bongsu.live.messages import LOGGED_OUT, NOTIFICATION, WITHDRAWN, read_notification, read_withdrawn
from bongsu.live.registry import Registry
from bongsu.live.stream import LONG_AGO, Stream
from bongsu.runtime import telemetry
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import member_topic
from bongsu.store import Share, Store, Transaction
from bongsu.store.inbox import live as statements
from bongsu.store.inbox.live import InboxState, NewNotification
from bongsu.store.messages.content import Contents, MessageCache

# The most that is sent of what came after Last-Event-ID: a page that was away for longer loads the inbox.
MISSED_LIMIT = 1_000
# New streams that read the store at the same time: after a restart all come at once, and others use the store too.
READERS = 4
# Notifications written before looking whether the reader keeps up.
PIECE = 50


@dataclass
class Missed:
    """What is sent first on a new stream."""

    state: InboxState | None
    notifications: Sequence[NewNotification]
    is_cut: bool
    cursor: int


class Hub:
    def __init__(self, store: Store, signals: Signals, registry: Registry, replay: int, message_cache: MessageCache) -> None:
        # A page that is being opened is refused rather than kept waiting: it comes back by itself.
        self._store = store.share(Share.MEMBERS)
        self._signals = signals
        self._registry = registry
        self._replay = replay
        self._message_cache = message_cache
        self._members: dict[str, MemberStreams] = {}
        self._count = 0
        self._attaching = 0
        self._readers = asyncio.Semaphore(READERS)
        self.catch_up = CatchUp(store, self, self._message_cache)

    # --- streams come and go ------------------------------------------------------------------------------------------

    async def attach(self, stream: Stream, after: int | None) -> None:
        """Bring a stream up to date and keep it so. Raises StoreError or RedisUnreachable when that is not possible."""
        self._attaching += 1
        try:
            await self._attach(stream, after)
        finally:
            self._attaching -= 1

    async def _attach(self, stream: Stream, after: int | None) -> None:
        self._register(stream)
        if not await self._signals.wait_subscribed(member_topic(stream.member_id)):
            raise RedisUnreachable
        await self._registry.enter(stream.member_id, stream.connection_id)
        async with self._readers, self._store.read() as tx:
            missed = await self._find_missed(tx, stream.member_id, after)
            contents = await self._message_cache.load(tx, {notification.message_id for notification in missed.notifications})
        await self._send_missed(stream, missed, contents)
        stream.become_live()
        if stream.has_missed:
            self.catch_up.mark([stream.member_id])

    def detach(self, stream: Stream) -> None:
        member = self._members.get(stream.member_id)
        if member is None or stream not in member.streams:
            return
        member.streams = tuple(other for other in member.streams if other is not stream)
        self._count -= 1
        telemetry.LIVE_STREAMS.dec()
        if not member.streams:
            del self._members[stream.member_id]
            member.subscription.__exit__(None, None, None)
        self._registry.leave(stream.member_id, stream.connection_id)

    def _register(self, stream: Stream) -> None:
        member = self._members.get(stream.member_id)
        if member is None:
            on_signal = functools.partial(self._on_signal, stream.member_id)
            subscription = self._signals.listen(member_topic(stream.member_id), on_signal)
            member = self._members[stream.member_id] = MemberStreams(stream.member_id, subscription)
            member.subscription.__enter__()
        member.streams += (stream,)
        self._count += 1
        telemetry.LIVE_STREAMS.inc()

    async def _find_missed(self, tx: Transaction, member_id: str, after: int | None) -> Missed:
        state = await statements.find_inbox_state(tx, member_id)
        if state is None:
            return Missed(None, (), False, 0)
        newest = state.newest
        if after is None:
            if not (state.unread and self._replay):
                return Missed(state, (), False, newest)
            found = await statements.find_missed(tx, member_id, 0, newest, self._replay, only_unread=True)
            return Missed(state, found, False, newest)
        # An id above the newest is another store's: from here on everything is new.
        if after >= newest:
            return Missed(state, (), False, newest)
        found = await statements.find_missed(tx, member_id, after, newest, MISSED_LIMIT + 1, only_unread=False)
        return Missed(state, found[-MISSED_LIMIT:], len(found) > MISSED_LIMIT, newest)

    async def _send_missed(self, stream: Stream, missed: Missed, contents: Contents) -> None:
        if missed.is_cut:
            stream.write(frames.RESET)
        state = missed.state
        if state is None:
            stream.send_badge(0, LONG_AGO)
        else:
            stream.send_badge(state.unread, state.as_of)
        encoded = frames.encode_notifications(missed.notifications, contents, state)
        for first in range(0, len(encoded), PIECE):
            stream.send_missed(encoded[first : first + PIECE])
            await stream.drain()
        if missed.cursor > stream.cursor or not missed.cursor:
            # A page that is cut off before its first notification sends this id when it comes back.
            stream.cursor = missed.cursor
            stream.write(frames.cursor(missed.cursor))

    # --- something is new ---------------------------------------------------------------------------------------------

    def _on_signal(self, member_id: str, data: bytes | None) -> None:
        if data and data[:1] == NOTIFICATION:
            announced = read_notification(data)
            if announced.notification_id in self.catch_up.withdrawals:
                # It was sent before the withdrawal and arrives after it: signals of two processes may overtake each other.
                self.catch_up.mark([member_id])
                return
            for stream in self.streams_of(member_id):
                if not stream.is_live:
                    stream.has_missed = True
                    continue
                if announced.previous > stream.cursor:
                    self.catch_up.mark([member_id])
                    continue
                if not announced.chunk:
                    stream.send_badge(announced.unread, announced.as_of)
                elif stream.send_notification(announced.notification_id, announced.chunk, announced.unread, announced.as_of):
                    telemetry.LIVE_NOTIFICATIONS_SENT.inc()
        elif data and data[:1] == WITHDRAWN:
            self.catch_up.on_withdrawn(member_id, read_withdrawn(data))
        elif data == LOGGED_OUT:
            # Which browser it was cannot be told: its token may have been renewed since. The others come back at once.
            for stream in self.streams_of(member_id):
                if stream.is_by_cookie:
                    stream.end(frames.bye("logout", frames.retry_milliseconds()), "logout")
        else:
            self.catch_up.mark([member_id])

    # --- which streams are open ---------------------------------------------------------------------------------------

    def streams_of(self, member_id: str) -> Sequence[Stream]:
        member = self._members.get(member_id)
        return () if member is None else member.streams

    def member(self, member_id: str) -> MemberStreams | None:
        return self._members.get(member_id)

    def members(self) -> list[MemberStreams]:
        return list(self._members.values())

    def streams(self) -> Iterator[Stream]:
        for member in list(self._members.values()):
            yield from member.streams

    def __len__(self) -> int:
        return self._count

    @property
    def attaching(self) -> int:
        """How many streams are being brought up to date."""
        return self._attaching

    def disconnect(self, data: bytes | None) -> None:
        """Close a connection in favour of a newer one of its member. The signal goes to all processes."""
        if data is None:
            self._registry.enter_again()
            return
        gone = json.loads(data)
        for stream in self.streams_of(gone["memberId"]):
            if stream.connection_id == gone["connectionId"]:
                stream.end(frames.bye("replaced", frames.replaced_milliseconds()), "replaced")
