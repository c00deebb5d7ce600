"""How far an event has come: every number, kept or counted; pages of events against a plain model; what is read for it."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any
from uuid import UUID

import pytest

from bongsu.model import EventStatus, new_id
from bongsu.store import Store, Transaction
from bongsu.store.core.clock import find_now
from bongsu.store.core.query import same
from bongsu.store.desk.cancellations import Cancellation
from bongsu.store.desk.event_progress import (
    COUNTS,
    FIND,
    FLOOR,
    PAGE,
    Counts,
    EventProgress,
    Filters,
    PageCursor,
    find_page,
    find_progress,
)
from bongsu.store.outbox import EventRow
from tests.support.campaigns import add_cancellation, add_event, add_message, keep_counts
from tests.support.notifications import (
    NOON,
    add_many_deliveries,
    add_many_recipients,
    add_past_notification,
    add_past_suppression,
)
from tests.support.plans import generic_plan, keep_statistics, rows_read
from tests.support.rows import NOW, Sql, add_delivery_for_each, add_for_each, set_columns

HOUR = timedelta(hours=1)


async def progress_of(tx: Transaction, event_id: UUID) -> EventProgress:
    progress = await find_progress(tx, event_id)
    assert progress is not None
    return progress


# --- counts -----------------------------------------------------------------------------------------------------------


async def test_rows_of_every_notice_are_counted(store: Store) -> None:
    async with store.transaction() as tx:
        event_id = await add_event(tx)
        first, second = [await add_message(tx, event_id, notice) for notice in (0, 1)]
        await add_past_notification(tx, first, "a", "SUCCESS", "FAIL")
        await add_past_notification(tx, first, "b", "READY")
        await add_past_notification(tx, first, "c", "SENDING", channel="EMAIL")
        await add_past_notification(tx, first, "d")
        await add_past_suppression(tx, first, "e", "RATE_LIMITED")
        await add_past_suppression(tx, first, "f", "NO_ADDRESS")
        await add_past_notification(tx, second, "a", "SUCCESS", "UNKNOWN", "CANCELLED")
        await add_past_suppression(tx, second, "e", "RATE_LIMITED")
        await add_past_suppression(tx, second, "f", "DUPLICATE")
        await add_past_suppression(tx, second, "g", "USER_OPTED_OUT")
        # Of another event.
        other = await add_message(tx, await add_event(tx))
        await add_past_notification(tx, other, "a", "SUCCESS")
        await add_past_suppression(tx, other, "b", "DUPLICATE")
        counts = (await progress_of(tx, event_id)).counts
    assert counts == Counts(
        notified=5,
        suppressed={"USER_OPTED_OUT": 1, "NO_ADDRESS": 1, "DUPLICATE": 1, "RATE_LIMITED": 2},
        deliveries={
            "EMAIL": {"SENDING": 1},
            "PUSH": {"READY": 1, "SUCCESS": 2, "FAIL": 1, "UNKNOWN": 1, "CANCELLED": 1},
        },
    )
    assert (counts.decided, counts.made, counts.waiting, counts.answered) == (10, 7, 2, 4)


async def test_counts_that_are_kept_are_read_instead_of_rows(store: Store) -> None:
    async with store.transaction() as tx:
        event_id = await add_event(tx)
        first, second = [await add_message(tx, event_id, notice, is_bulk=True) for notice in (0, 1)]
        await keep_counts(
            tx,
            first,
            {
                "": {"NOTIFIED": 900_000, "IN_INBOX": 800_000, "NO_ADDRESS": 40_000, "USER_OPTED_OUT": 60_000},
                "PUSH": {"MADE": 850_000, "SUCCESS": 700_000, "FAIL": 20_000, "UNKNOWN": 1_000, "CANCELLED": 9_000},
                "SMS": {"MADE": 3},
            },
        )
        await keep_counts(tx, second, {"": {"NOTIFIED": 10, "NO_ADDRESS": 5}, "PUSH": {"MADE": 10, "SUCCESS": 4}})
        # Rows that would be counted as well if they were looked at.
        await add_past_notification(tx, first, "a", "FAIL", "READY", "SENDING")
        await add_past_suppression(tx, first, "b", "DUPLICATE")
        counts = (await progress_of(tx, event_id)).counts
    assert counts == Counts(
        notified=900_010,
        suppressed={"USER_OPTED_OUT": 60_000, "NO_ADDRESS": 40_005},
        deliveries={
            "PUSH": {"READY": 120_006, "SUCCESS": 700_004, "FAIL": 20_000, "UNKNOWN": 1_000, "CANCELLED": 9_000},
            "SMS": {"READY": 3},
        },
    )
    assert (counts.decided, counts.made, counts.waiting, counts.answered) == (1_000_015, 850_013, 120_009, 721_004)


async def test_kept_and_counted_numbers_of_one_event_are_added(store: Store) -> None:
    async with store.transaction() as tx:
        event_id = await add_event(tx)
        many = await add_message(tx, event_id, 0, is_bulk=True)
        few = await add_message(tx, event_id, 1)
        await keep_counts(tx, many, {"": {"NOTIFIED": 20_000, "DUPLICATE": 7}, "PUSH": {"MADE": 20_000, "SUCCESS": 19_000}})
        await keep_counts(tx, few, {"": {"NOTIFIED": 5}, "PUSH": {"MADE": 5}})  # not read: it is not bulk
        await add_past_notification(tx, few, "a", "SUCCESS", "READY", "SENDING")
        await add_past_suppression(tx, few, "b", "DUPLICATE")
        counts = (await progress_of(tx, event_id)).counts
    assert counts == Counts(20_001, {"DUPLICATE": 8}, {"PUSH": {"READY": 1_001, "SENDING": 1, "SUCCESS": 19_001}})


async def test_no_number_is_negative(store: Store) -> None:
    """Whatever is wrong with the counts."""
    async with store.transaction() as tx:
        event_id = await add_event(tx)
        await keep_counts(
            tx, await add_message(tx, event_id, is_bulk=True), {"PUSH": {"MADE": 10, "SUCCESS": 8, "FAIL": 3, "UNKNOWN": 0}}
        )
        few = await add_message(tx, event_id, 1)
        await add_past_notification(tx, few, "a", "READY", "READY")
        counts = (await progress_of(tx, event_id)).counts
    assert counts == Counts(1, {}, {"PUSH": {"READY": 2, "SUCCESS": 8, "FAIL": 3}})


async def test_an_event_without_messages_has_no_numbers(store: Store) -> None:
    async with store.transaction() as tx:
        event_id = await add_event(
            tx, "order.paid", actor_id="a", target_id="t", ref_id="r", attempts=2, error="KeyError: 'x'", due=NOON,
            created_at=NOON,
        )  # fmt: skip
        progress = await progress_of(tx, event_id)
        assert await find_progress(tx, new_id()) is None
    assert progress.event == EventRow(
        event_id=event_id, event_type="order.paid", status=EventStatus.PENDING, actor_id="a", target_id="t", ref_id="r",
        attempts=2, error="KeyError: 'x'", due=NOON, created_at=NOON,
    )  # fmt: skip
    assert (progress.counts, progress.seconds, progress.cancellation, progress.due_at) == (Counts(), None, None, None)
    assert (progress.counts.decided, progress.counts.made, progress.counts.waiting) == (0, 0, 0)
    assert (progress.rate_per_second, progress.expected_end) == (None, None)
    assert not progress.is_over


# --- times ------------------------------------------------------------------------------------------------------------


async def test_an_event_is_due_ahead_unless_it_is_claimed_or_finished(store: Store) -> None:
    now = datetime.now(UTC).replace(microsecond=5)
    for columns, due_at in (
        ({"due": now + HOUR}, now + HOUR),
        ({"due": now - HOUR}, None),
        ({"due": now + HOUR, "leased_by": "w"}, None),
        ({"due": now + HOUR, "status": "CANCELLED", "finished_at": now}, None),
    ):
        async with store.transaction() as tx:
            progress = await progress_of(tx, await add_event(tx, **columns))
        assert progress.due_at == due_at, columns
        assert progress.event.finished_at == columns.get("finished_at")


async def test_time_is_counted_from_the_first_message_by_the_stores_clock(store: Store) -> None:
    async with store.transaction() as tx:
        event_id = await add_event(tx)
        for notice, seconds in enumerate((50, 100, 10)):
            message_id = await add_message(tx, event_id, notice, seconds_ago=seconds)
            await add_past_notification(tx, message_id, "a", "SUCCESS", "FAIL", "READY", "CANCELLED")
        progress = await progress_of(tx, event_id)
        (row,) = await tx.fetch(same("SELECT min(created_at) AS first FROM bongsu_messages")())
        until = await find_now(tx)
    first = tx.dialect.time(row["first"])
    assert progress.seconds is not None
    assert progress.seconds >= 100
    assert progress.seconds == pytest.approx((progress.now - first).total_seconds())
    assert first < progress.now <= until
    assert progress.rate_per_second == 6 / progress.seconds
    assert progress.expected_end == progress.now + timedelta(seconds=3 / (6 / progress.seconds))


def made_of(seconds: float | None, **deliveries: int) -> EventProgress:
    event = EventRow(event_id=new_id(), event_type="x", status=EventStatus.DONE, due=NOON, created_at=NOON, finished_at=NOON)
    return EventProgress(event, NOON, Counts(deliveries={"PUSH": deliveries}), seconds=seconds)


def test_rate_and_end_are_known_while_some_wait_and_some_have_an_outcome() -> None:
    for progress, rate, seconds_left in (
        (made_of(100, SUCCESS=150, FAIL=40, UNKNOWN=10, CANCELLED=99, READY=50, SENDING=10), 2.0, 30),
        (made_of(0.5, SUCCESS=100, READY=1_000), 200.0, 5),
        (made_of(100, SUCCESS=200), None, None),  # none waits
        (made_of(100, READY=200, CANCELLED=5), None, None),  # none has an outcome
        (made_of(None), None, None),
        (made_of(0.0, SUCCESS=1, READY=1), None, None),
        (made_of(-3.0, SUCCESS=1, READY=1), None, None),  # the store's clock was set back
        (made_of(1e9, SUCCESS=1, READY=10**9), 1e-9, None),  # in thirty million years
    ):
        assert progress.rate_per_second == rate
        assert progress.expected_end == (None if seconds_left is None else NOON + timedelta(seconds=seconds_left))


def test_an_event_ends_no_sooner_than_its_last_delivery_is_due() -> None:
    due = NOON + timedelta(seconds=20)
    for progress, seconds_left in (
        (made_of(100, READY=50), 20),
        (made_of(100, SUCCESS=200, READY=10), 20),
        (made_of(100, SUCCESS=200, READY=60), 30),
        (made_of(100, SUCCESS=200), None),
    ):
        end = replace(progress, last_due=due).expected_end
        assert end == (None if seconds_left is None else NOON + timedelta(seconds=seconds_left))
    assert replace(made_of(100, READY=50), last_due=NOON - HOUR).expected_end is None


async def test_due_times_are_spread_by_member_so_the_last_members_show_the_end(store: Store) -> None:
    due = datetime.now(UTC).replace(microsecond=5) + HOUR
    due_times = {"a": timedelta(minutes=1), "b": timedelta(minutes=2), "c": due, "e": due + HOUR}
    async with store.transaction() as tx:
        event_id = await add_event(tx)
        for notice in range(2):
            message_id = await add_message(tx, event_id, notice)
            for member_id in ("a", "b", "c"):
                await add_past_notification(tx, message_id, member_id, "READY")
            # In the inbox alone, and one that has ended.
            await add_past_notification(tx, message_id, "d")
            await add_past_notification(tx, message_id, "e", "SUCCESS")
        for member_id, due_at in due_times.items():
            await set_columns(tx, "deliveries", {"member_id": member_id}, due=due_at)
        progress = await progress_of(tx, event_id)
    assert progress.last_due == progress.expected_end == due


def test_an_event_is_over_when_it_is_finished_and_nothing_waits() -> None:
    waiting, ended = made_of(1, READY=1), made_of(1, SUCCESS=1)
    assert (waiting.is_over, ended.is_over) == (False, True)
    for status in EventStatus:
        event = replace(ended.event, status=status)
        assert replace(ended, event=event).is_over == (status is not EventStatus.PENDING)


@pytest.mark.parametrize("withdraw", [False, True])
async def test_a_cancellation_is_shown_with_what_it_stopped(store: Store, withdraw: bool) -> None:
    async with store.transaction() as tx:
        event_id = await add_event(tx, status="CANCELLED")
        await add_cancellation(tx, event_id, withdraw=withdraw)
        progress = await progress_of(tx, event_id)
    one = progress.cancellation
    assert one is not None
    assert progress.now - one.requested_at < timedelta(seconds=20)
    withdrawn = 3 if withdraw else 0
    assert one == Cancellation(event_id, one.requested_at, "key:…abcd", withdraw, 5, 7, withdrawn, is_finished=False)


# --- pages ------------------------------------------------------------------------------------------------------------

SOME_TYPE, SOME_TARGET = "order.paid", "t-1"


async def some_events(tx: Transaction) -> list[EventRow]:
    """Sixty events; up to three of the same moment, which their ids tell apart."""
    dice = random.Random(7)
    rows = []
    for number in range(60):
        created_at = NOON + (number // 3) * HOUR
        status = dice.choice(list(EventStatus))
        target_id = dice.choice([SOME_TARGET, "t-2", None])
        event_type = dice.choice([SOME_TYPE, "order.shipped"])
        row = EventRow(
            event_id=new_id(),
            event_type=event_type,
            status=status,
            target_id=target_id,
            due=created_at,
            created_at=created_at,
        )
        fields = {"target_id": target_id, "due": created_at, "created_at": created_at}
        event_id = await add_event(tx, event_type, status=status.value, **fields)
        rows.append(replace(row, event_id=event_id))
    return sorted(rows, key=lambda row: (row.created_at, row.event_id), reverse=True)


def fits(row: EventRow, asked: Filters) -> bool:
    return (
        asked.type in (None, row.event_type)
        and asked.status in (None, row.status)
        and asked.target_id in (None, row.target_id)
        and (asked.since is None or asked.since <= row.created_at)
        and (asked.until is None or row.created_at < asked.until)
    )


async def pages(tx: Transaction, filters: Filters, limit: int, scan_limit: int) -> list[list[EventRow]]:
    """All that match, a page after the other."""
    page = await find_page(tx, filters, None, limit, scan_limit=scan_limit)
    found = [page.rows]
    while page.next is not None:
        page = await find_page(tx, filters, page.next, limit, scan_limit=scan_limit)
        found.append(page.rows)
    return found


async def test_every_filter_finds_exactly_what_matches_in_pages_of_any_size(store: Store) -> None:
    choices: dict[str, Sequence[Any]] = {
        "type": (None, SOME_TYPE, "nothing"),
        "status": (None, EventStatus.FAILED),
        "target_id": (None, SOME_TARGET),
        "since": (None, NOON + 5 * HOUR),
        "until": (None, NOON + 15 * HOUR),
    }
    async with store.transaction() as tx:
        known = await some_events(tx)
        for values in product(*choices.values()):
            filters = Filters(**dict(zip(choices, values, strict=True)))
            expected = [row for row in known if fits(row, filters)]
            for limit, scan_limit in ((100, 1_000), (7, 1_000), (7, 20), (4, 2), (1, 1)):
                found = await pages(tx, filters, limit, scan_limit)
                assert [row for page in found for row in page] == expected, (filters, limit, scan_limit)
                assert all(len(page) <= limit for page in found)


async def test_a_page_looks_at_no_more_events_than_it_may(store: Store) -> None:
    async with store.transaction() as tx:
        known = await some_events(tx)
        rare = await add_event(tx, "rare", created_at=NOON - HOUR)
        found = await pages(tx, Filters(type="rare"), 5, scan_limit=20)
        assert [[row.event_id for row in page] for page in found] == [[], [], [], [rare]]
        page = await find_page(tx, Filters(type="rare"), None, 5, scan_limit=20)
    # The next page begins behind the last that was looked at.
    assert page.next == PageCursor(known[19].created_at, known[19].event_id)


async def test_a_page_that_is_full_to_the_last_row_is_the_last(store: Store) -> None:
    async with store.transaction() as tx:
        known = await some_events(tx)
        for filters in (Filters(), Filters(until=NOON + 99 * HOUR)):
            page = await find_page(tx, filters, None, len(known))
            assert (page.rows, page.next) == (known, None)


# --- plans ------------------------------------------------------------------------------------------------------------

# Cancellations are few here. SQLite says SCAN of what it makes itself, too: the messages of the event, and the numbers.
WHOLE_TABLE = re.compile(
    r"Seq Scan on bongsu_(?!cancellations)|TEMP B-TREE FOR ORDER|SCAN (e|c|n|s|d|bongsu_\w+)( USING .*INDEX \w+)?$",
    re.MULTILINE,
)


async def test_everything_is_found_by_an_index(store: Store) -> None:
    """Also when one message has nearly all rows of a table."""
    async with store.transaction() as tx:
        event_id = await add_event(tx)
        await add_many_recipients(tx, await add_message(tx, new_id()), 10_000)
        await add_past_notification(tx, await add_message(tx, event_id), "a", "SUCCESS")
        await add_delivery_for_each(tx, "notifications", status="SUCCESS")
        await add_for_each(tx, "events", "notifications", created_at=NOW)
        counts = {"message_id": Sql("notification_id + 10"), "channel": "PUSH", "category": "MADE", "count": 1}
        await add_for_each(tx, "message_counts", "notifications", **counts)
        await add_for_each(tx, "messages", "events", event_id=Sql("event_id"), notice_index=1, created_at=Sql("created_at"))
    async with store.transaction() as tx:
        await tx.execute(same("ANALYZE")())
    for statement in (FIND, COUNTS, FLOOR, PAGE):
        steps = await generic_plan(store, statement)
        assert not WHOLE_TABLE.search(steps), steps
    for statement in (FLOOR, PAGE):
        assert "bongsu_events_created" in await generic_plan(store, statement)


RUNNING = 10_000


@pytest.mark.parametrize("is_analysed", [False, True])
async def test_progress_of_a_running_campaign_reads_the_rows_of_its_last_members(store: Store, is_analysed: bool) -> None:
    """On statistics from before the campaign, and on fresh ones."""
    if store.dialect.name == "sqlite":
        return
    async with store.transaction() as tx:
        before = await add_event(tx)
        await add_past_notification(tx, await add_message(tx, before), "a", "SUCCESS")
        over = await add_message(tx, before, 1, is_bulk=True)
        await add_many_recipients(tx, over, RUNNING)
        await add_many_deliveries(tx, over, "SUCCESS")
    await keep_statistics(store)
    async with store.transaction() as tx:
        campaign = await add_event(tx)
        for notice in range(2):
            message_id = await add_message(tx, campaign, notice, is_bulk=True)
            await add_many_recipients(tx, message_id, RUNNING)
            await add_many_deliveries(tx, message_id, "READY")
    if is_analysed:
        async with store.single() as tx:
            await tx.execute(same("ANALYZE")())
    for event_id in (before, campaign):
        # The last fifty of two messages with one delivery each, the messages twice, the event.
        assert await rows_read(store, FIND(event_id)) <= 2 * 50 * 2 + 10
        assert await rows_read(store, COUNTS(event_id)) <= 20
