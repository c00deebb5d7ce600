"""Reads from the store what has not been sent to the streams open here, for many members at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, repeat

from bongsu.errors import StoreError
from bongsu.live import encode
from bongsu.live.member_state import LONG_AGO, MemberStreams, OpenStreams
from bongsu.live.messages import read_changed_range
from bongsu.runtime import telemetry
from bongsu.runtime.loop import Loop
from bongsu.store import Store, Transaction
from bongsu.store.core.clock import find_now
from bongsu.store.inbox import changes as change_statements
from bongsu.store.inbox import live as statements
from bongsu.store.inbox.changes import MemberChanges
from bongsu.store.inbox.live import MemberCount, NotificationGroup
from bongsu.store.messages.content import MessageCache, MessageContent
from bongsu.store.messages.digests import NotificationContents, find_digest_contents, find_gathered

# Members read in one statement: some milliseconds of work for the store and for this event loop. The first batch is
# smaller, because nothing is sent while it is read.
MEMBERS = 500
FIRST_MEMBERS = 50
# Batches that are read while one is sent: the store is late with one now and then.
AHEAD = 2
# The most notifications, and the most changes, read for one batch of members.
NOTIFICATIONS = 2_000
# Events sent before other tasks run, the reading of the next batch among them.
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

    def mark(self, member_ids: Iterable[str]) -> None:
        """These members may have something new or changed, or another unread count."""
        self._marked.update(dict.fromkeys(member_ids))
        self.wake()

    def on_broadcast(self, data: bytes | None) -> None:
        """A signal names messages with many recipients, or members with changes; None: signals may have been missed.

        Of new messages, all members with open streams are read: finding out first who are recipients would take as long.
        """
        if data is None:
            self._mark_everyone()
        elif changed := read_changed_range(data):
            first, last = changed
            self.mark(one.member_id for one in self._open_streams.members() if first <= one.member_id <= last)
        else:
            self._is_for_everyone = True
            self.wake()

    async def tick(self) -> int:
        if self._is_for_everyone and not self._everyone:
            self._everyone, self._is_for_everyone = deque(self._open_streams.members()), False
        try:
            done = await self._catch_up(self._take_marked, len(self._marked), with_counts=True)
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
        events, sent = found.in_order(), 0
        for first in range(0, len(events), PIECE):
            sent += self._send_piece(events[first : first + PIECE], found)
            await asyncio.sleep(0)
        for number, (position, count) in enumerate(found.counts_of_others(), 1):
            found.members[position].send_badge(count.unread, found.counted_at)
            if number % PIECE == 0:
                await asyncio.sleep(0)
        telemetry.LIVE_NOTIFICATIONS_SENT.inc(sent)
        if found.is_full:
            # Some members may have more, and others were not reached.
            self.mark(member.member_id for member in found.members)

    def _send_piece(self, events: Sequence[MemberEvent], found: _Found) -> int:
        """Send the next events; return to how many streams. Cursors also move past those a member does not want."""
        members, sent_up_to, as_of = found.members, found.sent_up_to, found.as_of
        sent = 0
        # Encoded before the first is written, each for the member's first stream: most members have one.
        for (key, position, unread, name, data), frame in zip(events, _frames(events, members), strict=True):
            after = sent_up_to[position]
            # A stream that becomes live before the member's next event has missed this one, and is not sent the next.
            sent_up_to[position] = key
            streams = members[position].streams
            for stream in streams:
                if not stream.is_live:
                    stream.has_missed = True
                elif stream.cursor < after:
                    # It became live after the cursors were taken, and has more to catch up with than the others.
                    self.mark([stream.member_id])
                else:
                    own = frame if stream is streams[0] or not name else stream.connection.wire.event(name, key, data)
                    if stream.send(key, own, unread, as_of):
                        sent += 1
        return sent


# Its key, its member's position, that member's unread count if known, its name (empty: not to be sent), and its JSON.
MemberEvent = tuple[int, int, int | None, bytes, bytes]


def _frames(events: Sequence[MemberEvent], members: Sequence[MemberStreams]) -> list[bytes]:
    return [
        streams[0].connection.wire.event(name, key, data) if name and (streams := members[position].streams) else b""
        for key, position, _, name, data in events
    ]


@dataclass(frozen=True)
class _Found:
    """What the store has for a batch of members, who are named by their positions in it."""

    members: list[MemberStreams]
    # Of each member, the key up to which all is sent.
    sent_up_to: list[int]
    groups: Sequence[NotificationGroup]
    changes: MemberChanges
    # Of each member with changes, the last change id that was asked for.
    changed_up_to: Mapping[int, int]
    # The unread counts of all members, if they were asked for, and a time not after they were read.
    counts: Mapping[int, MemberCount]
    counted_at: datetime
    contents: NotificationContents
    # A limit was reached: there may be more above this key.
    cut_at: int | None

    @property
    def is_full(self) -> bool:
        return self.cut_at is not None

    @property
    def as_of(self) -> datetime:
        """A time not after the unread counts of the groups were read."""
        return self.groups[0].as_of if self.groups else LONG_AGO

    def counts_of_others(self) -> list[tuple[int, MemberCount]]:
        """The unread counts of members without new notifications."""
        with_new = {position for group in self.groups for position in group.positions}
        return [(position, count) for position, count in self.counts.items() if position not in with_new]

    def in_order(self) -> list[MemberEvent]:
        events = [event for group in self.groups for event in self._notifications(group)]
        if self.changed_up_to:
            events.extend(self._changes())
            if (cut_at := self.cut_at) is not None:
                # What lies between two keys was read of every member, or is left out of every member.
                events = [event for event in events if event[0] <= cut_at]
        return sorted(events)

    def _notifications(self, group: NotificationGroup) -> Iterable[MemberEvent]:
        ids, content = group.notification_ids, self.contents.messages.get(group.message_id)
        # Members who want no notifications get the critical ones only; members without a row get all.
        if content is None or not (group.is_enabled or content.is_critical or group.is_enabled is None):
            return zip(ids, group.positions, group.unread, repeat(b""), repeat(b""), strict=False)
        rest = encode.after_id(group.created_at, content)
        encoded = (encode.with_id(notification_id, rest) for notification_id in ids)
        if content.is_digest:
            encoded = (encode.with_id(one, self._digest(one, group, content)) for one in ids)
        return zip(ids, group.positions, group.unread, repeat(encode.NOTIFICATION), encoded, strict=False)

    def _digest(self, notification_id: int, group: NotificationGroup, content: MessageContent) -> bytes:
        """Digests differ from member to member."""
        return encode.after_id(group.created_at, self.contents.digests.get(notification_id, content))

    def _changes(self) -> Iterator[MemberEvent]:
        """Without unread counts: those of the notifications may be newer, and the others are sent after all events."""
        for position, change in self.changes.changes:
            if position in self.changes.members:
                key, name, data = encode.encode_change(change, self.contents)
                yield key, position, None, name, data
        for position, marks in self.changes.members.items():
            for key, name, data in encode.encode_marks(marks, self.sent_up_to[position], self.changed_up_to[position]):
                yield key, position, None, name, data


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
        # Whether members without new notifications are read too: their unread counts, and what has changed for them.
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
        """Up to where changes are read is known not later than the notifications: one that commits between two statements
        is above that, so no change can take a cursor past it."""
        tx = self._tx
        async with self._turn:
            counts: dict[int, MemberCount] = {}
            counted_at = LONG_AGO
            if self._with_counts and cursors:
                # The time is read before the counts, so that none of them is taken for newer than it is.
                counted_at = await find_now(tx)
                found = await statements.find_counts(tx, list(cursors))
                counts = {number: found[one] for number, one in enumerate(cursors) if one in found}
            groups = await statements.find_new(tx, cursors, NOTIFICATIONS) if cursors else []
            cut_at = _last_key(groups)
            changed_up_to = _changed_up_to(groups, counts, list(cursors.values()), cut_at)
            changes = MemberChanges([], {})
            if changed_up_to:
                after = list(cursors.values())
                spans = [(members[one].member_id, after[one], last, one) for one, last in changed_up_to.items()]
                changes = await change_statements.find_changes(tx, spans, NOTIFICATIONS)
                if len(changes.changes) == NOTIFICATIONS:
                    cut_at = changes.changes[-1][1].change_id
            contents = await self._load_contents(groups, changes)
        return _Found(members, list(cursors.values()), groups, changes, changed_up_to, counts, counted_at, contents, cut_at)

    async def _load_contents(self, groups: Sequence[NotificationGroup], changes: MemberChanges) -> NotificationContents:
        shown = [(one.notification_id, one.message_id) for _, one in changes.changes if one.is_in_inbox]
        named = {group.message_id for group in groups} | {message_id for _, message_id in shown}
        messages = await self._message_cache.load(self._tx, named)
        # Of thousands of notifications of a message that is not a digest's, none is looked at.
        for group in groups:
            if group.message_id in messages and messages[group.message_id].is_digest:
                shown += [(one, group.message_id) for one in group.notification_ids]
        gathered = find_gathered(shown, messages)
        return NotificationContents(messages, await find_digest_contents(self._tx, gathered) if gathered else {})


def _last_key(groups: Sequence[NotificationGroup]) -> int | None:
    """If the limit was reached, the last notification that was read."""
    if sum(len(group.positions) for group in groups) < NOTIFICATIONS:
        return None
    return max(max(group.notification_ids) for group in groups)


def _changed_up_to(
    groups: Sequence[NotificationGroup], counts: Mapping[int, MemberCount], cursors: Sequence[int], cut_at: int | None
) -> dict[int, int]:
    """Of each member with changes above the cursor, the newest of them; not beyond the last notification that was read."""
    changed = {position: count.changed for position, count in counts.items() if count.changed > cursors[position]}
    for group in groups:
        changed.update(group.changed)
    if cut_at is None:
        return changed
    return {position: min(last, cut_at) for position, last in changed.items() if cursors[position] < cut_at}


def _batch_sizes(count: int) -> Iterator[int]:
    size = min(FIRST_MEMBERS, MEMBERS)
    while count > 0:
        yield min(size, count)
        count -= size
        size = min(2 * size, MEMBERS)
