"""`bongsu event list` and `bongsu event show`, as an operator uses them."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from rich.console import Console

from bongsu.cli.events_view import facts, line, pace, watch
from bongsu.desk.lists import fill_page
from bongsu.desk.progress import EventFilter, ProgressSample, list_events
from bongsu.errors import NoSuchEvent
from bongsu.model import EventStatus, new_id
from bongsu.settings import Settings
from bongsu.store import Store, Transaction
from bongsu.store.desk import event_progress
from bongsu.store.desk.event_progress import Counts, EventProgress
from bongsu.store.outbox import EventRow
from tests.cli.test_dead import Do, typed
from tests.support.campaigns import add_cancellation, add_event, add_message, keep_counts
from tests.support.notifications import NOON, add_past_notification, add_past_suppression
from tests.support.processes import BONGSU, WAIT_SECONDS, bongsu
from tests.support.rows import set_columns

HOUR = timedelta(hours=1)


@pytest.fixture
def with_store(settings: Settings) -> Do:
    return Do(settings)


# --- list and show ----------------------------------------------------------------------------------------------------


async def fill(store: Store) -> tuple[UUID, UUID]:
    """A campaign under way and an event that failed, the older one."""
    async with store.transaction() as tx:
        failed = await add_event(
            tx, "order.paid", status="FAILED", target_id="m-1", error="said \x1b[31m: 'x'", attempts=4, created_at=NOON,
            finished_at=NOON,
        )  # fmt: skip
        event_id = await add_event(tx, "sale.started", status="DONE", ref_id="spring", created_at=NOON + HOUR)
        many = await add_message(tx, event_id, is_bulk=True, seconds_ago=1_000)
        await keep_counts(
            tx,
            many,
            {"": {"NOTIFIED": 990_000, "NO_ADDRESS": 10_000}, "PUSH": {"MADE": 900_000, "SUCCESS": 500_000, "FAIL": 1}},
        )
        few = await add_message(tx, event_id, 1)
        await add_past_notification(tx, few, "a", "SUCCESS", channel="EMAIL")
        await add_past_suppression(tx, few, "b", "DUPLICATE")
        await add_past_suppression(tx, few, "c", "MERGED")
    return event_id, failed


def test_an_operator_lists_events_and_looks_at_one(with_store: Do, environment: dict[str, str]) -> None:
    event_id, failed = with_store(fill)
    listed = bongsu("event", "list", environment=environment)
    heading, *lines = listed.stdout.splitlines()
    assert heading.split() == ["id", "status", "type", "target", "ref", "created"]
    assert [one.split()[:4] for one in lines] == [
        [str(event_id), "DONE", "sale.started", "spring"], [str(failed), "FAILED", "order.paid", "m-1"],
    ]  # fmt: skip

    shown = bongsu("event", "show", str(event_id), environment=environment)
    assert shown.returncode == 0
    first, *rest = shown.stdout.splitlines()
    assert first == f"Event {event_id}  DONE  sale.started"
    told = dict(one.strip().split(maxsplit=1) for one in rest)
    assert re.fullmatch(r"\d\d\d\.\d/s on average", told.pop("rate"))
    assert told.pop("ends").endswith("at this rate")
    assert told.pop("created").startswith("2026-03-01")
    assert told == {
        "ref": "spring", "decided": "1,000,003", "merged": "1 into digests",
        "suppressed": "NO_ADDRESS 10,000, DUPLICATE 1", "EMAIL": "SUCCESS 1",
        "PUSH": "READY 399,999, SUCCESS 500,000, FAIL 1",
    }  # fmt: skip
    shown = bongsu("event", "show", str(failed), environment=environment)
    assert ("error      said  [31m: 'x'" in shown.stdout, "\x1b" in shown.stdout) == (True, False)


def test_every_option_of_the_list_is_heeded(tmp_path: Path) -> None:
    event_id, failed = map(str, Do(Settings(data_dir=tmp_path))(fill))
    for options, found in (
        (("--type", "order.paid"), [failed]),
        (("--status", "failed"), [failed]),
        (("--target", "m-1"), [failed]),
        (("--from", "2026-03-01T13:00:00Z"), [event_id]),
        (("--to", "2026-03-01T22:00:00+09:00"), [failed]),
        (("--limit", "1"), [event_id]),
    ):
        shown = bongsu("event", "list", *options, environment={"BONGSU_DATA_DIR": str(tmp_path)}).stdout
        assert [one for one in (event_id, failed) if one in shown] == found, options
    cursor = shown.splitlines()[-1].removeprefix("More follow: --cursor ")
    rest = bongsu("event", "list", "--cursor", cursor, environment={"BONGSU_DATA_DIR": str(tmp_path)}).stdout
    assert (failed in rest, event_id in rest, "More follow" in rest) == (True, False, False)


async def test_the_list_goes_on_until_it_is_full(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One search looks at a bounded number of events; whoever sits at a terminal need not know."""
    monkeypatch.setitem(event_progress.find_page.__kwdefaults__, "scan_limit", 2)  # type: ignore[arg-type]
    async with store.transaction() as tx:
        rare = [await add_event(tx, "rare", created_at=NOON - number * HOUR) for number in range(3)]
        for number in range(1, 8):
            await add_event(tx, created_at=NOON + number * HOUR)
    listing = partial(list_events, store, EventFilter(type="rare"))
    rows, end = await fill_page(listing, None, 2)
    assert [row.event_id for row in rows] == rare[:2]
    rows, end = await fill_page(listing, end, 2)
    assert ([row.event_id for row in rows], end) == (rare[2:], None)


