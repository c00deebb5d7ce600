"""Large input does not keep the event loop: long JSON is decoded in a thread, many lines in slices."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest
from pydantic import TypeAdapter, ValidationError

from bongsu.ingress import ndjson
from bongsu.ingress.decode import LARGE, MISTAKES_LIMIT, Rejected, decode_apart, decode_event, decode_json
from bongsu.ingress.ndjson import ingest_lines
from bongsu.model import Event, Preferences
from bongsu.model.payload import VALUES_LIMIT


async def _one_chunk(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _accept(items: Sequence[object]) -> list[bool]:
    return [True] * len(items)


class WaitsForTheLoop:
    """A decoder that ends when the event loop has had a turn: on the loop itself it would wait in vain."""

    def __init__(self) -> None:
        self._turn = threading.Event()
        self.had_turn = False
        self._loop = asyncio.get_running_loop()

    def __call__(self, _data: bytes) -> str:
        self._loop.call_soon_threadsafe(self._turn.set)
        self.had_turn = self._turn.wait(10)
        return "decoded"


async def test_long_json_is_decoded_while_the_loop_goes_on() -> None:
    decode = WaitsForTheLoop()
    assert await decode_apart(decode, b" " * (LARGE + 1)) == "decoded"
    assert decode.had_turn


async def test_a_long_line_is_decoded_while_the_loop_goes_on() -> None:
    decode = WaitsForTheLoop()
    tally = await ingest_lines(_one_chunk(b"x" * (LARGE + 1) + b"\n"), _accept, decode)
    assert (tally.accepted, decode.had_turn) == (1, True)


async def test_many_bad_lines_in_one_chunk_let_others_have_their_turn() -> None:
    line_count = 20 * ndjson.SLICE_LINES
    turns, is_done = 0, False

    async def count_turns() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    tally = await ingest_lines(_one_chunk(b"x\n" * line_count), _accept, decode_event)
    is_done = True
    await counting
    assert tally.rejected == line_count
    assert turns >= line_count / ndjson.SLICE_LINES


async def test_a_long_line_in_many_small_pieces_is_gathered_without_copying_it_each_time() -> None:
    """Copied with every piece, these four megabytes would be 800 gigabytes: minutes."""
    count = 400_000

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(count):
            yield b"0123456789"
            if number % 1_000 == 0:
                await asyncio.sleep(0)
        yield b"\n{}\nrest"

    found: list[int] = []

    def decode(line: bytes) -> int:
        found.append(len(line))
        return len(line)

    async with asyncio.timeout(60):
        tally = await ingest_lines(pieces(), _accept, decode)
    assert (found, tally.accepted) == ([10 * count, 2, 4], 3)


NUMBERS = '{"n":[' + ",".join(["1"] * (VALUES_LIMIT + 1)) + "]}"
KEYS = "{" + ",".join(f'"k{n}":1' for n in range(VALUES_LIMIT + 1)) + "}"


@pytest.mark.parametrize("payload", [NUMBERS, KEYS], ids=["numbers", "keys"])
def test_an_event_of_too_many_values_is_refused_before_it_is_parsed(payload: str) -> None:
    rejected = decode_event(f'{{"eventType":"a","payload":{payload}}}'.encode())
    assert isinstance(rejected, Rejected)
    assert "values" in rejected.reason


def test_a_library_call_cannot_publish_what_http_refuses() -> None:
    with pytest.raises(ValidationError, match="values"):
        Event(event_type="a", payload={"n": [1] * (VALUES_LIMIT + 1)})
    assert Event(event_type="a", payload={"n": [1] * (VALUES_LIMIT - 1)}).payload_text


def test_of_very_many_mistakes_only_the_number_is_named() -> None:
    unknown = ",".join(f'"k{n}":1' for n in range(MISTAKES_LIMIT + 1))
    rejected = decode_json(TypeAdapter(Preferences), f"{{{unknown}}}".encode())
    assert isinstance(rejected, Rejected)
    assert rejected.reason == f"has {MISTAKES_LIMIT + 1} mistakes, which are too many to name"
