"""A member who is here: the streams, and what keeps the signals coming."""

from __future__ import annotations

import contextlib
from datetime import datetime

from bongsu.live.stream import Stream


class Room:
    """Without streams it is left: whoever comes then has another."""

    __slots__ = ("listening", "member_id", "streams")

    def __init__(self, member_id: str, listening: contextlib.AbstractContextManager[None]) -> None:
        self.member_id = member_id
        # Not a list, which would be one more thing to fetch from memory for everybody who is told.
        self.streams: tuple[Stream, ...] = ()
        self.listening = listening

    def cursor(self) -> int | None:
        """What every live stream has told, if there is one. The others are told that they miss something."""
        cursor = None
        for stream in self.streams:
            if not stream.is_live:
                stream.has_missed = True
            elif cursor is None or stream.cursor < cursor:
                cursor = stream.cursor
        return cursor

    def count(self, unread: int, as_of: datetime) -> None:
        """The store has nothing new, and so many that are not read."""
        for stream in self.streams:
            if stream.is_live:
                stream.badge(unread, as_of)
