"""The commands. Each reads the settings, does one thing, and prints in one line what to do when it cannot."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn
from uuid import UUID

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.panel import Panel

from bongsu.cli import dead as cli_dead
from bongsu.cli import events as cli_events
from bongsu.cli import jobs as cli_jobs
from bongsu.cli.terminal import err, out, run
from bongsu.errors import BadCommand, BadEvent, BongsuError
from bongsu.model import Event
from bongsu.runtime import telemetry
from bongsu.runtime.keys import Keys
from bongsu.runtime.roles import ALL_OR_SOME, Role, read_roles
from bongsu.settings import Settings

__all__ = ["app", "main", "run"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="봉수 — an event goes in, the right people are notified, once.",
)
app.add_typer(cli_dead.app, name="dead")
app.add_typer(cli_events.app, name="event")
app.add_typer(cli_jobs.app, name="job")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bongsu {version('bongsu')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """봉수 — an event goes in, the right people are notified, once."""


def main() -> NoReturn:
    """The program. An expected error is one line on stderr and exit code 1; a traceback means a bug."""
    try:
        app()
    except BongsuError as error:
        err.print(f"[bold red]bongsu:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", min=0, max=65535)] = None,
    role: Annotated[str, typer.Option(help=f"{ALL_OR_SOME}.")] = "all",
    app_name: Annotated[str | None, typer.Option("--app", help="Your own rules: package.module:app.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="With a small demo shop that publishes events.")] = False,
    demo_public: Annotated[
        bool, typer.Option("--demo-public", help="With --demo: also where other machines can reach it, without a key.")
    ] = False,
) -> None:
    """Run Bongsu: all of it in one process, or the roles you name."""
    from bongsu.demo import refuse_public_host  # noqa: PLC0415
    from bongsu.rules import load_app  # noqa: PLC0415
    from bongsu.service import Service  # noqa: PLC0415

    settings = Settings.load()
    changes = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = settings.model_copy(update=changes)
    roles = read_roles(role)
    if demo and not demo_public:
        refuse_public_host(settings.host)
    if demo and (Role.API in roles) != (Role.GATEWAY in roles):
        # The tokens that its page hands out are known to this process alone.
        raise BadCommand("--demo needs the roles api and gateway in one process")
    own_rules = load_app(app_name) if app_name is not None else None
    telemetry.configure_logs()

    async def serve_until_stopped() -> None:
        service = Service(settings, roles, own_rules, listens=port is not None, is_demo=demo)
        await service.run(lambda address: _greet(settings, address, is_demo=demo) if Role.API in roles else None)

    run(serve_until_stopped())


def _greet(settings: Settings, address: str, *, is_demo: bool) -> None:
    """Prints the address and the keys of the embedded store, for its owner.

    The key is shown if it was made here and stdout is a terminal: a file or a log collector would keep it. Not the console's
    own `is_terminal`, which FORCE_COLOR makes true.
    """
    if not address:
        return
    if settings.is_embedded:
        is_shown = sys.stdout.isatty() and not settings.keys
        lines = (
            f"[bold]API docs[/]      {address}/docs\n"
            f"[bold]API key[/]       {escape(Keys.load(settings).api_keys[0] if is_shown else f'{_program()} apikey')}\n"
            f"[bold]Member token[/]  {escape(_program())} token MEMBER\n"
            f"[bold]Data[/]          {escape(str(settings.data_dir))}"
        )
        out.print(Panel(lines, title="봉수 Bongsu is ready", border_style="green", expand=False), highlight=False)
    # Outside the box, so that it can be copied whole.
    for title, command in _hints(settings, address, is_demo=is_demo):
        out.print(f"[dim]{escape(title)}:[/]\n{escape(command)}", highlight=False, soft_wrap=True)


def _hints(settings: Settings, address: str, *, is_demo: bool) -> Sequence[tuple[str, str]]:
    """What to try, each with its title."""
    from bongsu import demo  # noqa: PLC0415

    if is_demo:
        return demo.hints(_program(), address)
    if not settings.is_embedded:
        return ()
    curl = (
        f'curl {address}/api/events -H "Authorization: Bearer $({_program()} apikey)" \\\n'
        """  -H 'Content-Type: application/json' -d '{"eventType":"product.updated","refId":"sku-1"}'"""
    )
    return (("A first event", curl),)


def _program() -> str:
    """How this program was called: it may lie in an environment that is not on the path."""
    return sys.argv[0] if "/" in sys.argv[0] and sys.argv[0].endswith("bongsu") else "bongsu"


@app.command()
def migrate(
    outbox: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Create the outbox table in this database of another service, and nothing else."),
    ] = None,
) -> None:
    """Bring the store's schema up to date; or create the outbox table in another service's database."""
    if outbox is not None:
        _create_outbox(outbox)
        return
    from bongsu.store import Store  # noqa: PLC0415
    from bongsu.store import migrate as apply  # noqa: PLC0415

    settings = Settings.load()

    async def work() -> tuple[str, str | None, str]:
        store = Store.open(settings)
        try:
            return store.location, *(await apply(store))
        finally:
            await store.close()

    location, before, after = run(work())
    if before == after:
        out.print(f"{escape(location)} is up to date at revision {after}.", highlight=False, soft_wrap=True)
    else:
        out.print(
            f"[green]Migrated[/] {location} from {before or 'nothing'} to revision {after}.", highlight=False, soft_wrap=True
        )


def _create_outbox(url: str) -> None:
    from bongsu.ingress.relay import open_outbox  # noqa: PLC0415

    database = open_outbox(url)

    async def work() -> bool:
        try:
            return await database.create()
        finally:
            await database.close()

    done = "Created bongsu_outbox in" if run(work()) else "bongsu_outbox is there already in"
    out.print(f"{done} {escape(database.location)}.", highlight=False, soft_wrap=True)


@app.command()
def token(
    member: Annotated[str, typer.Argument(help="The member's id.")],
    ttl: Annotated[str, typer.Option(help="How long it is valid: 30s, 15m, 1h, 7d.")] = "1h",
) -> None:
    """Print a token for a member's calls."""
    if not member:
        raise BadCommand("MEMBER is empty: name the member the token is for")
    typer.echo(Keys.load(Settings.load()).member_token(member, _duration(ttl)))


