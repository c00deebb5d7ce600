"""Events and behaviours from the command line into the store, without HTTP: one event, or a file of any size."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path
from typing import BinaryIO, TypeVar

from pydantic import TypeAdapter
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from bongsu.errors import BadCommand, PublishInterrupted
from bongsu.ingress import ndjson
from bongsu.ingress.behaviors import keep_behaviors
from bongsu.ingress.decode import Decode, Rejected, decode_behavior, decode_json
from bongsu.ingress.intake import Intake
from bongsu.model import Behavior, Event
from bongsu.runtime.loop import running
from bongsu.service import runtime
from bongsu.settings import Settings

_T = TypeVar("_T")
_event = TypeAdapter(Event)

CHUNK = 256 * 1024
# Any constant will do, but it must never change: a file published again must get the same ids.
_NAMESPACE = uuid.UUID("6f1bde5c-3f4e-5a0e-9c52-5b1f8f4a7a10")


async def publish_one(settings: Settings, event: Event) -> bool:
    """Store the event; return whether its id was new."""
    async with runtime(settings) as base, running(Intake(base.store, base.signals, "cli")) as intake:
        return (await intake.accept([event]))[0]


async def publish_file(settings: Settings, path: Path, console: Console) -> ndjson.Tally:
    """Publish every line. If interrupted, run it again: the ids are the same."""
    identity = _identity(path)
    numbers = count(1)

    def decode(line: bytes) -> Event | Rejected:
        event, number = decode_json(_event, line), next(numbers)
        if isinstance(event, Rejected) or "event_id" in event.model_fields_set or identity is None:
            return event
        # An id from the file, the line's number and its text: the same file published again adds nothing.
        name = f"{identity}:{number}:{line.strip().decode()}"
        return event.model_copy(update={"event_id": uuid.uuid5(_NAMESPACE, name)})

    async with runtime(settings) as base, running(Intake(base.store, base.signals, "cli")) as intake:
        return await _ingest(path, console, intake.accept, decode)


async def load_behaviors(settings: Settings, path: Path, console: Console) -> ndjson.Tally:
    """Store the behaviours, the newest of each kind. Loading a file twice changes nothing."""
    async with runtime(settings) as base:

        async def keep(behaviors: Sequence[Behavior]) -> list[bool]:
            return await keep_behaviors(base.store, behaviors)

        return await _ingest(path, console, keep, decode_behavior)


async def _ingest(path: Path, console: Console, accept: ndjson.Accept[_T], decode: Decode[_T]) -> ndjson.Tally:
    """Ingest the file's lines, with a progress bar on a terminal."""
    file, size = _opened(path)
    with file, _progress(console) as progress:
        task = progress.add_task(path.name, total=size)
        try:
            return await ndjson.ingest_lines(_chunks(file, progress, task), accept, decode)
        except ndjson.Interrupted as error:
            raise PublishInterrupted(f"{error.tally.accepted} accepted up to line {error.tally.stored_to}") from error


def _identity(path: Path) -> str | None:
    """What identifies a file: another file, or the same one changed, has other events.

    A pipe has no identity: what comes through it a second time is new.
    """
    if str(path) == "-" or not path.is_file():
        return None
    stat = path.stat()
    return f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}"


def _opened(path: Path) -> tuple[BinaryIO, int | None]:
    if str(path) == "-":
        return sys.stdin.buffer, None
    try:
        return path.open("rb"), path.stat().st_size
    except OSError as error:
        raise BadCommand(f"{path} cannot be read: {error.strerror}") from None


async def _chunks(file: BinaryIO, progress: Progress, task: TaskID) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read, CHUNK):
        yield chunk
        progress.advance(task, len(chunk))


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
