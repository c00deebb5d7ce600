"""Readers of streams that cost next to nothing: plain sockets behind one epoll, looking for a mark in what arrives."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import time
from collections.abc import Iterator, Sequence

# Opened at a time: no more than wait at a server's door without being turned away.
TOGETHER = 100
# A server that has not told everybody by then is not slow but broken.
PATIENCE_SECONDS = 120.0
# Descriptors a process needs besides those of streams.
SPARE = 500


class StreamsSilent(RuntimeError):
    """Streams did not get what was sent. The server's log says why; the message says how many."""


class Readers:
    """So many streams of one server, in this process."""

    def __init__(self, port: int) -> None:
        self._address = ("127.0.0.1", port)
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._received: dict[int, bytearray] = {}
        self._buffer = bytearray(65536)

    def __len__(self) -> int:
        return len(self._sockets)

    def open(self, requests: Sequence[bytes], mark: bytes) -> None:
        """One stream for each request, each of which has received the mark when this returns."""
        for first in range(0, len(requests), TOGETHER):
            opened = [self._ask(request) for request in requests[first : first + TOGETHER]]
            self._until_seen(mark, set(opened))

    def until_all_have(self, mark: bytes) -> float:
        """When the last stream received the mark, by the clock that performance is counted with."""
        return self._until_seen(mark, set(self._sockets))

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()
        self._sockets.clear()
        self._epoll.close()

    def _ask(self, request: bytes) -> int:
        one = socket.create_connection(self._address)
        one.sendall(request)
        one.setblocking(False)
        self._epoll.register(one, select.EPOLLIN)
        self._sockets[one.fileno()] = one
        return one.fileno()

    def _until_seen(self, mark: bytes, missing: set[int]) -> float:
        deadline = time.perf_counter() + PATIENCE_SECONDS
        while missing:
            if time.perf_counter() > deadline:
                raise StreamsSilent(f"{len(missing)} of {len(self)} streams did not receive {mark!r}")
            for number, _ in self._epoll.poll(1.0):
                size = self._sockets[number].recv_into(self._buffer)
                if not size:
                    raise StreamsSilent(f"a stream was closed by the server while {len(missing)} waited for {mark!r}")
                if number not in self._received and self._buffer.find(mark, 0, size) >= 0:
                    missing.discard(number)
                elif number in missing:
                    self._keep(number, mark, missing, self._buffer[:size])
        return time.perf_counter()

    def _keep(self, number: int, mark: bytes, missing: set[int], data: bytearray) -> None:
        """A mark may arrive in two pieces."""
        data = self._received.pop(number, bytearray()) + data
        if mark in data:
            missing.discard(number)
        else:
            self._received[number] = data


@contextlib.contextmanager
def readers(port: int) -> Iterator[Readers]:
    some = Readers(port)
    try:
        yield some
    finally:
        some.close()


def room_for(count: int) -> int:
    """So many descriptors, or as many as the system lets us have; servers we start have the same right."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + SPARE if most == resource.RLIM_INFINITY else min(count + SPARE, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted - SPARE
