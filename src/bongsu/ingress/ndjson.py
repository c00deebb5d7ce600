"""Newline-delimited JSON: any number of items in constant memory. An invalid line is reported by number, others are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from bongsu.errors import BongsuError

# As long as one event may be by any other way in.
LINE_LIMIT = 10 * 1024 * 1024
# One transaction's worth: large enough that a commit is a small part of it, small enough to be held twice in memory.
BATCH_THINGS = 5_000
# A batch is closed early when its lines are long, so that memory stays bounded whatever they are.
BATCH_BYTES = 4 * 1024 * 1024
# Enough to see what is wrong with a file; a file that is all wrong should not come back whole.
REPORTED_ERRORS = 100

_T = TypeVar("_T")
Accept = Callable[[Sequence[_T]], Awaitable[list[bool]]]
Parse = Callable[[int, bytes], _T]
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

    def reject(self, line: int, loc: list[Any], message: str) -> None:
        self.rejected += 1
        if len(self.errors) < REPORTED_ERRORS:
            self.errors.append({"line": line, "loc": loc, "msg": message})


async def pour(chunks: AsyncIterable[bytes], accept: Accept[_T], parse: Parse[_T]) -> Tally:
    """Parse the lines as they come and accept them batch by batch: one batch is stored while the next is read."""
    tally = Tally()
    storing: tuple[int, asyncio.Future[list[bool]]] | None = None
    batch: list[_T] = []
    size = number = 0
    try:
        async for lines in _lines(chunks):
            for line in lines:
                number += 1
                if line is None:
                    tally.reject(number, [], f"is longer than {LINE_LIMIT} bytes: split it")
                elif line.strip():
                    size += len(line)
                    try:
                        batch.append(parse(number, line))
                    except ValidationError as error:
                        _reject(tally, number, error)
            if len(batch) >= BATCH_THINGS or size >= BATCH_BYTES:
                if storing is not None:
                    await _count(tally, *storing)
                storing = number, asyncio.ensure_future(accept(batch))
                batch, size = [], 0
            # Parsing never waits for anything by itself, and what is being stored needs a turn to be sent on.
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
    """The complete lines of each chunk. A line past the limit is dropped as it comes, not gathered."""
    rest, is_dropping = b"", False
    async for chunk in chunks:
        known = rest + chunk
        lines: list[Line] = [*known.split(b"\n")]
        rest = lines.pop() or b""
        if is_dropping and lines:
            lines[0], is_dropping = None, False
        if len(known) > LINE_LIMIT:
            lines = [None if line is None or len(line) > LINE_LIMIT else line for line in lines]
        if len(rest) > LINE_LIMIT:
            rest, is_dropping = b"", True
        yield lines
    if rest.strip() or is_dropping:
        yield [None if is_dropping else rest]


def _reject(tally: Tally, line: int, error: ValidationError) -> None:
    first = error.errors(include_url=False, include_input=False)[0]
    tally.reject(line, list(first["loc"]), first["msg"])
