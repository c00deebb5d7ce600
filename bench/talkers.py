"""Members in chat rooms that cost next to nothing: plain sockets behind one epoll. They write, read and check the order."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import orjson

from bench.streams import PATIENCE_SECONDS, TOGETHER

# A frame that a reader is sent: a message, by its seq and the number its text begins with, or the acknowledgement of one.
_FRAME = re.compile(rb'"op":"(?:message","roomId":"[^"]+","seq":(\d+),"senderId":"[^"]+","message":"(\d+) |(ack)")')
# What may be the beginning of a frame is kept until the rest comes. No frame is longer.
_TAIL = 1_024
# Messages that a writer has on their way: as many as a page that does not wait, and fewer than the server takes at once.
WINDOW = 16
TEXT = "내일 아침 8시에 남산 입구에서 만나요. 비가 오면 다음 주로 미룹시다!"
READY = b'"op":"ready"'


class OutOfStep(RuntimeError):
    """A reader was not sent what it should have been. The message says what came instead."""


@dataclass(slots=True, eq=False)
class Talker:
    """A member with an open socket, in one room."""

    room_id: str
    socket: socket.socket
    rest: bytes = b""
    # The seq of the last message, and how many acknowledgements came.
    seq: int = 0
    acked: int = 0
    on_their_way: int = 0


@dataclass
class Counts:
    """What readers were sent."""

    messages: int = 0
    # Messages whose seq was not one more than that of the last.
    inversions: int = 0
    # Of each delivery, when the message was due, and when it came.
    deliveries: list[tuple[float, float]] = field(default_factory=list)


class Talkers:
    """So many members, in this process."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._by_number: dict[int, Talker] = {}
        self._buffer = bytearray(262_144)
        self._began: list[float] = []
        self._named = 0
        self.rooms: dict[str, list[Talker]] = {}
        self.counts = Counts()

    def open(self, port: int, room_id: str, requests: Sequence[bytes]) -> None:
        """Members of a room, each of whom is connected when this returns."""
        for first in range(0, len(requests), TOGETHER):
            opened = [self._ask(port, room_id, request) for request in requests[first : first + TOGETHER]]
            for talker in opened:
                self._until_ready(talker)

    def close(self) -> None:
        for talker in self._by_number.values():
            talker.socket.close()
        self._epoll.close()

    # --- writing ----------------------------------------------------------------------------------------------------------

    def pour(self, count: int, writers: int) -> float:
        """So many messages in all, as fast as they are acknowledged; the seconds until every member has those of their room.
        So many members of each room write."""
        chosen = [members[place] for place in range(writers) for members in self.rooms.values()]
        last = self._expect(Counts(), self._spread(count))
        due = Counter(islice(cycle(chosen), count))
        began = time.perf_counter()
        for talker in chosen:
            while due[talker] and talker.on_their_way < WINDOW:
                self._say(talker)
                due[talker] -= 1
        self._until(last, due)
        return time.perf_counter() - began

    def pace(self, rate: int, seconds: int, warm_up: int = 1) -> Counts:
        """So many messages a second by the clock, in all rooms by turns; what came of it, without those of the beginning."""
        count, first = rate * (seconds + warm_up), rate * warm_up
        chosen = cycle([talker for members in zip(*self.rooms.values(), strict=True) for talker in members])
        last = self._expect(Counts(), self._spread(count))
        began = time.perf_counter()
        for number in range(count):
            while (left := began + number / rate - time.perf_counter()) > 0:
                self._read(left, first)
            self._say(next(chosen), began + number / rate)
        self._until(last, Counter(), first)
        return self.counts

    def _spread(self, count: int) -> dict[str, int]:
        """How many messages of so many each room gets."""
        each, more = divmod(count, len(self.rooms))
        return {room_id: each + (place < more) for place, room_id in enumerate(self.rooms)}

    def _expect(self, counts: Counts, messages: dict[str, int]) -> dict[str, int]:
        """The last seq of each room when so many more have come."""
        self.counts, self._began, self._named = counts, [], self._named + 1
        return {room_id: members[0].seq + messages[room_id] for room_id, members in self.rooms.items()}

    def _say(self, talker: Talker, moment: float | None = None) -> None:
        number = len(self._began)
        self._began.append(time.perf_counter() if moment is None else moment)
        talker.on_their_way += 1
        frame = {
            "op": "send", "roomId": talker.room_id, "clientMessageId": f"{self._named}-{number}",
            "message": f"{number} {TEXT}",
        }  # fmt: skip
        talker.socket.sendall(masked(orjson.dumps(frame)))

    # --- reading ----------------------------------------------------------------------------------------------------------

    def until_all_have(self, count: int) -> float:
        """When the last member had so many messages more, by the clock that performance is counted with."""
        self._until(self._expect(Counts(), dict.fromkeys(self.rooms, count)), Counter())
        return time.perf_counter()

    def _until(self, last: dict[str, int], due: Counter[Talker], first: int = 0) -> None:
        deadline = time.perf_counter() + PATIENCE_SECONDS
        missing = {talker for members in self.rooms.values() for talker in members if talker.seq < last[talker.room_id]}
        while missing:
            if time.perf_counter() > deadline:
                raise OutOfStep(f"{len(missing)} of {len(self._by_number)} members did not get all messages")
            for talker in self._read(1.0, first):
                if talker.seq >= last[talker.room_id]:
                    missing.discard(talker)
                while due[talker] and talker.on_their_way < WINDOW:
                    self._say(talker)
                    due[talker] -= 1

    def _read(self, seconds: float, first: int) -> list[Talker]:
        """What has come, or comes within that time; to whom."""
        seen = []
        for number, _ in self._epoll.poll(seconds):
            talker = self._by_number[number]
            size = talker.socket.recv_into(self._buffer)
            if not size:
                raise OutOfStep("the server closed a socket")
            self._take(talker, talker.rest + self._buffer[:size], first)
            seen.append(talker)
        return seen

    def _take(self, talker: Talker, data: bytes, first: int) -> None:
        now, counts, end = time.perf_counter(), self.counts, 0
        for found in _FRAME.finditer(data):
            end = found.end()
            if found[3]:
                talker.acked += 1
                talker.on_their_way -= 1
                continue
            seq, number = int(found[1]), int(found[2])
            counts.messages += 1
            counts.inversions += seq != talker.seq + 1
            talker.seq = seq
            if first and number >= first:
                counts.deliveries.append((self._began[number], now))
        if b'"op":"error"' in data or b'"op":"bye"' in data:
            raise OutOfStep(data.decode(errors="replace")[-500:])
        talker.rest = data[max(end, len(data) - _TAIL) :]

    def _ask(self, port: int, room_id: str, request: bytes) -> Talker:
        one = socket.create_connection(("127.0.0.1", port))
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.sendall(request)
        talker = self._by_number[one.fileno()] = Talker(room_id, one)
        self.rooms.setdefault(room_id, []).append(talker)
        return talker

    def _until_ready(self, talker: Talker) -> None:
        talker.socket.settimeout(PATIENCE_SECONDS)
        data = b""
        while READY not in data:
            received = talker.socket.recv(65_536)
            if not received:
                raise OutOfStep(f"a socket was refused: {data.decode(errors='replace')[:500]}")
            data += received
        talker.socket.setblocking(True)
        self._epoll.register(talker.socket.fileno(), select.EPOLLIN)


def masked(payload: bytes) -> bytes:
    """A text frame of a client, with a mask that changes nothing."""
    size = len(payload)
    head = bytes([0x81, 0x80 | size]) if size < 126 else bytes([0x81, 0xFE]) + size.to_bytes(2, "big")
    return head + bytes(4) + payload


@contextlib.contextmanager
def talkers() -> Iterator[Talkers]:
    some = Talkers()
    try:
        yield some
    finally:
        some.close()
