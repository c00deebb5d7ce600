"""A member's open streams in this process, and the subscription to the member's signals."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Protocol

from bongsu.live.stream import Stream


class MemberStreams:
    """Dropped with its last stream; the member's next stream gets a new one."""

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

    def send_withdrawn(self, chunk: bytes) -> None:
        for stream in self.streams:
            stream.send_withdrawn(chunk)


class OpenStreams(Protocol):
    """The members with streams open here."""

    def __len__(self) -> int:
        """How many streams."""

    def members(self) -> list[MemberStreams]: ...

    def member(self, member_id: str) -> MemberStreams | None: ...
