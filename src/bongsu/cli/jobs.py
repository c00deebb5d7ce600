"""`bongsu job`: list scheduled jobs, run one now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bongsu.cli.terminal import local_time, out, plain, run, show
from bongsu.runtime import telemetry
from bongsu.settings import Settings

if TYPE_CHECKING:
    from bongsu.store.job_runs import Run

app = typer.Typer(no_args_is_help=True, help="Scheduled jobs: list them, run one now.")


@app.command("list")
def list_jobs() -> None:
    """Show the jobs, when each runs next, and how its last run ended."""
    telemetry.configure_logs("WARNING")
    run(_list(Settings.load(), out))


@app.command("run")
def run_job(name: Annotated[str, typer.Argument(help="The job's name.")]) -> None:
    """Run a job now, under the same lock as its scheduled runs."""
    telemetry.configure_logs("WARNING")
    done = run(_run(Settings.load(), name))
    typer.echo(f"{name}: {done.error or done.result}", err=done.error is not None)
    if done.error is not None:
        raise typer.Exit(1)


async def _list(settings: Settings, console: Console) -> None:
    from bongsu import clock  # noqa: PLC0415
    from bongsu.service import runtime  # noqa: PLC0415

    async with runtime(settings) as base:
        jobs = clock.build_jobs(settings, base.store, base.signals)
        statuses = await clock.list_jobs(settings, base.store, jobs)
    table = Table("job", "cron", "next", "last", "result", box=None, padding=(0, 2, 0, 0))
    for status in statuses:
        times = [
            local_time(moment, settings.zone) if moment else "never"
            for moment in (status.next_at, status.last_run and status.last_run.started_at)
        ]
        table.add_row(status.job.name, status.job.cron, *times, _outcome(status.last_run))
    show(console, table)
    for status in statuses:
        console.print(f"{status.job.name}: {status.job.does}", highlight=False, soft_wrap=not console.is_terminal)


def _outcome(last: Run | None) -> Text:
    if last is None:
        return Text("")
    if last.finished_at is None:
        return Text("under way, or its process died", "yellow")
    return Text(plain(last.error), "red") if last.error is not None else Text(plain(last.result or ""))


async def _run(settings: Settings, name: str) -> Run:
    from bongsu import clock  # noqa: PLC0415
    from bongsu.clock.scheduler import run_by_hand  # noqa: PLC0415
    from bongsu.service import runtime  # noqa: PLC0415

    async with runtime(settings) as base:
        job = clock.find_job(clock.build_jobs(settings, base.store, base.signals), name)
        return await run_by_hand(base.store, job)
