"""`bongsu dead`: list, explain and replay dead letters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from bongsu.cli.terminal import err, out, read_options, run
from bongsu.errors import ReplayWithoutFilter
from bongsu.runtime import telemetry
from bongsu.settings import Settings

if TYPE_CHECKING:
    from bongsu.api.dead import DeadFilter

    _F = TypeVar("_F", bound=DeadFilter)

app = typer.Typer(no_args_is_help=True, help="Dead letters: list them, explain one, replay them.")

IdOption = Annotated[str | None, typer.Option("--id", help="One of them: a delivery's number or an event's UUID.")]
KindOption = Annotated[str | None, typer.Option(help="event or delivery.")]
StateOption = Annotated[str | None, typer.Option(help="FAILED or UNHANDLED of events, FAIL or UNKNOWN of deliveries.")]
CodeOption = Annotated[str | None, typer.Option(help="Why it died, as the list shows it.")]
ChannelOption = Annotated[str | None, typer.Option(help="PUSH, SMS, EMAIL, or a channel of your own.")]
TypeOption = Annotated[str | None, typer.Option("--type", help="The notification's type, or the event's.")]
UserOption = Annotated[str | None, typer.Option(help="The member's id.")]
EventOption = Annotated[str | None, typer.Option(help="The event's UUID.")]
FromOption = Annotated[str | None, typer.Option("--from", help="Died then or later: 2026-03-01T09:00:00+09:00.")]
ToOption = Annotated[str | None, typer.Option("--to", help="Died before then.")]


@app.command("list")
def list_dead(
    one: IdOption = None,
    kind: KindOption = None,
    state: StateOption = None,
    code: CodeOption = None,
    channel: ChannelOption = None,
    type_name: TypeOption = None,
    user: UserOption = None,
    event: EventOption = None,
    since: FromOption = None,
    until: ToOption = None,
    limit: Annotated[int, typer.Option(help="How many at most.", min=1, max=200)] = 50,
    cursor: Annotated[str | None, typer.Option(help="What the page before ended with.")] = None,
) -> None:
    """Show dead letters: events that failed, then deliveries that did, newest first."""
    from bongsu.api.dead import DeadQuery  # noqa: PLC0415
    from bongsu.cli.dead_view import show_list  # noqa: PLC0415

    query = _filter(DeadQuery, one, kind, state, code, channel, type_name, user, event, since, until, limit, cursor)
    telemetry.configure_logs("WARNING")
    run(show_list(Settings.load(), query, out))


@app.command()
def show(one: Annotated[str, typer.Argument(metavar="ID", help="A delivery's number or an event's UUID.")]) -> None:
    """Explain one: its content, recipient, every attempt, and what to do."""
    from bongsu.api.dead import DeadFilter  # noqa: PLC0415
    from bongsu.cli.dead_view import show_one  # noqa: PLC0415

    asked = _filter(DeadFilter, one)
    telemetry.configure_logs("WARNING")
    run(show_one(Settings.load(), asked, out))


@app.command()
def replay(
    one: IdOption = None,
    kind: KindOption = None,
    state: StateOption = None,
    code: CodeOption = None,
    channel: ChannelOption = None,
    type_name: TypeOption = None,
    user: UserOption = None,
    event: EventOption = None,
    since: FromOption = None,
    until: ToOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count them and change nothing.")] = False,
    new_collapse_id: Annotated[
        bool, typer.Option("--new-collapse-id", help="Show it beside what may have arrived already, not in its place.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Replay dead letters: those that match the filters."""
    from bongsu.api.dead import DeadFilter  # noqa: PLC0415
    from bongsu.cli.dead_view import Replaying  # noqa: PLC0415

    asked = _filter(DeadFilter, one, kind, state, code, channel, type_name, user, event, since, until)
    if asked.is_empty:
        raise ReplayWithoutFilter("A replay needs a filter, such as --code or --id")
    telemetry.configure_logs("WARNING")
    replaying = Replaying(Settings.load(), asked, new_collapse_id)
    count = run(replaying.count())
    if dry_run or not count:
        typer.echo(f"{count} matched, 0 replayed")
        return
    if sys.stdin.isatty() and not yes:
        typer.confirm(f"Replay {count} dead letter{'s' * (count != 1)}?", abort=True)
    matched, replayed = run(replaying.run(count, err))
    typer.echo(f"{matched} matched, {replayed} replayed")


# In the order the commands take them, and as the endpoint calls them.
_NAMES = ("id", "kind", "state", "code", "channel", "type", "userId", "eventId", "from", "to", "limit", "cursor")
_OPTIONS = {"userId": "--user", "eventId": "--event"}


def _channel_name(given: str) -> str:
    """As it is declared: channels of apps are known to the store. In any case, as the other options are taken."""
    from bongsu.model.channels import names_with_deliveries  # noqa: PLC0415
    from bongsu.service import load_known_channels  # noqa: PLC0415

    run(load_known_channels(Settings.load()))
    return next((name for name in names_with_deliveries() if name.upper() == given.upper()), given)


def _filter(shape: type[_F], *values: str | int | None) -> _F:
    given = {name: value for name, value in zip(_NAMES, values, strict=False) if value is not None}
    for name, change in (("kind", str.lower), ("state", str.upper), ("channel", _channel_name)):
        if name in given:
            given[name] = change(str(given[name]))
    return read_options(shape, given, _OPTIONS)
