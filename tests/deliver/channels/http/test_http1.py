"""One connection without a network: however an answer is cut, it is the same; cut short, it is none."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.deliver.channels.http.http1 import Answer, Connection, NotSent, ResponseLost


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


class Kept:
    def __init__(self) -> None:
        self.kept = 0

    def keep(self, connection: Connection) -> None:
        self.kept += 1

    def forget(self, connection: Connection) -> None:
        pass


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, int, bytes]:
    """The bytes of an answer that tells its own end, its status and its body."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" * draw(st.integers(0, 2))
    status = draw(st.sampled_from([200, 201, 400, 404, 429, 500, 503]))
    body = draw(st.binary(max_size=60))
    head = hints + b"HTTP/1.1 %d Said\r\nContent-Type: text/plain\r\nX-Empty:\r\n" % status
    if draw(st.booleans()):
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body, status, body
    pieces = cut(body, draw(st.sets(st.integers(1, 59), max_size=4)))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", status, body


def cut(text: bytes, places: set[int]) -> list[bytes]:
    edges = [0, *sorted(place for place in places if place < len(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges) if start < end]


def heard(*pieces: bytes, ends: bool = False) -> tuple[Answer | ResponseLost | None, Kept, Transport]:
    loop = asyncio.new_event_loop()
    try:
        keeper, transport = Kept(), Transport()
        connection = Connection(loop, keeper)
        connection.connection_made(transport)
        answers: list[Answer | ResponseLost] = []

        def hear(what: Answer | NotSent | ResponseLost) -> bool:
            assert not isinstance(what, NotSent)
            answers.append(what)
            return True

        connection.ask(b"request", 1.0, hear)
        assert transport.written == [b"request"]
        for piece in pieces:
            connection.data_received(piece)
        if ends:
            connection.connection_lost(None)
        assert len(answers) <= 1
        return (answers[0] if answers else None), keeper, transport
    finally:
        loop.close()


@given(answers(), st.sets(st.integers(1, 400), max_size=12))
def test_however_it_is_cut_it_is_the_same_answer(answer: tuple[bytes, int, bytes], places: set[int]) -> None:
    text, status, body = answer
    whole, keeper, transport = heard(*cut(text, places))
    assert whole == heard(text)[0]
    assert isinstance(whole, Answer)
    assert (whole.status, whole.body, whole.headers["x-empty"]) == (status, body, "")
    assert "link" not in whole.headers
    assert keeper.kept == 1
    assert not transport.is_aborted


@given(answers(), st.data())
def test_cut_short_anywhere_it_is_lost(answer: tuple[bytes, int, bytes], data: st.DataObject) -> None:
    text = answer[0]
    length = data.draw(st.integers(0, len(text) - 1))
    places = data.draw(st.sets(st.integers(1, 400), max_size=6))
    assert heard(*cut(text[:length], places))[0] is None
    outcome, keeper, _ = heard(*cut(text[:length], places), ends=True)
    assert isinstance(outcome, ResponseLost)
    assert not outcome.is_timeout
    assert keeper.kept == 0


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8))
def test_whatever_comes_there_is_an_outcome_and_no_exception(pieces: list[bytes]) -> None:
    assert heard(*pieces, ends=True)[0] is not None


@given(answers(), st.integers(0, 400), st.integers(0, 255))
def test_one_wrong_byte_is_an_outcome_and_no_exception(answer: tuple[bytes, int, bytes], place: int, byte: int) -> None:
    text = bytearray(answer[0])
    text[place % len(text)] = byte
    assert heard(bytes(text), ends=True)[0] is not None


@pytest.mark.parametrize("behind", [b"H", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"\0"])
def test_what_comes_behind_an_answer_ends_the_connection_and_not_the_answer(behind: bytes) -> None:
    outcome, keeper, transport = heard(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + behind)
    assert outcome == Answer(200, {"content-length": "2"}, b"ok")
    assert keeper.kept == 0
    assert transport.is_aborted
