"""`bongsu event`: list events, show how far one has come, cancel one."""

from __future__ import annotations

import sys
from typing import Annotated
from uuid import UUID

import typer

from bongsu.cli.terminal import out, read_options, run
from bongsu.errors import BadCommand
from bongsu.runtime import telemetry
from bongsu.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Events: list them, show how far one has come, cancel one.")


@app.command("list")
def list_events(
    type_name: Annotated[str | None, typer.Option("--type", help="The event's type.")] = None,
    status: Annotated[str | None, typer.Option(help="PENDING, DONE, FAILED, UNHANDLED or CANCELLED.")] = None,
    target: Annotated[str | None, typer.Option(help="The member it was done to.")] = None,
    since: Annotated[str | None, typer.Option("--from", help="Stored then or later: 2026-03-01T09:00:00+09:00.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Stored before then.")] = None,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1, max=100)] = 50,
    cursor: Annotated[str | None, typer.Option(help="What the page before ended with.")] = None,
) -> None:
    """Show events, newest first."""
    from bongsu.api.admin_events import EventQuery  # noqa: PLC0415
    from bongsu.cli.events_view import show_list  # noqa: PLC0415

    status = None if status is None else status.upper()
    options = {"type": type_name, "status": status, "targetId": target, "from": since, "to": until, "cursor": cursor}
    given = {name: value for name, value in options.items() if value is not None}
    query = read_options(EventQuery, {**given, "limit": limit}, {"targetId": "--target"})
    telemetry.configure_logs("WARNING")
    run(show_list(Settings.load(), query, out))


@app.command()
def show(
    one: Annotated[str, typer.Argument(metavar="ID", help="The event's UUID.")],
    watch: Annotated[bool, typer.Option("--watch", help="Until all is sent: show it again every second.")] = False,
) -> None:
    """Show how far an event has come: members decided, deliveries by channel, rate and expected end."""
    from bongsu.cli import events_view as event_desk  # noqa: PLC0415

    event_id = _event_id(one)
    telemetry.configure_logs("WARNING")
    shown = event_desk.watch if watch else event_desk.show_one
    run(shown(Settings.load(), event_id, out))


@app.command()
def cancel(
    one: Annotated[str, typer.Argument(metavar="ID", help="The event's UUID.")],
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take it out of the inboxes and unread counts too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Stop an event: members not yet decided are not decided, deliveries not yet claimed are not sent."""
    from bongsu.cli import events_view as event_desk  # noqa: PLC0415

    event_id = _event_id(one)
    telemetry.configure_logs("WARNING")
    if sys.stdin.isatty() and not yes:
        typer.confirm(f"Cancel event {event_id}{', and take it out of the inboxes' if withdraw else ''}?", abort=True)
    done = run(event_desk.cancel(Settings.load(), event_id, withdraw=withdraw))
    typer.echo(
        f"{done.cancelled:,} deliveries cancelled, {done.sent:,} had gone out, {done.withdrawn:,} inbox rows withdrawn"
    )


def _event_id(given: str) -> UUID:
    try:
        return UUID(given)
    except ValueError:
        raise BadCommand(f"ID {given}: give the event's id, a UUID") from None
