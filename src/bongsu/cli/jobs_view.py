"""What `bongsu job` prints: a table of jobs, the runs of one, the progress of a run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from bongsu.cli.terminal import counts_in_words, local_time, operator_name, plain, print_lines, show
from bongsu.clock.run import Run
from bongsu.desk.jobs import JobDesk, JobStatus, build_jobs
from bongsu.rules import Rules
from bongsu.service import runtime
from bongsu.settings import Settings
from bongsu.store.core.dead_claims import release_dead_claims
from bongsu.store.runs import RunRow


@contextlib.asynccontextmanager
async def _desk(settings: Settings, rules: Rules | None, *, claims: bool = False) -> AsyncIterator[JobDesk]:
    """With `claims`, this process holds the embedded store as a service does: one that starts leaves its runs alone."""
    async with contextlib.AsyncExitStack() as stack:
        base = await stack.enter_async_context(runtime(settings))
        if claims:
            await stack.enter_async_context(release_dead_claims(base.store))
        yield JobDesk(settings, base.store, build_jobs(settings, base.store, base.signals, rules.jobs if rules else ()))


# --- list -------------------------------------------------------------------------------------------------------------


async def show_list(settings: Settings, rules: Rules | None, console: Console) -> None:
    async with _desk(settings, rules) as desk:
        statuses = await desk.list()
    table = Table("job", "cron", "next", "last", "result", box=None, padding=(0, 2, 0, 0))
    for status in statuses:
        last = status.last_run
        started = local_time(last.started_at, settings.zone) if last else "never"
        table.add_row(
            status.job.name, status.job.cron, _next(status, settings.zone), started, _outcome(last) if last else Text("")
        )
    show(console, table)
    lines = (Text(f"{status.job.name}: {status.schedule}. {plain(status.job.does)}") for status in statuses)
    print_lines(console, lines)


def _next(status: JobStatus, zone: ZoneInfo) -> str:
    if not status.job.is_enabled:
        return "disabled"
    return local_time(status.next_at, zone) if status.next_at else "never"


def _outcome(run: RunRow) -> Text:
    """How it ended, or how far it is and who is at it."""
    if run.error is not None:
        return Text(plain(run.error), "red")
    if run.finished_at is not None:
        return Text(plain(run.result or ""))
    done = f", {_progress(run)}" if run.done else ""
    if run.is_abandoned:
        return Text(f"abandoned by {plain(run.leased_by)}{done}; the next clock goes on", "yellow")
    return Text(f"run by {plain(run.leased_by)}{done}", "cyan")


def _progress(run: RunRow) -> str:
    return f"{run.done:,} done" if run.total is None else f"{run.done:,} of {run.total:,} done"


# --- show -------------------------------------------------------------------------------------------------------------


async def show_one(settings: Settings, rules: Rules | None, name: str, console: Console) -> None:
    async with _desk(settings, rules) as desk:
        status = await desk.show(name)
    print_lines(console, lines_of(status, settings.zone))


def lines_of(status: JobStatus, zone: ZoneInfo) -> Iterator[Text]:
    """The page, line by line."""
    yield Text.assemble((status.job.name, "bold"), "  ", plain(status.job.does))
    if status.schedule is not None:
        yield Text(f"  {status.schedule} ({zone.key}), next: {_next(status, zone)}")
    if not status.runs:
        yield Text("  It has not run yet.")
    for run in status.runs:
        yield Text("")
        yield Text.assemble((f"run {run.run_id}", "bold"), f"  {local_time(run.started_at, zone)}  ", _outcome(run))
        for fact, text in facts(run, zone):
            yield Text.assemble("  ", (f"{fact:<9}", "dim"), plain(text))


def facts(run: RunRow, zone: ZoneInfo) -> Iterator[tuple[str, str]]:
    if run.slot is None:
        yield "asked by", run.requested_by
    else:
        late = ", missed and made up for" if run.is_made_up else ""
        yield "slot", f"{local_time(run.slot, zone)}{late}"
    if run.skipped:
        yield "skipped", f"{run.skipped} missed slots before it"
    yield "owner", run.leased_by
    if run.input is not None:
        yield "input", json.dumps(run.input, ensure_ascii=False)
    if run.done:
        yield "progress", _progress(run)
    if run.counts:
        yield "counts", counts_in_words(run.counts)
    if run.finished_at is not None:
        yield "took", str(run.finished_at - run.started_at).partition(".")[0]


# --- run --------------------------------------------------------------------------------------------------------------


async def run_now(settings: Settings, rules: Rules | None, name: str, console: Console) -> RunRow:
    """Run it, with a progress bar on a terminal."""
    columns = (
        SpinnerColumn(), TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[counts]}"),
    )  # fmt: skip
    async with _desk(settings, rules, claims=True) as desk:
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            task = progress.add_task(plain(name), total=None, counts="")

            def update(run: Run) -> None:
                progress.update(task, completed=run.done, total=run.total, counts=counts_in_words(run.counts))

            return await desk.run(name, operator_name(), update)
