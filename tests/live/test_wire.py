"""What a stream puts on its connection: every byte once and in order, and nothing once the connection is gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from bongsu.live import connection as connections
from bongsu.live.connection import Connection
from bongsu.live.member_state import LONG_AGO, Stream
from bongsu.live.wire_sse import SSE
from bongsu.model import utc_now


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[Stream, asyncio.Transport, socket.socket]]:
    """A stream, its connection, and the reader's end of that."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    try:
        yield Stream("m-1", Connection("c-1", SSE, transport, cast(Any, None))), transport, theirs
    finally:
        transport.abort()
        theirs.close()


async def receive(reader: socket.socket, size: int) -> bytes:
    received = bytearray()
    async with asyncio.timeout(20):
        while len(received) < size:
            received += await asyncio.get_running_loop().sock_recv(reader, 65536)
    return bytes(received)


async def test_a_reader_that_takes_its_time_gets_every_byte_in_order() -> None:
    async with connected() as (stream, transport, reader):
        said = [b"%d:" % number + b"x" * 1500 + b"\n" for number in range(200)]
        for number, chunk in enumerate(said, 1):
            assert stream.send(number, chunk, None, LONG_AGO)
        assert transport.get_write_buffer_size() > 0
        assert await receive(reader, len(b"".join(said))) == b"".join(said)


async def test_a_slow_reader_gets_notifications_without_badges_and_then_the_newest_badge() -> None:
    async with connected() as (stream, _, reader):
        large = b"x" * connections.SLOW_BYTES * 2
        assert stream.send(1, large, 1, utc_now())
        assert stream.send(2, b"next", 2, utc_now())
        assert not stream.connection.write_best_effort(SSE.ping)
        expected = large + SSE.badge(1) + b"next"
        assert await receive(reader, len(expected)) == expected
        # The reader keeps up again, and does not have the last count: it is sent although it has not changed since.
        stream.send_badge(2, utc_now())
        assert await receive(reader, len(SSE.badge(2))) == SSE.badge(2)


async def test_a_reader_that_has_stalled_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED_BYTES", 100_000)
    async with connected() as (stream, transport, _):
        assert stream.send(1, b"x" * 200_000, None, LONG_AGO)
        assert not stream.send(2, b"more", None, LONG_AGO)
        assert (stream.connection.is_ended, stream.connection.end_reason, transport.is_closing()) == (True, "stalled", True)


async def test_a_reader_that_is_gone_is_found_out_and_nothing_is_raised() -> None:
    async with connected() as (stream, transport, reader):
        reader.close()
        stream.send(1, b"into the void", None, LONG_AGO)
        async with asyncio.timeout(20):
            while not transport.is_closing():
                await asyncio.sleep(0.01)
        assert not stream.send(2, b"to no reader", None, LONG_AGO)
        assert not stream.connection.is_behind


async def test_nothing_is_written_to_the_socket_that_has_the_number_of_one_that_is_lost() -> None:
    async with connected() as (stream, transport, reader):
        number = transport.get_extra_info("socket").fileno()
        assert stream.send(1, b"arrives", None, LONG_AGO)
        assert await receive(reader, 7) == b"arrives"
        transport.abort()
        async with asyncio.timeout(20):
            while transport.get_extra_info("socket") is not None and transport.get_extra_info("socket").fileno() >= 0:
                await asyncio.sleep(0)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert number in (ours.fileno(), theirs.fileno())
            assert not stream.send(2, b"another member's", 1, LONG_AGO)
            assert not stream.connection.write(b"another member's")
            assert not stream.connection.write_best_effort(b"another member's")
            await asyncio.sleep(0)
            for one in (ours, theirs):
                one.setblocking(False)
                with pytest.raises(BlockingIOError):
                    one.recv(100)
