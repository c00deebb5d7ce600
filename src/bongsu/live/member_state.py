"""The readers of this process: what each has been sent of its member's inbox, and who is here, by member."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from bongsu.live.connection import SLOW_BYTES, Connection
from bongsu.live.encode import Event
from bongsu.runtime import telemetry

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Stream:
    """One reader: how far it has come, its badge and its lifetime. Small, because a process may have ten thousand."""

    __slots__ = (
        "_as_of",
        "_unread",
        "connection",
        "cursor",
        "has_missed",
        "is_by_cookie",
        "is_live",
        "last_step",
        "member_id",
        "slot",
        "time_limit",
    )

    def __init__(self, member_id: str, connection: Connection, *, is_by_cookie: bool = False) -> None:
        self.member_id = member_id
        self.connection = connection
        # Everything up to this key was sent, and nothing above it.
        self.cursor = 0
        # Live once it has caught up with the store. What is new before that it has missed, and reads from the store.
        self.is_live = False
        self.has_missed = False
        # Opened with the session cookie: it ends when the member logs out.
        self.is_by_cookie = is_by_cookie
        # Its slots in the PingSchedule, and what limits its lifetime.
        self.time_limit = "timeout"
        self.last_step = 0
        self.slot = 0
        # The unread count it sent last, -1 if unknown, and the time of the newest count it was given.
        self._unread = -1
        self._as_of = LONG_AGO

    def send(self, key: int, frame: bytes, unread: int | None, as_of: datetime) -> bool:
        """Send what is at that key, and the unread count if it changed. False if it was sent before, is empty, or failed."""
        if key <= self.cursor or not frame:
            self.cursor = max(self.cursor, key)
            if unread is not None:
                self.send_badge(unread, as_of)
            return False
        self.cursor = key
        connection = self.connection
        backlog = connection.backlog()
        if backlog < 0:
            return False
        # Both in one write: each is a system call, and these are most of what a fan-out costs.
        connection.transport.write(frame if unread is None else frame + self._new_badge(unread, as_of, backlog))
        return True

    def send_missed(self, events: Sequence[Event]) -> None:
        """Send the first events of a stream, in the order of their keys."""
        self.cursor, wire = events[-1].key, self.connection.wire
        self.connection.write(b"".join(wire.event(event.name, event.key, event.data) for event in events if event.name))

    def send_badge(self, unread: int, as_of: datetime) -> None:
        """Send the unread count, unless the reader has it, or a newer one."""
        if badge := self._new_badge(unread, as_of, self.connection.backlog()):
            self.connection.write(badge)

    def _new_badge(self, unread: int, as_of: datetime, backlog: int) -> bytes:
        if as_of < self._as_of:
            return b""
        self._as_of = as_of
        if unread == self._unread:
            return b""
        if not 0 <= backlog <= SLOW_BYTES:
            self._unread = -1
            return b""
        self._unread = unread
        return self.connection.wire.badge(unread)


class MemberStreams:
    """A member's open streams, and the subscription to the member's signals. Dropped with its last stream."""

    __slots__ = ("member_id", "streams", "subscription")

    def __init__(self, member_id: str, subscription: contextlib.AbstractContextManager[None]) -> None:
        self.member_id = member_id
        # A tuple: a list would be one more object to load from memory for each member of a broadcast.
        self.streams: tuple[Stream, ...] = ()
        self.subscription = subscription

    def cursor(self) -> int | None:
        """Up to where every live stream has sent everything; None without a live one. Marks the others as having missed."""
        cursor = None
        for stream in self.streams:
            if not stream.is_live:
                stream.has_missed = True
            elif cursor is None or stream.cursor < cursor:
                cursor = stream.cursor
        return cursor

    def send_badge(self, unread: int, as_of: datetime) -> None:
        """Send the unread count to every live stream that does not have it or a newer one."""
        for stream in self.streams:
            if stream.is_live:
                stream.send_badge(unread, as_of)


class OpenStreams:
    """The streams open in this process, by member."""

    def __init__(self) -> None:
        self._members: dict[str, MemberStreams] = {}
        self._count = 0

    def add(self, stream: Stream, member: MemberStreams) -> None:
        """Add a stream to its member's, who may be new here."""
        self._members[member.member_id] = member
        member.streams += (stream,)
        self._count += 1
        telemetry.LIVE_STREAMS.inc()

    def remove(self, stream: Stream) -> MemberStreams | None:
        """Remove a stream; return whose it was. None if it was not here."""
        member = self._members.get(stream.member_id)
        if member is None or stream not in member.streams:
            return None
        member.streams = tuple(other for other in member.streams if other is not stream)
        self._count -= 1
        telemetry.LIVE_STREAMS.dec()
        if not member.streams:
            del self._members[stream.member_id]
        return member

    def of(self, member_id: str) -> Sequence[Stream]:
        member = self._members.get(member_id)
        return () if member is None else member.streams

    def member(self, member_id: str) -> MemberStreams | None:
        return self._members.get(member_id)

    def members(self) -> list[MemberStreams]:
        return list(self._members.values())

    def __iter__(self) -> Iterator[Stream]:
        for member in list(self._members.values()):
            yield from member.streams

    def __len__(self) -> int:
        return self._count
