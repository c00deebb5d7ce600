"""What `bongsu event` prints: a table of events, how far one has come, and the same again every second while it goes on.

`find_events` and `looks` read the store; the functions that make lines of it are pure.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from bongsu.api.admin_events import EventQuery, find_event, wrapped
from bongsu.cli.terminal import operator_name, plain, show
from bongsu.desk.cancel import Cancellations
from bongsu.model import EventStatus
from bongsu.service import runtime
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.desk.cancellations import Cancellation
from bongsu.store.desk.event_progress import EventPage, EventProgress, EventRow, Filters, end_at_rate, find_page

# Between two looks of `--watch`. Each costs the store a few index reads, or up to 10,000 for an event of one step.
WATCH_SECONDS = 1.0

_COLOURS = {
    EventStatus.PENDING: "cyan",
    EventStatus.DONE: "green",
    EventStatus.FAILED: "red",
    EventStatus.UNHANDLED: "yellow",
    EventStatus.CANCELLED: "magenta",
}


def _time(settings: Settings, moment: datetime) -> str:
    return moment.astimezone(settings.zone).strftime("%Y-%m-%d %H:%M:%S")


# --- list -------------------------------------------------------------------------------------------------------------


async def show_list(settings: Settings, query: EventQuery, console: Console) -> None:
    async with runtime(settings) as base:
        page = await find_events(base.store, query)
    if page.rows:
        show(console, table(settings, page.rows))
    else:
        console.print("No events." if query.filters == Filters() else "No events that match.")
    if page.next is not None:
        console.print(f"More follow: --cursor {wrapped(page.next)}", highlight=False, soft_wrap=True)


async def find_events(store: Store, query: EventQuery) -> EventPage:
    """A page that is full, unless no more events match. Where few match, that takes several bounded searches."""
    rows: list[EventRow] = []
    place, is_last = query.cursor, False
    while len(rows) < query.limit and not is_last:
        async with store.read() as tx:
            page = await find_page(tx, query.filters, place, query.limit - len(rows))
        rows += page.rows
        place, is_last = page.next, page.next is None
    return EventPage(rows, place)


def table(settings: Settings, rows: Sequence[EventRow]) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("id", "status", "type", "target", "ref", "created"):
        # On a narrow terminal texts are folded and never cut. The id stays in one piece: it is there to be copied.
        shown.add_column(heading, no_wrap=heading in ("id", "status"), overflow="fold")
    for row in rows:
        shown.add_row(
            str(row.event_id),
            Text(row.status.value, _COLOURS[row.status]),
            Text(plain(row.event_type)),
            Text(plain(row.target_id or "")),
            Text(plain(row.ref_id or "")),
            _time(settings, row.created_at),
        )
    return shown


# --- cancel -----------------------------------------------------------------------------------------------------------


async def cancel(settings: Settings, event_id: UUID, *, withdraw: bool) -> Cancellation:
    async with runtime(settings) as base:
        return await Cancellations(base.store, base.signals).cancel(event_id, operator_name(), withdraw=withdraw)


# --- show -------------------------------------------------------------------------------------------------------------


async def show_one(settings: Settings, event_id: UUID, console: Console) -> None:
    async with runtime(settings) as base:
        progress = await find_event(base.store, event_id)
    _print(settings, progress, console)


def _print(settings: Settings, progress: EventProgress, console: Console) -> None:
    for line in told(settings, progress):
        console.print(line, highlight=False, soft_wrap=not console.is_terminal)


def told(settings: Settings, progress: EventProgress) -> Iterator[Text]:
    """The page, line by line."""
    event = progress.event
    yield Text.assemble(
        (f"Event {event.event_id}  ", "bold"), (event.status.value, _COLOURS[event.status]), f"  {plain(event.event_type)}"
    )
    for name, fact in facts(settings, progress):
        yield Text.assemble("  ", (f"{name:<11}", "dim"), plain(fact))


def facts(settings: Settings, progress: EventProgress) -> Iterator[tuple[str, str]]:
    event, counts = progress.event, progress.counts
    for name, given in (("actor", event.actor_id), ("target", event.target_id), ("ref", event.ref_id)):
        if given is not None:
            yield name, given
    yield "created", _time(settings, event.created_at)
    if progress.due_at is not None:
        yield "due", _time(settings, progress.due_at)
    if event.finished_at is not None:
        yield "finished", _time(settings, event.finished_at)
    if event.attempts:
        yield "tries", str(event.attempts)
    if event.error:
        yield "error", event.error
    yield "decided", f"{counts.decided:,}"
    if counts.suppressed:
        yield "suppressed", _in_words(counts.suppressed)
    for channel, statuses in counts.deliveries.items():
        yield channel, _in_words(statuses)
    if progress.rate_per_second is not None:
        yield "rate", f"{_rate(progress.rate_per_second)} on average"
    if progress.expected_end is not None:
        why = "when the last is due" if progress.expected_end == progress.last_due else "at this rate"
        yield "ends", f"{_time(settings, progress.expected_end)} {why}"
    yield from _cancellation(settings, progress)


def _in_words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _rate(per_second: float) -> str:
    return f"{per_second:,.1f}/s"


def _cancellation(settings: Settings, progress: EventProgress) -> Iterator[tuple[str, str]]:
    one = progress.cancellation
    if one is not None:
        withdrawn = f", {one.withdrawn:,} inbox rows withdrawn" if one.withdraw else ""
        yield "cancelled", f"{_time(settings, one.requested_at)} by {one.requested_by}"
        yield "", f"{one.cancelled:,} deliveries stopped, {one.sent:,} sent before{withdrawn}"


# --- watch ------------------------------------------------------------------------------------------------------------


# The rate is that of so many looks: of one second it would jump between nothing and much.
RATE_LOOKS = 10


async def _second() -> None:
    await asyncio.sleep(WATCH_SECONDS)


async def watch(
    settings: Settings, event_id: UUID, console: Console, pause: Callable[[], Awaitable[None]] = _second
) -> None:
    """Show how far it has come until it is over: a progress bar on a terminal, elsewhere a line for each look."""
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[done]}"),
        TextColumn("{task.fields[pace]}"),
    )  # fmt: skip
    async with runtime(settings) as base:
        # Before the bar is there: of an event that does not exist there is only an error to show.
        first = await find_event(base.store, event_id)
        with Progress(*columns, console=console, expand=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("", done="", pace="")
            async for look in looks(base.store, first, pause):
                progress.update(task, **_bar(settings, look))
                if not console.is_terminal:
                    console.print(line(settings, look), highlight=False, soft_wrap=True)
    if console.is_terminal:
        _print(settings, look.progress, console)


@dataclass(frozen=True)
class Look:
    """How far an event has come, and how far it had come some looks before."""

    progress: EventProgress
    before: EventProgress | None = None

    @property
    def done(self) -> int:
        """Deliveries that are sent, failed or cancelled."""
        return self.progress.counts.made - self.progress.counts.waiting

    @property
    def rate(self) -> float | None:
        """Outcomes per second since some looks before; at the first look, since the event's first message."""
        if self.before is None:
            return self.progress.rate_per_second
        seconds = (self.progress.now - self.before.now).total_seconds()
        # A replay makes deliveries wait again that had an outcome.
        new = max(self.progress.counts.answered - self.before.counts.answered, 0)
        return new / seconds if seconds > 0 else None

    @property
    def expected_end(self) -> datetime | None:
        return end_at_rate(self.progress, self.rate)


