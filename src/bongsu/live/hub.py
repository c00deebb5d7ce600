"""Brings streams up to date when they open, and takes the signals to their members.

A new stream is registered first, then subscribed with the other processes, and only then reads what it missed from the
store; what is new until it has caught up is not sent but read again. After that it is live. Its cursor is the key of the
last event it has sent: the id of a notification, or the change id of what was changed or withdrawn, which come from one
sequence (store/inbox/changes.py). Three things bring new events:

- a signal with a new notification in it, sent if the stream has sent everything before it;
- a signal without, or one that shows a gap: what is above the cursor is read from the store (CatchUp);
- a ping: the same, so a lost signal costs one ping interval at most.

So nothing is sent twice or out of order, in whatever order signals arrive.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bongsu.chat.live_rooms import LiveRooms
from bongsu.errors import RedisUnreachable
from bongsu.live import encode
from bongsu.live.encode import Event
from bongsu.live.member_state import LONG_AGO, MemberStreams, OpenStreams, Stream
from bongsu.live.messages import JOINED_ROOM, LOGGED_OUT, NOTIFICATION, Announced, read_notification
from bongsu.live.registry import Registry
from bongsu.runtime import telemetry
from bongsu.runtime.signals import Signals
from bongsu.runtime.topics import member_topic
from bongsu.store import Share, Store, Transaction
from bongsu.store.inbox import changes as change_statements
from bongsu.store.inbox import live as statements
from bongsu.store.inbox.changes import Change
from bongsu.store.inbox.live import InboxState, NewNotification
from bongsu.store.messages.content import MessageCache
from bongsu.store.messages.digests import NotificationContents, load_contents

# The most that is sent of what came after the reader's cursor: a page that was away for longer loads the inbox.
MISSED_LIMIT = 1_000
# New streams that read the store at the same time: after a restart all come at once, and others use the store too.
READERS = 4
# Bytes written before looking whether the reader keeps up: far fewer than what a reader counts as stalled for, because pings
# and chat are written to it meanwhile.
PIECE_BYTES = 128 * 1024


@dataclass
class Missed:
    """What is sent first on a new stream."""

    state: InboxState | None
    notifications: Sequence[NewNotification] = ()
    changes: Sequence[Change] = ()
    marks: Sequence[Event] = ()

    def encode(self, contents: NotificationContents) -> list[Event]:
        """In the order of their keys."""
        if self.state is None:
            return []
        events = encode.encode_notifications(self.notifications, contents, self.state)
        events += (encode.encode_change(change, contents) for change in self.changes)
        events += self.marks
        return sorted(events)

    def shown(self) -> list[tuple[int, int]]:
        """The ids and messages of the notifications whose content is needed."""
        new = [(one.notification_id, one.message_id) for one in self.notifications]
        return new + [(one.notification_id, one.message_id) for one in self.changes if one.is_in_inbox]


class Hub:
    def __init__(
        self,
        store: Store,
        signals: Signals,
        registry: Registry,
        open_streams: OpenStreams,
        rooms: LiveRooms,
        mark: Callable[[Iterable[str]], None],
        replay: int,
        message_cache: MessageCache,
    ) -> None:
        """`mark` has what members have above their cursors read from the store. `replay`: the unread that a reader without a
        cursor is sent."""
        # A page that is being opened is refused rather than kept waiting: it comes back by itself.
        self._store = store.share(Share.MEMBERS)
        self._signals = signals
        self._registry = registry
        self._open_streams = open_streams
        self._rooms = rooms
        self._mark = mark
        self._replay = replay
        self._message_cache = message_cache
        self._attaching = 0
        self._readers = asyncio.Semaphore(READERS)

    # --- streams come and go ------------------------------------------------------------------------------------------

    async def attach(self, stream: Stream, after: int | None, with_notifications: bool = True) -> None:
        """Bring a stream up to date and keep it so. Raises StoreError or RedisUnreachable when that is not possible."""
        self._attaching += 1
        try:
            await self._attach(stream, after, with_notifications)
        finally:
            self._attaching -= 1

    async def _attach(self, stream: Stream, after: int | None, with_notifications: bool) -> None:
        self._register(stream)
        if not await self._signals.wait_subscribed(member_topic(stream.member_id)):
            raise RedisUnreachable
        await self._registry.enter(stream.member_id, stream.connection.connection_id)
        async with self._readers:
            await self._rooms.attach(stream)
        if ready := stream.connection.wire.ready:
            stream.connection.write(ready)
        if not with_notifications:
            return
        async with self._readers, self._store.read() as tx:
            missed, is_cut = await self._find_missed(tx, stream.member_id, after)
            contents = await load_contents(tx, self._message_cache, missed.shown())
        events = missed.encode(contents)
        await self._send_missed(stream, missed.state, events[-MISSED_LIMIT:], is_cut or len(events) > MISSED_LIMIT)
        stream.is_live = True
        if stream.has_missed:
            self._mark([stream.member_id])

    def detach(self, stream: Stream) -> None:
        self._rooms.detach(stream)
        member = self._open_streams.remove(stream)
        if member is None:
            return
        if not member.streams:
            member.subscription.__exit__(None, None, None)
        self._registry.leave(stream.member_id, stream.connection.connection_id)

    def _register(self, stream: Stream) -> None:
        member = self._open_streams.member(stream.member_id)
        if member is None:
            on_signal = functools.partial(self._on_signal, stream.member_id)
            subscription = self._signals.listen(member_topic(stream.member_id), on_signal)
            member = MemberStreams(stream.member_id, subscription)
            member.subscription.__enter__()
        self._open_streams.add(stream, member)

    async def _find_missed(self, tx: Transaction, member_id: str, after: int | None) -> tuple[Missed, bool]:
        """What came and what changed after the cursor, and whether some of it is left out. All up to the newest of the first
        statement was committed before it, so nothing in between can come later."""
        state = await statements.find_inbox_state(tx, member_id)
        if state is None:
            return Missed(None), False
        newest = state.newest
        if after is None:
            if not (state.unread and self._replay):
                return Missed(state), False
            found = await statements.find_missed(tx, member_id, 0, newest, self._replay, only_unread=True)
            return Missed(state, found), False
        # A cursor above the newest is another store's: from here on everything is new.
        if after >= newest:
            return Missed(state), False
        found = await statements.find_missed(tx, member_id, after, newest, MISSED_LIMIT + 1, only_unread=False)
        changes = await change_statements.find_missed_changes(tx, member_id, after, newest, MISSED_LIMIT + 1)
        marks = encode.encode_marks(state.marks, after, newest)
        is_cut = len(found) > MISSED_LIMIT or len(changes) > MISSED_LIMIT
        return Missed(state, found, changes, marks), is_cut

    async def _send_missed(self, stream: Stream, state: InboxState | None, events: Sequence[Event], is_cut: bool) -> None:
        connection, newest = stream.connection, 0
        if is_cut:
            connection.write(connection.wire.reset)
        if state is None:
            stream.send_badge(0, LONG_AGO)
        else:
            stream.send_badge(state.unread, state.as_of)
            newest = state.newest
        for piece in _pieces(events):
            stream.send_missed(piece)
            await connection.drain()
        if newest > stream.cursor or not newest:
            # A page that is cut off before its first event sends this cursor when it comes back.
            stream.cursor = newest
            connection.write(connection.wire.cursor(newest))

    @property
    def attaching(self) -> int:
        """How many streams are being brought up to date."""
        return self._attaching

    # --- signals ------------------------------------------------------------------------------------------------------

    def _on_signal(self, member_id: str, data: bytes | None) -> None:
        if data and data[:1] == NOTIFICATION:
            self._on_notification(member_id, read_notification(data))
        elif data == LOGGED_OUT:
            # Which browser it was is not known: its token may have been renewed since. The others come back at once.
            for stream in self._open_streams.of(member_id):
                if stream.is_by_cookie:
                    stream.connection.end("logout", encode.retry_milliseconds())
        elif data and data[:1] == JOINED_ROOM:
            self._rooms.on_joined(member_id, data[1:])
        else:
            self._mark([member_id])
            if data is None:
                self._rooms.check([member_id])

    def _on_notification(self, member_id: str, announced: Announced) -> None:
        # Encoded once for each wire.
        wire, frame = None, b""
        for stream in self._open_streams.of(member_id):
            if not stream.is_live:
                stream.has_missed = True
                continue
            if announced.previous > stream.cursor:
                self._mark([member_id])
                continue
            if not announced.data:
                stream.send_badge(announced.unread, announced.as_of)
                continue
            if stream.connection.wire is not wire:
                wire = stream.connection.wire
                frame = wire.event(encode.NOTIFICATION, announced.notification_id, announced.data)
            if stream.send(announced.notification_id, frame, announced.unread, announced.as_of):
                telemetry.LIVE_NOTIFICATIONS_SENT.inc()

    def disconnect(self, data: bytes | None) -> None:
        """Close a connection in favour of a newer one of its member. The signal goes to all processes."""
        if data is None:
            self._registry.enter_again()
            return
        closing = json.loads(data)
        for stream in self._open_streams.of(closing["memberId"]):
            if stream.connection.connection_id == closing["connectionId"]:
                stream.connection.end("replaced", encode.replaced_milliseconds())


def _pieces(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """The events in their order, about PIECE_BYTES at a time."""
    first = size = 0
    for number, event in enumerate(events, 1):
        size += len(event.data)
        if size >= PIECE_BYTES or number == len(events):
            yield events[first:number]
            first, size = number, 0
