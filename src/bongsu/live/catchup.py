"""Reads from the store what has not been sent to the streams open here, for many members at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice, repeat

from bongsu.errors import StoreError
from bongsu.live import frames
from bongsu.live.member_streams import MemberStreams, OpenStreams
from bongsu.live.messages import WITHDRAWN, WithdrawnMessage, read_withdrawn_message
from bongsu.live.stream import LONG_AGO
from bongsu.live.withdrawals import Withdrawals
from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop
from bongsu.store import Store, Transaction
from bongsu.store.core.clock import find_now
from bongsu.store.inbox import live as statements
from bongsu.store.inbox.live import NotificationGroup
from bongsu.store.messages.content import Contents, MessageCache

# Members read in one statement: some milliseconds of work for the store and for this event loop. The first batch is
# smaller, because nothing is sent while it is read.
MEMBERS = 500
FIRST_MEMBERS = 50
# Batches that are read while one is sent: the store is late with one now and then.
AHEAD = 2
# The most notifications read for one batch of members.
NOTIFICATIONS = 2_000
# Notifications sent before other tasks run, the reading of the next batch among them.
PIECE = 100


class CatchUp(Loop):
    """A mark means that a member may have something new. Marks are a set: a member marked often is read once.

    When the store fails, all members are marked: what was committed meanwhile is sent when it is back, signal or not.
    """

    def __init__(self, store: Store, open_streams: OpenStreams, message_cache: MessageCache) -> None:
        super().__init__("live-catch-up", poll_seconds=60)
        self._store = store
        self._open_streams = open_streams
        self._message_cache = message_cache
        # At most every member with a stream here, in the order they were marked.
        self._marked: dict[str, None] = {}
        # After a broadcast: the members still to be read, and whether another broadcast came meanwhile. Its turn is after
        # them, so that signals that keep coming cannot keep the last members waiting.
        self._everyone: deque[MemberStreams] = deque()
        self._is_for_everyone = False
        self.withdrawals = Withdrawals(open_streams, self.mark)

    def mark(self, member_ids: Iterable[str]) -> None:
        """These members may have a new notification or another unread count."""
        self._marked.update(dict.fromkeys(member_ids))
        self.wake()

    def on_broadcast(self, data: bytes | None) -> None:
        """A signal names messages with many recipients; None: signals may have been missed.

        All members with open streams are read: finding out first which are recipients would take as long.
        """
        if data is None:
            self._mark_everyone()
            return
        self._is_for_everyone = True
        self.wake()

    def on_withdrawn(self, member_id: str, notification_id: int) -> None:
        """A signal to a member names a notification that was withdrawn."""
        self.withdrawals.add(member_id, notification_id)
        self.wake()

    def on_message_withdrawn(self, data: bytes | None) -> None:
        """A signal names a message that was withdrawn from many. After None, or of another kind, there is none to read."""
        if data and data[:1] == WITHDRAWN:
            self.add_withdrawn(read_withdrawn_message(data))

    def add_withdrawn(self, message: WithdrawnMessage) -> None:
        self.withdrawals.add_message(message)
        self.wake()

    async def tick(self) -> int:
        if self._is_for_everyone and not self._everyone:
            self._everyone, self._is_for_everyone = deque(self._open_streams.members()), False
        try:
            done = await self.withdrawals.send(self._store)
            done += await self._catch_up(self._take_marked, len(self._marked), with_counts=True)
            return done + await self._catch_up(self._take_everyone, len(self._everyone), with_counts=False)
        except StoreError:
            # A worker may have committed without getting the answer, so without a signal: read all once the store is back.
            self._mark_everyone()
            raise

    def _mark_everyone(self) -> None:
        self.mark(member.member_id for member in self._open_streams.members())

    def _take_marked(self, count: int) -> list[MemberStreams]:
        taken = list(islice(self._marked, count))
        for member_id in taken:
            del self._marked[member_id]
        return [member for member_id in taken if (member := self._open_streams.member(member_id)) is not None]

    def _take_everyone(self, count: int) -> list[MemberStreams]:
        return [self._everyone.popleft() for _ in range(count)]

    async def _catch_up(self, take: Callable[[int], list[MemberStreams]], count: int, *, with_counts: bool) -> int:
        """Read that many members in batches. While one batch is sent, the next is being read."""
        if not count:
            return 0
        sizes, ahead = _batch_sizes(count), deque[_Batch]()
        async with self._store.read() as tx:
            reader = _Reader(tx, self._message_cache, with_counts)
            try:
                ahead.extend(reader.begin(take(size)) for size in islice(sizes, AHEAD))
                while ahead:
                    found = await ahead[0].reading
                    ahead.popleft()
                    ahead.extend(reader.begin(take(size)) for size in islice(sizes, 1))
                    await self._send(found)
            finally:
                for batch in ahead:
                    batch.reading.cancel()
                    self.mark(member.member_id for member in batch.members)
                if ahead:
                    await asyncio.wait({batch.reading for batch in ahead})
        return count

    async def _send(self, found: _Found) -> None:
        notifications, sent = found.in_order(), 0
        for first in range(0, len(notifications), PIECE):
            sent += self._send_piece(notifications[first : first + PIECE], found)
            await asyncio.sleep(0)
        for number, (member, unread) in enumerate(found.counts, 1):
            member.send_badge(unread, found.as_of)
            if number % PIECE == 0:
                await asyncio.sleep(0)
        telemetry.LIVE_NOTIFICATIONS_SENT.inc(sent)
        if found.is_full:
            # Some members may have more, and others were not reached.
            self.mark(member.member_id for member in found.members)

    def _send_piece(self, notifications: Sequence[MemberFrame], found: _Found) -> int:
        """Send the next notifications; return to how many streams. Cursors also move past those a member does not want."""
        members, sent_up_to, as_of = found.members, found.sent_up_to, found.as_of
        sent = 0
        for notification_id, position, unread, chunk in notifications:
            after = sent_up_to[position]
            # A stream that becomes live before the member's next notification has missed this one, and is not sent the next.
            sent_up_to[position] = notification_id
            for stream in members[position].streams:
                if not stream.is_live:
                    stream.has_missed = True
                elif stream.cursor < after:
                    # It became live after the cursors were taken, and has more to catch up with than the others.
                    self.mark([stream.member_id])
                elif stream.send_notification(notification_id, chunk, unread, as_of):
                    sent += 1
        return sent


# A notification's id, its member's position, that member's unread count, and its frame: empty where it is not to be sent.
MemberFrame = tuple[int, int, int | None, bytes]


@dataclass(frozen=True)
class _Found:
    """What the store has for a batch of members."""

    members: list[MemberStreams]
    # Of each member, the id up to which all is sent.
    sent_up_to: list[int]
    groups: Sequence[NotificationGroup]
    # The unread counts of members without new notifications.
    counts: Sequence[tuple[MemberStreams, int]]
    messages: Contents
    as_of: datetime
    # The limit was reached: there may be more.
    is_full: bool

    def in_order(self) -> list[MemberFrame]:
        return sorted(
            chain.from_iterable(
                zip(group.notification_ids, group.positions, group.unread, self._frames(group), strict=False)
                for group in self.groups
            )
        )

    def _frames(self, group: NotificationGroup) -> Iterable[bytes]:
        content = self.messages.get(group.message_id)
        # Members who want no notifications get the critical ones only; members without a row get all.
        if content is None or not (group.is_enabled or content.is_critical or group.is_enabled is None):
            return repeat(b"")
        rest = frames.after_id(group.created_at, content)
        return (frames.notification(notification_id, rest) for notification_id in group.notification_ids)


@dataclass(frozen=True)
class _Batch:
    """Members that are being read."""

    members: list[MemberStreams]
    reading: asyncio.Task[_Found]


class _Reader:
    """Reads batches over one connection, one after the other."""

    def __init__(self, tx: Transaction, message_cache: MessageCache, with_counts: bool) -> None:
        self._tx = tx
        self._message_cache = message_cache
        # Whether the unread counts of members without new notifications are read too.
        self._with_counts = with_counts
        self._turn = asyncio.Lock()

    def begin(self, members: list[MemberStreams]) -> _Batch:
        live: list[MemberStreams] = []
        cursors: dict[str, int] = {}
        for member in members:
            if (cursor := member.cursor()) is not None:
                live.append(member)
                cursors[member.member_id] = cursor
        return _Batch(members, asyncio.create_task(self._read(live, cursors)))

    async def _read(self, members: list[MemberStreams], cursors: dict[str, int]) -> _Found:
        async with self._turn:
            groups = await statements.find_new(self._tx, cursors, NOTIFICATIONS) if cursors else []
            messages = await self._message_cache.load(self._tx, {group.message_id for group in groups})
            as_of, counts = groups[0].as_of if groups else LONG_AGO, []
            if self._with_counts:
                # The time is read before the counts, so that none of them is taken for newer than it is.
                as_of = as_of if groups else await find_now(self._tx)
                counts = await self._count_others(members, groups)
        is_full = sum(len(group.positions) for group in groups) == NOTIFICATIONS
        return _Found(members, list(cursors.values()), groups, counts, messages, as_of, is_full)

    async def _count_others(
        self, members: list[MemberStreams], groups: Sequence[NotificationGroup]
    ) -> list[tuple[MemberStreams, int]]:
        """The unread counts of members without new notifications."""
        with_new = {position for group in groups for position in group.positions}
        others = [member for position, member in enumerate(members) if position not in with_new]
        unread = await statements.find_unread_counts(self._tx, [member.member_id for member in others]) if others else {}
        return [(member, unread[member.member_id]) for member in others if member.member_id in unread]


def _batch_sizes(count: int) -> Iterator[int]:
    size = min(FIRST_MEMBERS, MEMBERS)
    while count > 0:
        yield min(size, count)
        count -= size
        size = min(2 * size, MEMBERS)