def _duration(text: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,15})([smhd])", text.strip())
    if match is None:
        raise BadCommand(f"--ttl {text}: give a number and s, m, h or d, such as 1h")
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[match[2]]
    try:
        duration = timedelta(**{unit: int(match[1])})
    except OverflowError:
        duration = timedelta.max
    if not timedelta(0) < duration <= timedelta(days=3650):
        raise BadCommand(f"--ttl {text}: give more than nothing and at most ten years")
    return duration


@app.command()
def apikey() -> None:
    """Print the API key for server calls."""
    typer.echo(Keys.load(Settings.load()).api_keys[0])


@app.command()
def publish(
    event_type: Annotated[str | None, typer.Argument(metavar="TYPE", help="Such as product.price_changed.")] = None,
    ref: Annotated[str | None, typer.Option(help="What it is about: the product, the post.")] = None,
    actor: Annotated[str | None, typer.Option(help="The member who did it.")] = None,
    target: Annotated[str | None, typer.Option(help="The member it was done to.")] = None,
    payload: Annotated[str, typer.Option(help="Details, as a JSON object.")] = "{}",
    event_id: Annotated[str | None, typer.Option("--id", help="A UUID; the same id is accepted once.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Events from a file, one JSON object a line; - reads a pipe. Run again, it adds nothing twice."),
    ] = None,
) -> None:
    """Publish an event, or a file of events."""
    from bongsu.cli import publish as publishing  # noqa: PLC0415

    if (event_type is None) == (file is None):
        raise BadCommand("Give either a TYPE or --file")
    settings = Settings.load()
    telemetry.configure_logs("WARNING")
    if file is not None:
        tally = run(publishing.publish_file(settings, file, err))
        _report(tally)
        return
    event = _event(event_type=event_type, ref_id=ref, actor_id=actor, target_id=target, payload=payload, event_id=event_id)
    is_new = run(publishing.publish_one(settings, event))
    typer.echo(f"{event.event_id} {'accepted' if is_new else 'duplicate'}")