def test_what_cannot_be_done_is_one_line_that_names_the_cure(tmp_path: Path) -> None:
    environment = {"BONGSU_DATA_DIR": str(tmp_path)}
    unknown = str(new_id())
    for arguments, cure in (
        (("event", "show", unknown), f"There is no event {unknown}. `bongsu event list`"),
        (("event", "show", unknown, "--watch"), f"There is no event {unknown}. `bongsu event list`"),
        (("event", "show", "7"), "ID 7: give the event's id, a UUID"),
        (("event", "list", "--status", "sent"), "--status must be"),
        (("event", "list", "--target", ""), "--target"),
        (("event", "list", "--from", "today"), "--from must be a time with offset"),
        (("event", "list", "--cursor", "x"), "--cursor is not a cursor"),
    ):
        done = bongsu(*arguments, environment=environment)
        assert (done.returncode, done.stdout) == (1, ""), arguments
        assert done.stderr.startswith("bongsu: ")
        assert cure in done.stderr
        assert done.stderr.count("\n") == 1
    assert bongsu("event", "list", environment=environment).stdout == "No events.\n"
    assert bongsu("event", "list", "--status", "done", environment=environment).stdout == "No events that match.\n"


def progress(status: EventStatus = EventStatus.DONE, **deliveries: int) -> EventProgress:
    event = EventRow(event_id=new_id(), event_type="x", status=status, due=NOON, created_at=NOON)
    return EventProgress(event, NOON, Counts(7, {}, {"PUSH": deliveries} if deliveries else {}), seconds=10.0)


SEOUL = ZoneInfo("Asia/Seoul")


async def test_a_scheduled_and_a_cancelled_event_say_so(store: Store) -> None:
    assert dict(facts(replace(progress(EventStatus.PENDING), due_at=NOON + HOUR), SEOUL))["due"] == "2026-03-01 22:00:00"
    async with store.transaction() as tx:
        event_id = await add_event(tx, status="CANCELLED")
        await add_cancellation(tx, event_id, withdraw=True)
        found = await event_progress.find_progress(tx, event_id)
    assert found is not None
    (cancelled, who), (_, numbers) = list(facts(found, SEOUL))[-2:]
    assert (cancelled, who.endswith(" by key:…abcd")) == ("cancelled", True)
    assert numbers == "5 deliveries stopped, 7 sent before, 3 inbox rows withdrawn"


# --- watch ------------------------------------------------------------------------------------------------------------


def test_the_rate_is_that_between_two_looks() -> None:
    first = progress(SUCCESS=100, READY=900)
    # Two seconds later fifty more have an outcome, and ten were cancelled.
    second = replace(progress(SUCCESS=140, FAIL=6, UNKNOWN=4, CANCELLED=10, READY=800, SENDING=40), now=NOON + HOUR / 1_800)
    assert (ProgressSample(first).rate, ProgressSample(first).expected_end) == (10.0, NOON + timedelta(seconds=90))
    sample = ProgressSample(second, first)
    assert (sample.rate, sample.done) == (25.0, 160)
    assert sample.expected_end == second.now + timedelta(seconds=840 / 25)
    assert line(sample, SEOUL) == "DONE  7 decided  160 of 1,000 deliveries ended  25.0/s, ends 21:00:35"
    tomorrow = replace(second, counts=Counts(7, {}, {"PUSH": {"SUCCESS": 150, "READY": 10**6}}))
    assert pace(ProgressSample(tomorrow, first), SEOUL) == "25.0/s, ends 2026-03-02 08:06:42"
    # The store's clock was set back, or stood still.
    assert (ProgressSample(first, second).rate, ProgressSample(first, first).rate) == (None, None)
    # A replay makes deliveries wait again that had an outcome.
    back = ProgressSample(replace(first, now=second.now + HOUR), second)
    assert (back.rate, back.expected_end, pace(back, SEOUL)) == (0.0, None, "0.0/s")