async def looks(store: Store, first: EventProgress, pause: Callable[[], Awaitable[None]]) -> AsyncIterator[Look]:
    """One look after the other, with a pause between them. The last finds that nothing is left to do."""
    seen = deque([first], RATE_LOOKS)
    look = Look(first)
    yield look
    while not look.progress.is_over:
        await pause()
        look = Look(await find_event(store, first.event.event_id), seen[0])
        seen.append(look.progress)
        yield look


def _bar(settings: Settings, look: Look) -> dict[str, Any]:
    """What the progress bar shows. Without deliveries it is empty until the event is finished, and then full."""
    made = look.progress.counts.made
    return {
        "description": look.progress.event.status.value,
        "total": made or 1,
        "completed": look.done if made else int(look.progress.is_over),
        "done": f"{look.done:,}/{made:,}",
        "pace": pace(settings, look),
    }


def line(settings: Settings, look: Look) -> str:
    counts = look.progress.counts
    ended = f"{look.done:,} of {counts.made:,} deliveries ended"
    parts = (look.progress.event.status.value, f"{counts.decided:,} decided", ended, pace(settings, look))
    return "  ".join(part for part in parts if part)


def pace(settings: Settings, look: Look) -> str:
    """The rate and the expected end, as far as they are known; of an event that waits for its time, when that is."""
    if look.progress.due_at is not None:
        return f"due {_time(settings, look.progress.due_at)}"
    rate = "" if look.rate is None or look.progress.is_over else _rate(look.rate)
    if look.expected_end is None:
        return rate
    end, now = (_time(settings, moment) for moment in (look.expected_end, look.progress.now))
    today, _, _ = now.partition(" ")
    return f"{rate}, ends {end.removeprefix(today).strip()}"
