"""Events from the command line, put straight into the store: one, or a file of any size."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

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
from bongsu.ingress.intake import Intake
from bongsu.model import Event
from bongsu.service import ground, running
from bongsu.settings import Settings

CHUNK = 256 * 1024
# Any constant will do, as long as it stays: a file published again must get the ids it got before.
_NAMESPACE = uuid.UUID("6f1bde5c-3f4e-5a0e-9c52-5b1f8f4a7a10")


async def publish_one(settings: Settings, event: Event) -> bool:
    """Store the event; say whether its id was new."""
    async with ground(settings) as base, running(Intake(base.store, base.signals, "cli")) as intake:
        return (await intake.accept([event]))[0]


async def publish_file(settings: Settings, path: Path, console: Console) -> ndjson.Tally:
    """Publish every line, with a bar where a terminal is. Interrupted, it can simply be run again."""
    file, size, identity = _opened(path)

    def parse(number: int, line: bytes) -> Event:
        event = Event.model_validate_json(line, by_alias=True, by_name=False)
        if "event_id" in event.model_fields_set or identity is None:
            return event
        # Made from the file, the line's number and its text: the same file published again adds nothing.
        name = f"{identity}:{number}:{line.strip().decode()}"
        return event.model_copy(update={"event_id": uuid.uuid5(_NAMESPACE, name)})

    with file, _progress(console) as progress:
        task = progress.add_task(path.name, total=size)
        async with ground(settings) as base, running(Intake(base.store, base.signals, "cli")) as intake:
            try:
                return await ndjson.pour(_chunks(file, progress, task), intake.accept, parse)
            except ndjson.Interrupted as error:
                raise PublishInterrupted(f"{error.tally.accepted} accepted up to line {error.tally.stored_to}") from error


def _opened(path: Path) -> tuple[BinaryIO, int | None, str | None]:
    """The file, its size, and what it is known by: another file, or the same one changed, holds other events.

    A pipe is known by nothing: what comes through it a second time is new.
    """
    if str(path) == "-":
        return sys.stdin.buffer, None, None
    try:
        file, stat = path.open("rb"), path.stat()
        return file, stat.st_size, f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}"
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
