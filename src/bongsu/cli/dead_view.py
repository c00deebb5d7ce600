"""What `bongsu dead` prints: a table of dead letters, the details of one, the progress of a replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from zoneinfo import ZoneInfo

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bongsu.api.paging import encode_cursor
from bongsu.cli.terminal import local_time, operator_name, plain, print_lines, show
from bongsu.components import Runtime
from bongsu.deliver.codes import meaning
from bongsu.desk.dead_filter import DeadFilter
from bongsu.desk.dead_letters import Cursor, DeadLetter, DeadLetters, RejectedMessage, Replayed
from bongsu.desk.dead_sources import dead_letter_sources
from bongsu.desk.lists import fill_page
from bongsu.model.channels import Address, describe_channel
from bongsu.service import runtime
from bongsu.settings import Settings
from bongsu.store.core.dead_claims import release_dead_claims
from bongsu.store.deliveries.recovery import MOST_ROUNDS
from bongsu.store.desk.dead_letters import DeadRow, Kind, State
from bongsu.store.members import address_of

_COLOURS = {State.FAILED: "red", State.UNHANDLED: "yellow", State.FAIL: "red", State.UNKNOWN: "magenta"}


def _dead_letters(base: Runtime) -> DeadLetters:
    sources = dead_letter_sources(base.settings, base.store, base.signals)
    return DeadLetters(base.store, sources, base.settings.lease_seconds)


# --- list -------------------------------------------------------------------------------------------------------------


async def show_list(settings: Settings, asked: DeadFilter, after: Cursor | None, limit: int, console: Console) -> None:
    async with runtime(settings) as base:
        rows, end = await fill_page(partial(_dead_letters(base).list, asked), after, limit)
    if not rows:
        console.print("No dead letters." if asked.is_empty else "No dead letters that match.")
        return
    messages = [row for row in rows if isinstance(row, RejectedMessage)]
    stored = [row for row in rows if isinstance(row, DeadRow)]
    show(console, message_table(settings.zone, messages) if messages else table(settings.zone, stored))
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


def message_table(zone: ZoneInfo, rows: Sequence[RejectedMessage]) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("id", "queue", "type", "event", "error", "died"):
        shown.add_column(heading, overflow="fold")
    for row in rows:
        texts = (row.id, row.queue, row.type or "", row.event_id or "", row.error or "")
        died = local_time(row.rejected_at, zone) if row.rejected_at else ""
        shown.add_row(*(Text(plain(text)) for text in texts), died)
    return shown


# --- show -------------------------------------------------------------------------------------------------------------


async def show_one(settings: Settings, asked: DeadFilter, console: Console) -> None:
    """The one that `asked` names by its id."""
    async with runtime(settings) as base:
        letter = await _dead_letters(base).show(asked.id, asked.system)
    print_lines(console, lines_of(letter, settings.zone))


def lines_of(letter: DeadLetter | RejectedMessage, zone: ZoneInfo) -> Iterator[Text]:
    """The page, line by line."""
    return _message_lines(letter, zone) if isinstance(letter, RejectedMessage) else _stored_lines(letter, zone)


def _message_lines(letter: RejectedMessage, zone: ZoneInfo) -> Iterator[Text]:
    yield Text.assemble((f"Message {plain(letter.id)}", "bold"), "  ", (State.REJECTED.value, "red"))
    for name, fact in (
        ("error", letter.error),
        ("queue", letter.queue),
        ("type", letter.type),
        ("event", letter.event_id),
        ("written", letter.written_at and local_time(letter.written_at, zone)),
        ("died", letter.rejected_at and local_time(letter.rejected_at, zone)),
        ("body", letter.body),
    ):
        if fact:
            yield Text.assemble("  ", (f"{name:<9}", "dim"), plain(fact))
    yield Text.assemble(
        "  ", (f"{'to do':<9}", "dim"), "Correct what the error names where the message comes from, then replay."
    )
    yield Text(f"           bongsu dead replay --source {letter.system.value} --id {plain(letter.id)}", "dim")


def _stored_lines(letter: DeadLetter, zone: ZoneInfo) -> Iterator[Text]:
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
            return await _dead_letters(base).count(self.asked)

    async def run(self, total: int, console: Console) -> Replayed:
        """Replay them, with a progress bar on a terminal."""
        columns = (
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        async with runtime(self.settings) as base, release_dead_claims(base.store):
            with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
                task = progress.add_task("replaying", total=total)
                return await _dead_letters(base).replay(
                    self.asked,
                    operator_name(),
                    new_collapse_id=self.new_collapse_id,
                    progress=lambda matched: progress.update(task, completed=matched),
                )
