"""What `bongsu dead` prints: a table of dead letters, the details of one, the progress of a replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bongsu.api.paging import encode_cursor
from bongsu.cli.terminal import local_time, operator_name, plain, print_lines, show
from bongsu.deliver.codes import meaning
from bongsu.desk.dead_letters import DeadFilter, DeadLetter, Replayed, StoreDeadLetters
from bongsu.desk.lists import fill_page
from bongsu.model.channels import Address, describe_channel
from bongsu.service import runtime
from bongsu.settings import Settings
from bongsu.store.core.dead_claims import release_dead_claims
from bongsu.store.deliveries.recovery import MOST_ROUNDS
from bongsu.store.desk.dead_letters import DeadRow, Kind, PageCursor, State
from bongsu.store.members import address_of

_COLOURS = {State.FAILED: "red", State.UNHANDLED: "yellow", State.FAIL: "red", State.UNKNOWN: "magenta"}


# --- list -------------------------------------------------------------------------------------------------------------


async def show_list(settings: Settings, asked: DeadFilter, after: PageCursor | None, limit: int, console: Console) -> None:
    async with runtime(settings) as base:
        dead_letters = StoreDeadLetters(base.store, base.signals)
        rows, end = await fill_page(partial(dead_letters.list, asked), after, limit)
    if not rows:
        console.print("No dead letters." if asked.is_empty else "No dead letters that match.")
        return
    show(console, table(settings.zone, rows))
    if end is not None:
        console.print(f"More follow: --cursor {encode_cursor(end)}", highlight=False, soft_wrap=True)


def table(zone: ZoneInfo, rows: Sequence[DeadRow]) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("id", "state", "code", "type", "member", "by", "tries", "died"):
        # On a narrow terminal it is folded and never cut: an id is there to be copied.
        shown.add_column(heading, no_wrap=heading == "state", overflow="fold")
    for row in rows:
        shown.add_row(
            row.id,
            Text(row.state.value, _COLOURS[row.state]),
            Text(plain(row.code or "")),
            Text(plain(row.type)),
            Text(plain(row.member_id or "")),
            row.channel if row.channel else row.kind.value,
            str(row.attempts),
            local_time(row.died_at, zone),
        )
    return shown


# --- show -------------------------------------------------------------------------------------------------------------


async def show_one(settings: Settings, dead_id: int | UUID, console: Console) -> None:
    async with runtime(settings) as base:
        letter = await StoreDeadLetters(base.store, base.signals).show(dead_id)
    print_lines(console, lines_of(letter, settings.zone))


def lines_of(letter: DeadLetter, zone: ZoneInfo) -> Iterator[Text]:
    """The page, line by line."""
    row = letter.row
    code = f"  {plain(row.code)}" if row.code else ""
    yield Text.assemble(
        (f"{row.kind.value.capitalize()} {row.id}", "bold"), "  ", (row.state.value, _COLOURS[row.state]), code
    )
    for name, fact in facts(letter, zone):
        yield Text.assemble("  ", (f"{name:<9}", "dim"), plain(fact))
    for number, attempt in enumerate(letter.attempts, 1):
        yield Text(f"  {f'try {number}':<9}{local_time(attempt.at, zone)}, {attempt.millis} ms, {plain(attempt.code)}")
    yield Text.assemble("  ", (f"{'to do':<9}", "dim"), cure(row))
    yield Text(f"           bongsu dead replay --id {row.id}", "dim")


def facts(letter: DeadLetter, zone: ZoneInfo) -> Iterator[tuple[str, str]]:
    row, content = letter.row, letter.content
    if row.kind is Kind.DELIVERY and row.code:
        yield "means", meaning(row.code).means
    if row.error:
        yield "error" if row.kind is Kind.EVENT else "detail", row.error
    if content is None:
        yield "type", row.type
    else:
        yield "type", f"{row.type}, {content.guarantee.value}"
        yield "title", content.title
        yield "body", content.body
        yield "member", row.member_id or ""
        yield "by", f"{row.channel} to {_address(letter)}"
        yield "event", str(row.event_id)
        if content.expires_at is not None:
            yield "expires", f"{local_time(content.expires_at, zone)}"
    yield "written", local_time(row.created_at, zone)
    yield "died", local_time(row.died_at, zone)
    if row.kind is Kind.EVENT:
        yield "tries", str(row.attempts)
    else:
        more = "the recovery job gives it another" if row.is_retryable and row.rounds < MOST_ROUNDS else "no more by itself"
        yield "rounds", f"{row.rounds} of {MOST_ROUNDS} given again, {more}"
        if not letter.attempts:
            yield "tries", "none that was answered"


def _address(letter: DeadLetter) -> str:
    """What kind of address it was to go to, and whether it is still known. Not the address itself."""
    row, device = letter.row, letter.device
    spec = describe_channel(row.channel or "")
    if spec.address is Address.DEVICES:
        state = f"{device.device.platform.value}, {device.status.value}" if device else "gone"
        return f"{spec.address_name} {row.device_id} ({state})"
    is_known = letter.member is not None and address_of(letter.member, spec) is not None
    return spec.address_name if is_known else f"{spec.address_name}, which is no longer known"


def cure(row: DeadRow) -> str:
    """What to do about it."""
    if row.state is State.UNHANDLED:
        return (
            "No rule handles its type. Correct the type where it is sent, or start the workers with the rule, then replay."
        )
    if row.kind is Kind.EVENT:
        return "Correct what the error names, then replay: it goes on where it was, and notifies no member twice."
    return meaning(row.code or "").cure


# --- replay -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReplayCommand:
    """A replay asked for at the command line."""

    settings: Settings
    asked: DeadFilter
    new_collapse_id: bool = False

    async def count(self) -> int:
        async with runtime(self.settings) as base:
            return await StoreDeadLetters(base.store, base.signals).count(self.asked)

    async def run(self, total: int, console: Console) -> Replayed:
        """Replay them, with a progress bar on a terminal."""
        columns = (
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        async with runtime(self.settings) as base, release_dead_claims(base.store):
            dead_letters = StoreDeadLetters(base.store, base.signals, self.settings.lease_seconds)
            with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
                task = progress.add_task("replaying", total=total)
                return await dead_letters.replay(
                    self.asked,
                    operator_name(),
                    new_collapse_id=self.new_collapse_id,
                    progress=lambda matched: progress.update(task, completed=matched),
                )
