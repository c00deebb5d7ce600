"""`bongsu job`: list scheduled jobs, show one, run one now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bongsu.cli.terminal import err, out, run
from bongsu.runtime import telemetry
from bongsu.settings import Settings

if TYPE_CHECKING:
    from bongsu.rules import Rules

app = typer.Typer(no_args_is_help=True, help="Jobs: list them, show the runs of one, run one now.")

NameArgument = Annotated[str, typer.Argument(help="The job's name.")]
AppOption = Annotated[str | None, typer.Option("--app", help="Your own jobs, as `serve` is given them.")]


@app.command("list")
def list_jobs(app_name: AppOption = None) -> None:
    """Show the jobs, when each runs next, and how its last run ended."""
    from bongsu.cli.jobs_view import show_list  # noqa: PLC0415

    rules = _load(app_name)
    run(show_list(Settings.load(), rules, out))


@app.command("show")
def show_job(name: NameArgument, app_name: AppOption = None) -> None:
    """Show a job and its last runs: who runs them, how far they are, what they did. `replay` has the replays."""
    from bongsu.cli.jobs_view import show_one  # noqa: PLC0415

    rules = _load(app_name)
    run(show_one(Settings.load(), rules, name, out))


@app.command("run")
def run_job(name: NameArgument, app_name: AppOption = None) -> None:
    """Run a job now, unless a process is running it. If this process dies, a clock goes on with it."""
    from bongsu.cli.jobs_view import run_now  # noqa: PLC0415

    rules = _load(app_name)
    done = run(run_now(Settings.load(), rules, name, err))
    typer.echo(f"{name}: {done.error or done.result}", err=done.error is not None)
    if done.error is not None:
        raise typer.Exit(1)


def _load(app_name: str | None) -> Rules | None:
    from bongsu.rules import load_app  # noqa: PLC0415

    telemetry.configure_logs("WARNING")
    return load_app(app_name) if app_name is not None else None
