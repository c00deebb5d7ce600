"""`bongsu dead`: list, explain and replay dead letters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from bongsu.cli.terminal import err, out, read_cursor, read_options, run
from bongsu.errors import ReplayWithoutFilter
from bongsu.runtime import telemetry
from bongsu.settings import Settings

if TYPE_CHECKING:
    from bongsu.desk.dead_filter import DeadFilter

app = typer.Typer(no_args_is_help=True, help="Dead letters: list them, explain one, replay them.")

SourceOption = Annotated[str | None, typer.Option(help="Where they are: store (if it is left out), outbox, rabbitmq.")]
IdOption = Annotated[str | None, typer.Option("--id", help="One of them: a delivery's number or an event's UUID.")]
KindOption = Annotated[str | None, typer.Option(help="event, delivery or message.")]
StateOption = Annotated[
    str | None, typer.Option(help="FAILED or UNHANDLED of events, FAIL or UNKNOWN of deliveries, REJECTED of messages.")
]
CodeOption = Annotated[str | None, typer.Option(help="Why it died, as the list shows it.")]
ChannelOption = Annotated[str | None, typer.Option(help="PUSH, SMS, EMAIL, or a channel of your own.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="The notification's type, or the event's.")]
UserOption = Annotated[str | None, typer.Option(help="The member's id.")]
EventOption = Annotated[str | None, typer.Option(help="The event's UUID.")]
QueueOption = Annotated[str | None, typer.Option(help="The queue that rejected the message, or the name of the outbox.")]
FromOption = Annotated[str | None, typer.Option("--from", help="Died then or later: 2026-03-01T09:00:00+09:00.")]
ToOption = Annotated[str | None, typer.Option("--to", help="Died before then.")]


@app.command("list")
def list_dead(
    source: SourceOption = None,
    dead_id: IdOption = None,
    kind: KindOption = None,
    state: StateOption = None,
    code: CodeOption = None,
    channel: ChannelOption = None,
    type_name: TypeOption = None,
    user: UserOption = None,
    event: EventOption = None,
    queue: QueueOption = None,
    since: FromOption = None,
    until: ToOption = None,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1, max=200)] = 50,
    cursor: Annotated[str | None, typer.Option(help="The cursor that the previous page ended with.")] = None,
) -> None:
    """List dead letters: events that failed, then deliveries that did, newest first; or the messages of another source."""
    from bongsu.cli.dead_view import show_list  # noqa: PLC0415
    from bongsu.desk.dead_letters import MessageCursor  # noqa: PLC0415
    from bongsu.store.desk.dead_letters import PageCursor  # noqa: PLC0415

    asked = _filter(
        source=source, id=dead_id, kind=kind, state=state, code=code, channel=channel, type=type_name, user=user,
        event=event, queue=queue, since=since, until=until,
    )  # fmt: skip
    after = read_cursor(MessageCursor, cursor) if asked.is_of_messages else read_cursor(PageCursor, cursor)
    telemetry.configure_logs("WARNING")
    run(show_list(Settings.load(), asked, after, limit, out))


@app.command()
def show(
    dead_id: Annotated[str, typer.Argument(metavar="ID", help="A delivery's number or an event's UUID, as listed.")],
    source: SourceOption = None,
) -> None:
    """Explain a dead letter: its content, recipient, every attempt, and what to do."""
    from bongsu.cli.dead_view import show_one  # noqa: PLC0415

    asked = _filter(source=source, id=dead_id)
    telemetry.configure_logs("WARNING")
    run(show_one(Settings.load(), asked, out))


@app.command()
def replay(
    source: SourceOption = None,
    dead_id: IdOption = None,
    kind: KindOption = None,
    state: StateOption = None,
    code: CodeOption = None,
    channel: ChannelOption = None,
    type_name: TypeOption = None,
    user: UserOption = None,
    event: EventOption = None,
    queue: QueueOption = None,
    since: FromOption = None,
    until: ToOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count them and change nothing.")] = False,
    new_collapse_id: Annotated[
        bool, typer.Option("--new-collapse-id", help="Show it beside what may have arrived already, not in its place.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Replay the dead letters that match the filters."""
    from bongsu.cli.dead_view import ReplayCommand  # noqa: PLC0415

    asked = _filter(
        source=source, id=dead_id, kind=kind, state=state, code=code, channel=channel, type=type_name, user=user,
        event=event, queue=queue, since=since, until=until,
    )  # fmt: skip
    if asked.is_empty:
        raise ReplayWithoutFilter("No filter was given, such as --code or --id")
    telemetry.configure_logs("WARNING")
    command = ReplayCommand(Settings.load(), asked, new_collapse_id)
    count = run(command.count())
    if dry_run or not count:
        typer.echo(f"{count} matched, 0 replayed")
        return
    if sys.stdin.isatty() and not yes:
        typer.confirm(f"Replay {count} dead letter{'s' * (count != 1)}?", abort=True)
    done = run(command.run(count, err))
    typer.echo(f"{done.matched} matched, {done.replayed} replayed")


# What the options are called on the wire, where that differs; and the other way round, for messages.
_FIELDS = {"user": "userId", "event": "eventId", "since": "from", "until": "to"}
_OPTIONS = {"userId": "--user", "eventId": "--event"}


def _filter(**options: str | None) -> DeadFilter:
    from bongsu.desk.dead_filter import DeadFilter  # noqa: PLC0415

    given = {_FIELDS.get(name, name): value for name, value in options.items() if value is not None}
    for name, normalise in (("source", str.lower), ("kind", str.lower), ("state", str.upper), ("channel", _channel_name)):
        if name in given:
            given[name] = normalise(given[name])
    return read_options(DeadFilter, given, _OPTIONS)


def _channel_name(given: str) -> str:
    """As it is declared: channels of apps are known to the store. In any case, as the other options are taken."""
    from bongsu.model.channels import names_with_deliveries  # noqa: PLC0415
    from bongsu.service import load_known_channels  # noqa: PLC0415

    run(load_known_channels(Settings.load()))
    return next((name for name in names_with_deliveries() if name.upper() == given.upper()), given)
