"""What `bongsu dead` prints: a table of dead letters, the details of one, the progress of a replay.

`look` reads the store; the functions that make lines of it are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bongsu.api.dead import DeadFilter, DeadQuery, Replay, count_dead, find_dead, wrapped
from bongsu.cli.terminal import operator_name, plain, show
from bongsu.deliver.codes import meaning
from bongsu.errors import NoSuchDeadLetter
from bongsu.model import Member
from bongsu.model.channels import Address, describe_channel
from bongsu.service import runtime
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.deliveries.recovery import MOST_ROUNDS
from bongsu.store.desk import dead_letters
from bongsu.store.desk.dead_letters import DeadRow, Kind, State
from bongsu.store.desk.delivery_history import Attempt, find_attempts
from bongsu.store.members import address_of, find_member
from bongsu.store.members.devices import DeviceRow, find_devices
from bongsu.store.messages.content import MessageContent, find_content

_COLOURS = {State.FAILED: "red", State.UNHANDLED: "yellow", State.FAIL: "red", State.UNKNOWN: "magenta"}


def _time(settings: Settings, moment: datetime) -> str:
    return moment.astimezone(settings.zone).strftime("%Y-%m-%d %H:%M:%S")


# --- list -------------------------------------------------------------------------------------------------------------


async def show_list(settings: Settings, query: DeadQuery, console: Console) -> None:
    async with runtime(settings) as base:
        page = await find_dead(base.store, query)
    if not page.rows:
        console.print("No dead letters." if query.is_empty else "No dead letters that fit.")
        return
    show(console, table(settings, page.rows))
    if page.next is not None:
        console.print(f"More follow: --cursor {wrapped(page.next)}", highlight=False, soft_wrap=True)


def table(settings: Settings, rows: Sequence[DeadRow]) -> Table:
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
            _time(settings, row.died_at),
        )
    return shown


# --- show -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Story:
    """Everything known about one dead letter."""

    settings: Settings
    row: DeadRow
    content: MessageContent | None = None
    # The channel and the address, as far as it is known now.
    target: str = ""
    attempts: Sequence[Attempt] = ()


async def show_one(settings: Settings, asked: DeadFilter, console: Console) -> None:
    async with runtime(settings) as base:
        story = await look(settings, base.store, asked)
    for line in told(story):
        console.print(line, highlight=False, soft_wrap=not console.is_terminal)


async def look(settings: Settings, store: Store, asked: DeadFilter) -> Story:
    async with store.read() as tx:
        rows, _ = await dead_letters.find_page(tx, asked.filters, limit=1)
        if not rows:
            raise NoSuchDeadLetter(f"There is no dead letter {asked.id}")
        row = rows[0]
        if row.kind is Kind.EVENT:
            return Story(settings, row)
        assert row.message_id is not None
        assert row.member_id is not None
        contents = await find_content(tx, [row.message_id])
        attempts = await find_attempts(tx, [int(row.id)])
        member = await find_member(tx, row.member_id)
        devices = {one.device_id: one for one in await find_devices(tx, row.member_id)}
    target = f"{row.channel} to {_address(row, member, devices.get(row.device_id or ''))}"
    return Story(settings, row, contents.get(row.message_id), target, attempts.get(int(row.id), ()))


def _address(row: DeadRow, member: Member | None, device: DeviceRow | None) -> str:
    """What kind of address it was to go to, and whether it is still known. Not the address itself."""
    spec = describe_channel(row.channel or "")
    if spec.address is Address.DEVICES:
        stands = f"{device.device.platform.value}, {device.status.value}" if device else "gone"
        return f"{spec.address_name} {row.device_id} ({stands})"
    is_known = member is not None and address_of(member, spec) is not None
    return spec.address_name if is_known else f"{spec.address_name}, which is no longer known"


def told(story: Story) -> Iterator[Text]:
    """The page, line by line."""
    row = story.row
    code = f"  {plain(row.code)}" if row.code else ""
    yield Text.assemble(
        (f"{row.kind.value.capitalize()} {row.id}", "bold"), "  ", (row.state.value, _COLOURS[row.state]), code
    )
    for name, fact in facts(story):
        yield Text.assemble("  ", (f"{name:<9}", "dim"), plain(fact))
    for number, one in enumerate(story.attempts, 1):
        yield Text(f"  {f'try {number}':<9}{_time(story.settings, one.at)}, {one.millis} ms, {plain(one.code)}")
    yield Text.assemble("  ", (f"{'to do':<9}", "dim"), cure(row))
    yield Text(f"           bongsu dead replay --id {row.id}", "dim")


def facts(story: Story) -> Iterator[tuple[str, str]]:
    row, content, settings = story.row, story.content, story.settings
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
        yield "by", story.target
        yield "event", str(row.event_id)
        if content.expires_at is not None:
            yield "good", f"until {_time(settings, content.expires_at)}"
    yield "written", _time(settings, row.created_at)
    yield "died", _time(settings, row.died_at)
    if row.kind is Kind.EVENT:
        yield "tries", str(row.attempts)
    else:
        more = "the recovery job gives it another" if row.is_retryable and row.rounds < MOST_ROUNDS else "no more by itself"
        yield "rounds", f"{row.rounds} of {MOST_ROUNDS} given again, {more}"
        if not story.attempts:
            yield "tries", "none that was answered"


def cure(row: DeadRow) -> str:
    """What to do about it."""
    if row.state is State.UNHANDLED:
        return (
            "No rule handles its type. Correct the type where it is sent, or start the workers with the rule, then replay."
        )
    if row.kind is Kind.EVENT:
        return "Mend what the error names, then replay: it goes on where it was, and tells nobody twice."
    return meaning(row.code or "").cure


# --- replay -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replaying:
    """A replay asked for at the command line."""

    settings: Settings
    asked: DeadFilter
    new_series: bool = False

    async def count(self) -> int:
        async with runtime(self.settings) as base:
            return await count_dead(base.store, self.asked.filters)

    async def run(self, total: int, console: Console) -> tuple[int, int]:
        """Replay them, with a progress bar on a terminal."""
        columns = (
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        async with runtime(self.settings) as base:
            replay = Replay(base.store, base.signals, operator_name(), self.asked, new_series=self.new_series)
            with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
                task = progress.add_task("replaying", total=total)
                return await replay.run(lambda done: progress.advance(task, done))
