"""The content of signals about chat rooms: a head for gateways, and the frame that readers are sent, encoded once. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import orjson

# What a signal is about. A message is sent after all those before it; a change, and that a member has left, after all
# changes before it and all messages that were there; the others at once.
MESSAGE = b"m"
CHANGED = b"c"
LEFT = b"l"
JOINED = b"j"
READ = b"r"
TYPING = b"t"
# Something has changed that is not in the signal: read the store.
READ_STORE = b""
# Frames in one signal. A reader gets them in one write, which is to stay far below what makes a reader a stalled one.
SIGNAL_BYTES = 32 * 1024


class RoomSignal(NamedTuple):
    kind: bytes
    # That of the first message; of a change, the last one when it was made.
    seq: int
    # How many changes the room had when it was committed, this one included.
    changes: int
    # The frame, as JSON; of messages that were stored together and follow each other, all of them, a line each.
    data: bytes

    def frames(self) -> list[bytes]:
        return self.data.split(b"\n")

    def frame(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.data)
        return found


def write_signal(kind: bytes, seq: int, changes: int, frame: dict[str, Any]) -> bytes:
    return b"%b%d %d\n%b" % (kind, seq, changes, orjson.dumps(frame))


def write_messages(seq: int, changes: int, frames: Sequence[bytes]) -> Iterator[bytes]:
    """Signals about messages that follow each other, from this seq on: as few as there can be."""
    first = size = 0
    for index, frame in enumerate(frames):
        if index > first and size + len(frame) > SIGNAL_BYTES:
            yield _write_messages(seq + first, changes, frames[first:index])
            first, size = index, 0
        size += len(frame)
    yield _write_messages(seq + first, changes, frames[first:])


def _write_messages(seq: int, changes: int, frames: Sequence[bytes]) -> bytes:
    return b"%b%d %d\n%b" % (MESSAGE, seq, changes, b"\n".join(frames))


def read_signal(data: bytes | None) -> RoomSignal | None:
    """None: signals were missed, or it only shows that something has changed."""
    if not data:
        return None
    head, _, json = data.partition(b"\n")
    seq, changes = head[1:].split()
    return RoomSignal(head[:1], int(seq), int(changes), json)
