"""What a stream puts on the wire, past the loop where it can: every byte once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from bongsu.live.stream import LONG_AGO, Carrier, Stream


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[Stream, asyncio.Transport, socket.socket]]:
    """A stream, its connection, and the end that its reader has."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(Carrier, sock=ours)
    try:
        yield Stream("m-1", "c-1", transport, cast(Any, None)), transport, theirs
    finally:
        transport.abort()
        theirs.close()


@pytest.mark.parametrize("is_prepared", [False, True])
async def test_a_reader_that_takes_its_time_gets_every_byte_in_order(
    monkeypatch: pytest.MonkeyPatch, is_prepared: bool
) -> None:
    """Told one after the other, or all made ready while nothing waited yet and then written."""
    written: list[int] = []

    def write(number: int, chunk: bytes) -> int:
        written.append(there(number, chunk))
        return written[-1]

    there = os.write
    monkeypatch.setattr("bongsu.live.stream.os.write", write)
    async with connected() as (stream, transport, reader):
        said = [b"%d:" % number + b"x" * 1500 + b"\n" for number in range(200)]
        if is_prepared:
            for chunk in [stream.prepare(number, chunk, None, LONG_AGO) for number, chunk in enumerate(said, 1)]:
                stream.put(chunk)
        else:
            for number, chunk in enumerate(said, 1):
                assert stream.tell(number, chunk, None, LONG_AGO)
        # The first went straight out, one was cut in two or refused, and the others wait behind it.
        assert 0 < len(written) < len(said)
        assert transport.get_write_buffer_size() > 0
        received = bytearray()
        async with asyncio.timeout(20):
            while len(received) < len(b"".join(said)):
                received += await asyncio.get_running_loop().sock_recv(reader, 65536)
        assert bytes(received) == b"".join(said)


async def test_a_reader_that_is_gone_is_found_out_and_nothing_is_raised() -> None:
    async with connected() as (stream, transport, reader):
        reader.close()
        stream.tell(1, b"into the void", None, LONG_AGO)
        async with asyncio.timeout(20):
            while not transport.is_closing():
                await asyncio.sleep(0.01)
        assert not stream.tell(2, b"to nobody", None, LONG_AGO)


async def test_nothing_is_written_to_the_socket_that_has_the_number_of_one_that_is_lost() -> None:
    async with connected() as (stream, transport, reader):
        number = transport.get_extra_info("socket").fileno()
        assert stream.tell(1, b"heard", None, LONG_AGO)
        assert reader.recv(100) == b"heard"
        transport.abort()
        async with asyncio.timeout(20):
            while transport.get_extra_info("socket") is not None and transport.get_extra_info("socket").fileno() >= 0:
                await asyncio.sleep(0)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert number in (ours.fileno(), theirs.fileno())
            assert not stream.tell(2, b"somebody else's", 1, LONG_AGO)
            stream.write(b"somebody else's")
            assert not stream.hint(b"somebody else's")
            for one in (ours, theirs):
                one.setblocking(False)
                with pytest.raises(BlockingIOError):
                    one.recv(100)


async def test_what_is_enciphered_on_the_way_is_not_written_past_that() -> None:
    class Enciphered:
        """A connection whose bytes are not those that are written to it."""

        def __init__(self, reader: socket.socket) -> None:
            self._about = {"socket": reader, "sslcontext": ssl.create_default_context()}
            self.written: list[bytes] = []

        def get_extra_info(self, name: str) -> Any:
            return self._about.get(name)

        def get_protocol(self) -> Carrier:
            return Carrier()

        def is_closing(self) -> bool:
            return False

        def get_write_buffer_size(self) -> int:
            return 0

        def write(self, chunk: bytes) -> None:
            self.written.append(chunk)

    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = Enciphered(ours)
        Stream("m-1", "c-1", cast(Any, transport), cast(Any, None)).tell(1, b"secret", None, LONG_AGO)
        assert transport.written == [b"secret"]
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(100)