def _event(**fields: Any) -> Event:
    try:
        fields["payload"] = json.loads(fields["payload"])
    except ValueError as error:
        raise BadCommand(f"--payload is not JSON: {error}") from None
    try:
        return Event(**{name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadEvent(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _report(tally: Any) -> None:
    for mistake in tally.errors:
        where = escape(".".join(map(str, mistake["loc"])))
        err.print(f"[red]line {mistake['line']}[/]: {where} {escape(mistake['msg'])}", highlight=False, soft_wrap=True)
    unnamed = tally.rejected - len(tally.errors)
    if unnamed:
        err.print(f"… and {unnamed} more bad lines")
    typer.echo(f"{tally.accepted} accepted, {tally.duplicates} duplicates, {tally.rejected} rejected")
    if tally.rejected:
        raise typer.Exit(1)


@app.command()
def load(
    what: Annotated[str, typer.Argument(help="behaviors")],
    file: Annotated[Path, typer.Option(help="One JSON object a line; - reads a pipe.")],
) -> None:
    """Load behaviours (what members did) from a file of any size."""
    from bongsu.cli import publish as publishing  # noqa: PLC0415

    if what != "behaviors":
        raise BadCommand(f"{what} cannot be loaded: only behaviors can")
    settings = Settings.load()
    telemetry.configure_logs("WARNING")
    _report(run(publishing.load_behaviors(settings, file, err)))


@app.command()
def why(
    member: Annotated[str, typer.Argument(help="The member's id.")],
    event: Annotated[str | None, typer.Option(help="Only what this event led to: its UUID.")] = None,
    limit: Annotated[int, typer.Option(help="How many at most, newest first.", min=1, max=200)] = 20,
    app_name: Annotated[str | None, typer.Option("--app", help="Your own rules, as `serve` is given them.")] = None,
) -> None:
    """Show what a member got, when and on which channels, and what they did not get and why."""
    from bongsu.cli.why_view import explain  # noqa: PLC0415
    from bongsu.rules import load_app  # noqa: PLC0415

    try:
        event_id = None if event is None else UUID(event)
    except ValueError:
        raise BadCommand(f"--event {event}: give the event's id, a UUID") from None
    own_rules = load_app(app_name) if app_name is not None else None
    telemetry.configure_logs("WARNING")
    run(explain(Settings.load(), member, event_id, limit, out, own_rules))


@app.command()
def simulator(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 9099,
    faults: Annotated[Path | None, typer.Option(help="What goes wrong, as JSON: docs/howto/simulator.md.")] = None,
) -> None:
    """Run an FCM that can fail on purpose; point BONGSU_FCM_URL at it."""
    from bongsu.simulator import serve as simulate  # noqa: PLC0415

    telemetry.configure_logs()
    run(simulate(host, port, faults))


@app.command()
def doctor(
    app_name: Annotated[str | None, typer.Option("--app", help="Your own rules, as `serve` is given them.")] = None,
) -> None:
    """Check settings, store, Redis, brokers, channels and credentials; print how to fix what is wrong."""
    from bongsu.cli.doctor_view import show_findings  # noqa: PLC0415
    from bongsu.desk.doctor import examine  # noqa: PLC0415

    findings = run(examine(app_name))
    show_findings(findings, out)
    if not all(finding.is_good for finding in findings):
        raise typer.Exit(1)
