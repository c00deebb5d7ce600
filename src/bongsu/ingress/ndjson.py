"""Newline-delimited JSON: any number of items in constant memory. An invalid line is reported by number, others are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bongsu.errors import BongsuError
from bongsu.ingress.decode import LARGE, Decode, Mistake, Rejected, decode_apart

# As long as one event may be by any other way in.
LINE_LIMIT = 10 * 1024 * 1024
# One transaction's worth: large enough that a commit is a small part of it, small enough to be held twice in memory.
BATCH_ITEMS = 5_000
# A batch is closed early when its lines are long, so that memory stays bounded whatever they are.
BATCH_BYTES = 4 * 1024 * 1024
# Lines that are decoded before others have their turn: a few milliseconds, also if all are bad, which takes longest. A chunk
# may hold tens of thousands.
SLICE_LINES = 256
# Enough to see what is wrong with a file; a file that is all wrong should not come back whole.
REPORTED_ERRORS = 100

_T = TypeVar("_T")
Accept = Callable[[Sequence[_T]], Awaitable[list[bool]]]
Line = bytes | None  # None in place of a line that was too long to keep


class Interrupted(Exception):
    """The store went away in the middle: what was stored before stays."""

    def __init__(self, tally: Tally, cause: BongsuError) -> None:
        super().__init__(str(cause))
        self.tally = tally


@dataclass
class Tally:
    """What became of the lines so far."""

    # The last line of the last batch that was stored: all before it have been dealt with.
    stored_to: int = 0
    accepted: int = 0
    duplicates: int = 0
    rejected: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)

    def reject(self, line: int, rejected: Rejected) -> None:
        self.rejected += 1
        if len(self.errors) < REPORTED_ERRORS:
            first = rejected.mistakes[0]
            self.errors.append({"line": line, "loc": list(first.location), "msg": first.message})


async def ingest_lines(chunks: AsyncIterable[bytes], accept: Accept[_T], decode: Decode[_T]) -> Tally:
    """Decode the lines as they come and accept them batch by batch: one batch is stored while the next is read."""
    tally = Tally()
    storing: tuple[int, asyncio.Future[list[bool]]] | None = None
    batch: list[_T] = []
    size = number = 0
    try:
        async for lines in _lines(chunks):
            for line in lines:
                number += 1
                if line is not None and not line.strip():
                    continue
                item = (
                    _too_long() if line is None else await decode_apart(decode, line) if len(line) > LARGE else decode(line)
                )
                if isinstance(item, Rejected):
                    tally.reject(number, item)
                else:
                    batch.append(item)
                size += len(line or b"")
            if len(batch) >= BATCH_ITEMS or size >= BATCH_BYTES:
                if storing is not None:
                    await _count(tally, *storing)
                storing = number, asyncio.ensure_future(accept(batch))
                batch, size = [], 0
            # Decoding never waits for anything by itself, and what is being stored needs a turn to be sent on.
            await asyncio.sleep(0)
        if storing is not None:
            await _count(tally, *storing)
            storing = None
        if batch:
            await _count(tally, number, accept(batch))
    except BongsuError as error:
        raise Interrupted(tally, error) from error
    finally:
        if storing is not None:
            storing[1].cancel()
    return tally


async def _count(tally: Tally, last_line: int, storing: Awaitable[list[bool]]) -> None:
    answers = await storing
    tally.stored_to = last_line
    tally.accepted += sum(answers)
    tally.duplicates += len(answers) - sum(answers)


async def _lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[list[Line]]:
    """The complete lines of each chunk, in slices. A line past the limit is dropped as it comes, not gathered."""
    rest, is_dropping = bytearray(), False
    async for chunk in chunks:
        if b"\n" not in chunk:
            # A long line comes in thousands of packets: copied with each of them, 10 MB took 20 seconds.
            rest += chunk
            if len(rest) > LINE_LIMIT:
                rest, is_dropping = bytearray(), True
            continue
        known = b"".join((rest, chunk))
        lines: list[Line] = [*known.split(b"\n")]
        rest = bytearray(lines.pop() or b"")
        if is_dropping and lines:
            lines[0], is_dropping = None, False
        if len(known) > LINE_LIMIT:
            lines = [None if line is None or len(line) > LINE_LIMIT else line for line in lines]
        if len(rest) > LINE_LIMIT:
            rest, is_dropping = bytearray(), True
        for start in range(0, len(lines), SLICE_LINES):
            yield lines[start : start + SLICE_LINES]
    if rest.strip() or is_dropping:
        yield [None if is_dropping else bytes(rest)]


def _too_long() -> Rejected:
    return Rejected([Mistake((), f"is longer than {LINE_LIMIT} bytes: split it")])
