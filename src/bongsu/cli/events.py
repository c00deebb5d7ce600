"""`bongsu event`: list events, show how far one has come, cancel one."""

from __future__ import annotations

import sys
from typing import Annotated
from uuid import UUID

import typer

from bongsu.cli.terminal import out, read_cursor, read_options, run
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
    cursor: Annotated[str | None, typer.Option(help="The cursor that the previous page ended with.")] = None,
) -> None:
    """List events, newest first."""
    from bongsu.cli.events_view import show_list  # noqa: PLC0415
    from bongsu.desk.progress import EventFilter  # noqa: PLC0415
    from bongsu.store.desk.event_progress import PageCursor  # noqa: PLC0415

    status = None if status is None else status.upper()
    options = {"type": type_name, "status": status, "targetId": target, "from": since, "to": until}
    given = {name: value for name, value in options.items() if value is not None}
    asked = read_options(EventFilter, given, {"targetId": "--target"})
    after = read_cursor(PageCursor, cursor)
    telemetry.configure_logs("WARNING")
    run(show_list(Settings.load(), asked, after, limit, out))


@app.command()
def show(
    event: Annotated[str, typer.Argument(metavar="ID", help="The event's UUID.")],
    watch: Annotated[bool, typer.Option("--watch", help="Until all is sent: show it again every second.")] = False,
) -> None:
    """Show how far an event has come: members decided, deliveries by channel, rate and expected end."""
    from bongsu.cli import events_view as view  # noqa: PLC0415

    event_id = _event_id(event)
    telemetry.configure_logs("WARNING")
    shown = view.watch if watch else view.show_one
    run(shown(Settings.load(), event_id, out))


@app.command()
def cancel(
    event: Annotated[str, typer.Argument(metavar="ID", help="The event's UUID.")],
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Remove it from the inboxes and unread counts too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Stop an event: members not yet decided are not decided, deliveries not yet claimed are not sent."""
    from bongsu.cli import events_view as view  # noqa: PLC0415

    event_id = _event_id(event)
    telemetry.configure_logs("WARNING")
    if sys.stdin.isatty() and not yes:
        typer.confirm(f"Cancel event {event_id}{' and withdraw it from the inboxes' if withdraw else ''}?", abort=True)
    done = run(view.cancel(Settings.load(), event_id, withdraw=withdraw))
    typer.echo(
        f"{done.cancelled:,} deliveries cancelled, {done.sent:,} already sent, {done.withdrawn:,} inbox rows withdrawn"
    )


def _event_id(given: str) -> UUID:
    try:
        return UUID(given)
    except ValueError:
        raise BadCommand(f"ID {given}: give the event's id, a UUID") from None
