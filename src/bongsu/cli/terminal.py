"""What all commands share: where they print, and what they run on."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bongsu.api.paging import decode_cursor
from bongsu.errors import BadCommand

out = Console()
err = Console(stderr=True)
_T = TypeVar("_T")
_Model = TypeVar("_Model", bound=BaseModel)


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end on the fastest loop there is."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415
    except ImportError:  # Windows
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def read_options(shape: type[_Model], given: Mapping[str, object], options: Mapping[str, str]) -> _Model:
    """Options as a filter, by the names of its fields on the wire; `options` has those that are spelt otherwise."""
    try:
        return shape.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        where = f"{options.get(name, f'--{name}')} " if name else ""
        message = first["msg"].replace("Input should be", "must be")
        raise BadCommand(f"{where}{message}") from None


def read_cursor(kind: type[_T], given: str | None) -> _T | None:
    """The --cursor that a page before has printed."""
    try:
        return None if given is None else decode_cursor(kind, given)
    except PydanticCustomError as error:
        raise BadCommand(f"--cursor {error.message()}") from None


def show(console: Console, table: Table) -> None:
    """A table as wide as the terminal; where there is none, as wide as it is, so that a row is a line."""
    wide = console if console.is_terminal else Console(file=console.file, width=10_000)
    wide.print(table, highlight=False)


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Not wrapped where there is no terminal: a line is a fact, and may be searched for."""
    for line in lines:
        console.print(line, highlight=False, soft_wrap=not console.is_terminal)


def plain(text: str) -> str:
    """Text from outside: no control character may reach the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def counts_in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def local_time(moment: datetime, zone: ZoneInfo) -> str:
    return moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")


def operator_name() -> str:
    """Who runs a command, for the record."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):  # a container's user need not have a name
        return "cli:unknown"
