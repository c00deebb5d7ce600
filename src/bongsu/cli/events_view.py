"""What `bongsu event` prints: a table of events, how far one has come, and the same again every second while it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from bongsu.api.paging import encode_cursor
from bongsu.cli.terminal import counts_in_words, local_time, operator_name, plain, print_lines, show
from bongsu.desk.cancel import Cancellations
from bongsu.desk.lists import fill_page
from bongsu.desk.progress import EventFilter, ProgressSample, find_progress, list_events, watch_progress
from bongsu.model import EventStatus
from bongsu.service import runtime
from bongsu.settings import Settings
from bongsu.store.desk.cancellations import Cancellation
from bongsu.store.desk.event_progress import EventProgress, PageCursor
from bongsu.store.outbox import EventRow

# Between two samples of `--watch`. Each costs the store a few index reads, or those of all members of an event of one step.
WATCH_SECONDS = 1.0

_COLOURS = {
    EventStatus.PENDING: "cyan",
    EventStatus.DONE: "green",
    EventStatus.FAILED: "red",
    EventStatus.UNHANDLED: "yellow",
    EventStatus.CANCELLED: "magenta",
}


# --- list -------------------------------------------------------------------------------------------------------------


async def show_list(settings: Settings, asked: EventFilter, after: PageCursor | None, limit: int, console: Console) -> None:
    async with runtime(settings) as base:
        rows, end = await fill_page(partial(list_events, base.store, asked), after, limit)
    if rows:
        show(console, table(settings.zone, rows))
    else:
        console.print("No events." if asked.is_empty else "No events that match.")
    if end is not None:
        console.print(f"More follow: --cursor {encode_cursor(end)}", highlight=False, soft_wrap=True)


def table(zone: ZoneInfo, rows: Sequence[EventRow]) -> Table:
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
            local_time(row.created_at, zone),
        )
    return shown


# --- cancel -----------------------------------------------------------------------------------------------------------


async def cancel(settings: Settings, event_id: UUID, *, withdraw: bool) -> Cancellation:
    async with runtime(settings) as base:
        return await Cancellations(base.store, base.signals).cancel(event_id, operator_name(), withdraw=withdraw)


# --- show -------------------------------------------------------------------------------------------------------------


async def show_one(settings: Settings, event_id: UUID, console: Console) -> None:
    async with runtime(settings) as base:
        progress = await find_progress(base.store, event_id)
    print_lines(console, lines_of(progress, settings.zone))


def lines_of(progress: EventProgress, zone: ZoneInfo) -> Iterator[Text]:
    """The page, line by line."""
    event = progress.event
    yield Text.assemble(
        (f"Event {event.event_id}  ", "bold"), (event.status.value, _COLOURS[event.status]), f"  {plain(event.event_type)}"
    )
    for name, fact in facts(progress, zone):
        yield Text.assemble("  ", (f"{name:<11}", "dim"), plain(fact))


def facts(progress: EventProgress, zone: ZoneInfo) -> Iterator[tuple[str, str]]:
    event, counts = progress.event, progress.counts
    for name, given in (("actor", event.actor_id), ("target", event.target_id), ("ref", event.ref_id)):
        if given is not None:
            yield name, given
    yield "created", local_time(event.created_at, zone)
    if progress.due_at is not None:
        yield "due", local_time(progress.due_at, zone)
    if event.finished_at is not None:
        yield "finished", local_time(event.finished_at, zone)
    if event.attempts:
        yield "tries", str(event.attempts)
    if event.error:
        yield "error", event.error
    yield "decided", f"{counts.decided:,}"
    if counts.merged:
        yield "merged", f"{counts.merged:,} into digests"
    if counts.suppressed:
        yield "suppressed", counts_in_words(counts.suppressed)
    for channel, statuses in counts.deliveries.items():
        yield channel, counts_in_words(statuses)
    if progress.rate_per_second is not None:
        yield "rate", f"{_rate(progress.rate_per_second)} on average"
    if progress.expected_end is not None:
        why = "when the last is due" if progress.expected_end == progress.last_due else "at this rate"
        yield "ends", f"{local_time(progress.expected_end, zone)} {why}"
    yield from _cancellation(progress, zone)


def _rate(per_second: float) -> str:
    return f"{per_second:,.1f}/s"


def _cancellation(progress: EventProgress, zone: ZoneInfo) -> Iterator[tuple[str, str]]:
    done = progress.cancellation
    if done is not None:
        withdrawn = f", {done.withdrawn:,} inbox rows withdrawn" if done.withdraw else ""
        yield "cancelled", f"{local_time(done.requested_at, zone)} by {done.requested_by}"
        yield "", f"{done.cancelled:,} deliveries stopped, {done.sent:,} sent before{withdrawn}"


# --- watch ------------------------------------------------------------------------------------------------------------


async def _second() -> None:
    await asyncio.sleep(WATCH_SECONDS)


async def watch(
    settings: Settings, event_id: UUID, console: Console, pause: Callable[[], Awaitable[None]] = _second
) -> None:
    """Show how far it has come until it is over: a progress bar on a terminal, elsewhere a line for each sample."""
    columns = (
        TextColumn("[bold]{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[done]}"),
        TextColumn("{task.fields[pace]}"),
    )  # fmt: skip
    async with runtime(settings) as base:
        # Before the bar is there: of an event that does not exist there is only an error to show.
        first = await find_progress(base.store, event_id)
        with Progress(*columns, console=console, expand=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("", done="", pace="")
            async for sample in watch_progress(base.store, first, pause):
                progress.update(task, **_bar(sample, settings.zone))
                if not console.is_terminal:
                    console.print(line(sample, settings.zone), highlight=False, soft_wrap=True)
    if console.is_terminal:
        print_lines(console, lines_of(sample.progress, settings.zone))


def _bar(sample: ProgressSample, zone: ZoneInfo) -> dict[str, Any]:
    """What the progress bar shows. Without deliveries it is empty until the event is finished, and then full."""
    made = sample.progress.counts.made
    return {
        "description": sample.progress.event.status.value,
        "total": made or 1,
        "completed": sample.done if made else int(sample.progress.is_over),
        "done": f"{sample.done:,}/{made:,}",
        "pace": pace(sample, zone),
    }


def line(sample: ProgressSample, zone: ZoneInfo) -> str:
    counts = sample.progress.counts
    ended = f"{sample.done:,} of {counts.made:,} deliveries ended"
    parts = (sample.progress.event.status.value, f"{counts.decided:,} decided", ended, pace(sample, zone))
    return "  ".join(part for part in parts if part)


def pace(sample: ProgressSample, zone: ZoneInfo) -> str:
    """The rate and the expected end, as far as they are known; of an event that waits for its time, when that is."""
    if sample.progress.due_at is not None:
        return f"due {local_time(sample.progress.due_at, zone)}"
    rate = "" if sample.rate is None or sample.progress.is_over else _rate(sample.rate)
    if sample.expected_end is None:
        return rate
    end, now = (local_time(moment, zone) for moment in (sample.expected_end, sample.progress.now))
    today, _, _ = now.partition(" ")
    return f"{rate}, ends {end.removeprefix(today).strip()}"
