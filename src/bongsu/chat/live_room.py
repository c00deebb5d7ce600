"""A room with readers in this process: what they were sent so far, and the writing of frames to them.

Nothing here waits but for a reader that is sent what it missed. Which frame is next is decided in live_rooms.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence

from bongsu.chat.signals import RoomSignal
from bongsu.live.member_state import Stream
from bongsu.store.chat.live import RoomState

# Messages of one room that are read or sent at a time.
PAGE = 200
# Bytes written at once to a reader that is sent what it missed: far fewer than what a reader counts as stalled for, because
# others write to it too.
PIECE_BYTES = 128 * 1024
# Changes that wait for a reader that is sent what it missed. One for which more would wait is closed, and resumes.
LATER_LIMIT = 1_000
# A reader that is sent what it missed and takes nothing for this long has stalled.
STALLED_SECONDS = 30.0


class LiveRoom:
    """A room with readers in this process."""

    __slots__ = (
        "ahead",
        "changes",
        "is_behind",
        "is_reading",
        "is_subscribed",
        "is_suspect",
        "paused",
        "readers",
        "room_id",
        "sent",
        "seq",
        "subscription",
        "waiting_since",
    )

    def __init__(self, state: RoomState) -> None:
        self.room_id = state.room_id
        # Everything up to this seq was sent to the readers, and so many changes were.
        self.seq = state.last_seq
        self.changes = state.changes
        self.readers: dict[Stream, None] = {}
        # Readers that are being sent what they missed, and the changes that they are sent after it. What is new they read
        # from the store. As long as that takes: a reader that takes nothing is closed.
        self.paused: dict[Stream, list[bytes]] = {}
        # Readers that have been sent more than the others: up to this seq.
        self.sent: dict[Stream, int] = {}
        # Messages that came too early, by seq.
        self.ahead: dict[int, RoomSignal] = {}
        # A change came too early. A reader may have left the room.
        self.is_behind = False
        self.is_suspect = False
        # Changes are being read from the store. A message that a signal brings meanwhile may have the text from before one.
        self.is_reading = False
        # The seq at which it began to wait for signals that are late.
        self.waiting_since: int | None = None
        self.is_subscribed = False
        self.subscription = contextlib.ExitStack()

    def may_send(self, changes: int) -> bool:
        """Whether a message that was committed after so many changes may be sent, if it is next."""
        return changes <= self.changes and not self.is_reading

    def live(self, seq: int) -> Iterator[Stream]:
        """The readers that are to be sent this message."""
        if not self.paused and not self.sent:
            return iter(self.readers)
        return (reader for reader in self.readers if reader not in self.paused and self.sent.get(reader, 0) < seq)

    def send_messages(self, frames: Sequence[bytes]) -> None:
        """The next messages, in one write to each reader if all are to have all of them."""
        if self.paused or self.sent:
            for data in frames:
                self.send_message(self.seq + 1, data)
        else:
            send_to(self.readers, *frames, is_message=True)
            self.seq += len(frames)

    def send_message(self, seq: int, data: bytes) -> None:
        send_to(self.live(seq), data, is_message=True)
        self.seq = seq
        if self.sent:
            self.sent = {stream: sent for stream, sent in self.sent.items() if sent > seq}

    def send_change(self, data: bytes) -> None:
        send_to((stream for stream in self.readers if stream not in self.paused), data)
        for stream, later in self.paused.items():
            later.append(stream.connection.wire.chat(False, data))
            if len(later) > LATER_LIMIT:
                stream.connection.cut()

    def send_ahead(self) -> None:
        """Send the messages that waited for this."""
        while (signal := self.ahead.get(self.seq + 1)) is not None and self.may_send(signal.changes):
            self.send_message(signal.seq, signal.data)
        if self.ahead:
            self.ahead = {seq: signal for seq, signal in self.ahead.items() if seq > self.seq}


async def send_missed(stream: Stream, room: LiveRoom, frames: Iterable[bytes], *, is_message: bool = False) -> None:
    """In pieces, each when the reader has taken the one before it. A reader who has left is sent no more."""
    wire = stream.connection.wire
    encoded = [frame for data in frames if (frame := wire.chat(is_message, data))]
    while encoded and stream in room.readers:
        count, size = 0, 0
        while count < len(encoded) and size < PIECE_BYTES:
            size += len(encoded[count])
            count += 1
        await drain(stream)
        stream.connection.write(b"".join(encoded[:count]))
        del encoded[:count]


async def drain(stream: Stream) -> None:
    """Wait for a reader that is sent much; one that takes nothing for long is closed, and resumes from where it was."""
    try:
        async with asyncio.timeout(STALLED_SECONDS):
            await stream.connection.drain()
    except TimeoutError:
        stream.connection.cut()


def send_to(streams: Iterable[Stream], *frames: bytes, is_message: bool = False, is_best_effort: bool = False) -> None:
    """Encoded once for each wire, one write for each reader. What is best effort is not sent to slow readers."""
    wire, frame = None, b""
    encoded: dict[object, bytes] = {}
    for stream in streams:
        connection = stream.connection
        if connection.wire is not wire:
            wire = connection.wire
            if wire not in encoded:
                encoded[wire] = b"".join(wire.chat(is_message, data) for data in frames)
            frame = encoded[wire]
        if not frame:
            continue
        if is_best_effort:
            connection.write_best_effort(frame)
        else:
            connection.write(frame)


def write(stream: Stream, frame: bytes) -> None:
    if frame:
        stream.connection.write(frame)