def test_without_a_rate_there_is_less_to_say() -> None:
    assert line(ProgressSample(progress(EventStatus.PENDING)), SEOUL) == "PENDING  7 decided  0 of 0 deliveries ended"
    assert line(ProgressSample(progress(SUCCESS=3)), SEOUL) == "DONE  7 decided  3 of 3 deliveries ended"
    assert (
        line(ProgressSample(progress(SUCCESS=3), progress(SUCCESS=1)), SEOUL) == "DONE  7 decided  3 of 3 deliveries ended"
    )
    scheduled = replace(progress(EventStatus.PENDING), due_at=NOON)
    assert pace(ProgressSample(scheduled), SEOUL) == "due 2026-03-01 21:00:00"


class Campaign:
    """A campaign that gets one step further at each pause."""

    def __init__(self, store: Store, event_id: UUID) -> None:
        self._store = store
        self.event_id = event_id
        self._pauses = 0

    @classmethod
    async def begin(cls, store: Store) -> Campaign:
        async with store.transaction() as tx:
            event_id = await add_event(tx)
            message_id = await add_message(tx, event_id, is_bulk=True)
            await keep_counts(tx, message_id, {"": {"NOTIFIED": 30_000}, "PUSH": {"MADE": 20_000, "SUCCESS": 0}})
        return cls(store, event_id)

    async def pause(self) -> None:
        self._pauses += 1
        match self._pauses:
            case 1:
                await self._set_count("SUCCESS", 10_000)
            case 2:
                await self._set_count("MADE", 30_000)
                await set_columns(self._store, "events", {"event_id": self.event_id}, status="DONE")
            case _:
                await self._set_count("SUCCESS", 30_000)

    async def _set_count(self, what: str, count: int) -> None:
        await set_columns(self._store, "message_counts", {"category": what, "channel": "PUSH"}, count=count)


async def test_a_watch_prints_a_line_for_each_look_until_it_is_over(store: Store, settings: Settings) -> None:
    campaign, shown = await Campaign.begin(store), io.StringIO()
    await watch(settings, campaign.event_id, Console(file=shown), campaign.pause)
    lines = [re.sub(r"  [\d.,]+/s(, ends [\d :-]+)?$", "", one) for one in shown.getvalue().splitlines()]
    assert lines == [
        "PENDING  30,000 decided  0 of 20,000 deliveries ended",
        "PENDING  30,000 decided  10,000 of 20,000 deliveries ended",
        "DONE  30,000 decided  10,000 of 30,000 deliveries ended",
        "DONE  30,000 decided  30,000 of 30,000 deliveries ended",
    ]


async def test_on_a_terminal_a_watch_is_a_progress_bar_and_then_the_event(store: Store, settings: Settings) -> None:
    campaign, shown = await Campaign.begin(store), io.StringIO()
    console = Console(file=shown, force_terminal=True, width=100, color_system=None)
    await watch(settings, campaign.event_id, console, campaign.pause)
    bar, _, rest = shown.getvalue().rpartition("\x1b[?25h")
    assert "━" * 20 in bar
    assert "30,000/30,000" in bar
    assert rest.splitlines()[0].strip().startswith(f"Event {campaign.event_id}  DONE")
    assert "SUCCESS 30,000" in rest


async def test_an_event_that_does_not_exist_has_no_progress_bar(store: Store, settings: Settings) -> None:
    shown = io.StringIO()
    with pytest.raises(NoSuchEvent):
        await watch(settings, new_id(), Console(file=shown, force_terminal=True))
    assert shown.getvalue() == ""


async def add_finished(store: Store) -> UUID:
    async with store.transaction() as tx:
        return await _with_delivery(tx, "SUCCESS")


async def add_unfinished(store: Store) -> UUID:
    async with store.transaction() as tx:
        return await _with_delivery(tx, "READY")


async def _with_delivery(tx: Transaction, status: str) -> UUID:
    event_id = await add_event(tx, status="DONE")
    await add_past_notification(tx, await add_message(tx, event_id), "a", status)
    return event_id


def test_a_watch_of_what_is_over_ends_at_once(with_store: Do, environment: dict[str, str]) -> None:
    event_id = with_store(add_finished)
    done = bongsu("event", "show", str(event_id), "--watch", environment=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "DONE  1 decided  1 of 1 deliveries ended\n", "")
    terminal = {**environment, "TERM": "xterm", "COLUMNS": "100"}
    code, shown = typed("", "event", "show", str(event_id), "--watch", environment=terminal)
    assert (code, "━" in shown, "PUSH       SUCCESS 1" in shown) == (0, True, True)


def _heed_interrupts() -> None:
    """A shell that runs the tests in the background has made them ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_a_watch_quietly(with_store: Do, environment: dict[str, str]) -> None:
    event_id = with_store(add_unfinished)
    command = [*BONGSU, "event", "show", str(event_id), "--watch"]
    with subprocess.Popen(
        command,
        env={"PATH": os.environ["PATH"], **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509 (no threads run at this moment)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "DONE  1 decided  0 of 1 deliveries ended\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 130
        assert process.stderr.read() == ""
