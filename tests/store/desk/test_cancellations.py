"""Cancelling in the store: what `begin` answers and stops, what `step` changes, and who waits for whom."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from bongsu.decide.worker import EventWorker
from bongsu.model import EventStatus, Everyone, NoticeType, Selected, new_id, utc_now
from bongsu.rules import Rules
from bongsu.settings import Settings
from bongsu.store import Store, inbox
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import ClaimedDelivery, DeliveryResult, DeliveryStatus, Success, recovery
from bongsu.store.desk import cancel_steps
from bongsu.store.desk.cancellations import Cancellation, NothingLeft
from bongsu.store.ranks import RANKS
from tests.support import replays
from tests.support.campaigns import add_event, add_message, keep_counts
from tests.support.cancellations import (
    SALE,
    add_members_with_devices,
    cancel_counts,
    counts_are_exact,
    decide_campaign,
    event_status,
    in_inboxes,
    request_cancel,
    run_cancel_steps,
    run_statement,
    statuses,
)
from tests.support.decisions import Clock, ClockedDecider, decide, rows, rules_notifying, tick_until_work, trigger_event
from tests.support.deliveries import claim
from tests.support.notifications import add_past_notification
from tests.support.outbox import add_events
from tests.support.rows import Sql, set_columns

MORE = NoticeType("MORE", SALE.channels, duplicate_hours=0)
AHEAD = timedelta(seconds=30)
_UNREAD = Sql("""(
    SELECT count(*) FROM bongsu_notifications AS n
    WHERE n.member_id = bongsu_members.member_id AND n.read_at IS NULL AND n.channels & 8 <> 0)""")


async def record(store: Store, claimed: ClaimedDelivery, status: DeliveryStatus) -> None:
    result: DeliveryResult | Success = DeliveryResult(
        claimed.delivery_id, claimed.epoch, status, "X", bulk_message=claimed.message_id
    )
    if status is DeliveryStatus.SUCCESS:
        result = Success(claimed.delivery_id, claimed.epoch, time.monotonic(), 1, bulk_message=claimed.message_id)
    assert await statements.record(store, "PUSH", [result]) == {claimed.delivery_id}


async def replay(store: Store, event_id: UUID) -> None:
    await replays.replay(store, {"eventId": event_id})


async def small_event(store: Store, *states: str, **columns: Any) -> UUID:
    """A delivery of each of these states, and two more members who have it in the inbox alone."""
    async with store.transaction() as tx:
        event_id = await add_event(tx, **{"status": "DONE", **columns})
        message_id = await add_message(tx, event_id)
        for number, state in enumerate(states):
            await add_past_notification(tx, message_id, f"m-{number}", state)
        await add_past_notification(tx, message_id, "n-1")
        await add_past_notification(tx, message_id, "n-2")
        # As deciding counts them.
        await set_columns(tx, "members", unread=_UNREAD)
    return event_id


EVERY_STATE = ("READY", "READY", "SENDING", "SENDING", "SUCCESS", "FAIL", "FAIL", "UNKNOWN")


# --- begin: its figures -------------------------------------------------------------------------------------------------


async def test_a_small_event_is_counted_row_by_row(store: Store, settings: Settings) -> None:
    event_id = await small_event(store, *EVERY_STATE)
    done = await request_cancel(store, event_id, "cli:mina")
    assert isinstance(done, Cancellation)
    assert (done.event_id, done.requested_by, done.withdraw, done.is_finished) == (event_id, "cli:mina", False, False)
    assert abs(done.requested_at - utc_now()) < timedelta(minutes=1)
    assert (done.cancelled, done.sent, done.withdrawn) == (2, 4, 0)
    assert await event_status(store, event_id) == "CANCELLED"
    # Asked again, by whomever, the answer is the same.
    assert await request_cancel(store, event_id, "cli:jun") == done


async def test_with_withdraw_it_counts_the_inbox_rows_too(store: Store, settings: Settings) -> None:
    event_id = await small_event(store, *EVERY_STATE)
    assert await cancel_counts(store, event_id, withdraw=True) == (2, 4, 10)
    await run_cancel_steps(store)
    # Asked for less later, the answer is what was done.
    assert await cancel_counts(store, event_id) == (2, 4, 10)
    assert await cancel_counts(store, event_id, withdraw=True) == (2, 4, 10)


async def test_a_large_event_is_counted_by_its_kept_counts(store: Store, settings: Settings) -> None:
    """There is no delivery that could be counted but those being sent, of every channel and rank."""
    async with store.transaction() as tx:
        event_id = await add_event(tx)
        many = await add_message(tx, event_id, is_bulk=True)
        await keep_counts(tx, many, {"": {"NOTIFIED": 990_000, "IN_INBOX": 980_000, "NO_ADDRESS": 10_000}})
        await keep_counts(tx, many, {"PUSH": {"MADE": 900_000, "SUCCESS": 400_000, "FAIL": 7, "UNKNOWN": 3}})
        await keep_counts(tx, many, {"SMS": {"MADE": 50, "SUCCESS": 20}})
        leased: dict[str, Any] = {"due": utc_now() + AHEAD}
        for rank in RANKS:
            await add_past_notification(tx, many, f"p-{rank}", "SENDING", rank=rank, **leased)
        await add_past_notification(tx, many, "s", "SENDING", channel="SMS", **leased)
        # They wait, one of them because it is paced: the counts have them already.
        await add_past_notification(tx, many, "r", "READY")
        await add_past_notification(tx, many, "q", "READY", **leased)
        few = await add_message(tx, event_id, 1)
        await add_past_notification(tx, few, "f", "READY", "SUCCESS")
        # Of another event.
        other = await add_message(tx, await add_event(tx), is_bulk=True)
        await add_past_notification(tx, other, "o", "SENDING", **leased)
    sending, succeeded = len(RANKS) + 1, 400_020
    assert await cancel_counts(store, event_id, withdraw=True) == (
        900_050 - succeeded - 7 - 3 - sending + 1,
        succeeded + 3 + sending + 1,
        980_000 + 1,
    )


@pytest.mark.parametrize("chunk", [3, 100])
async def test_the_figures_are_those_of_the_table(store: Store, settings: Settings, chunk: int) -> None:
    """A campaign of one step, whose rows are counted, and one of four, whose counts are kept."""
    event_id = await decide_campaign(store, settings, 10, chunk)
    one, two, three, four, _ = await claim(store, 5)
    await record(store, one, DeliveryStatus.FAIL)
    await record(store, two, DeliveryStatus.UNKNOWN)
    await record(store, three, DeliveryStatus.READY)
    await record(store, four, DeliveryStatus.SUCCESS)
    before = await statuses(store)
    assert before == {"READY": 6, "SENDING": 1, "FAIL": 1, "UNKNOWN": 1, "SUCCESS": 1}
    assert await cancel_counts(store, event_id, withdraw=True) == (6, 3, 10)
    await run_cancel_steps(store, 4)
    assert await statuses(store) == {"CANCELLED": 6, "SENDING": 1, "FAIL": 1, "UNKNOWN": 1, "SUCCESS": 1}
    assert await counts_are_exact(store)


# --- begin: what can be cancelled -----------------------------------------------------------------------------------------


async def test_an_unknown_event_is_none(store: Store, settings: Settings) -> None:
    assert await request_cancel(store, new_id()) is None
    assert await request_cancel(store, new_id(), withdraw=True) is None


@pytest.mark.parametrize("status", ["DONE", "FAILED", "UNHANDLED"])
async def test_where_nothing_is_left_nothing_is_changed(store: Store, settings: Settings, status: str) -> None:
    event_id = await small_event(store, "SUCCESS", "FAIL", "UNKNOWN", status=status)
    assert await request_cancel(store, event_id) == NothingLeft(EventStatus(status))
    assert await event_status(store, event_id) == status
    assert await rows(store, "SELECT event_id FROM bongsu_cancellations") == []
    assert await rows(store, "SELECT message_id FROM bongsu_messages WHERE cancelled_at IS NOT NULL") == []


@pytest.mark.parametrize("status", ["DONE", "FAILED", "UNHANDLED"])
async def test_what_is_finished_can_be_withdrawn(store: Store, settings: Settings, status: str) -> None:
    event_id = await small_event(store, "SUCCESS", "FAIL", status=status)
    assert await cancel_counts(store, event_id, withdraw=True) == (0, 1, 4)
    assert await event_status(store, event_id) == "CANCELLED"
    await run_cancel_steps(store)
    assert await in_inboxes(store) == 0


@pytest.mark.parametrize("status", ["DONE", "FAILED"])
async def test_a_finished_event_with_deliveries_that_wait_can_be_cancelled(
    store: Store, settings: Settings, status: str
) -> None:
    event_id = await small_event(store, "SUCCESS", "READY", status=status)
    assert await cancel_counts(store, event_id) == (1, 1, 0)


async def test_one_being_sent_may_be_retried_and_so_its_event_can_be_cancelled(store: Store, settings: Settings) -> None:
    event_id = await small_event(store, "SUCCESS", "SENDING")
    assert await cancel_counts(store, event_id) == (0, 2, 0)


@pytest.mark.parametrize("is_job_first", [True, False])
async def test_failures_that_the_recovery_job_would_retry_can_be_cancelled(
    store: Store, settings: Settings, is_job_first: bool
) -> None:
    event_id = await small_event(store, "SUCCESS", "FAIL")
    await set_columns(store, "deliveries", {"status": "FAIL"}, is_retryable=True, recovery_rounds=2)
    assert await cancel_counts(store, event_id) == (0, 1, 0)
    if is_job_first:
        async with store.transaction() as tx:
            assert (await recovery.give_rounds(tx, 0, 10)).given == 0
    await run_cancel_steps(store)
    assert await rows(store, "SELECT delivery_id FROM bongsu_deliveries WHERE is_retryable") == []
    assert await statuses(store) == {"SUCCESS": 1, "FAIL": 1}


async def test_failures_after_the_last_round_leave_nothing_to_cancel(store: Store, settings: Settings) -> None:
    event_id = await small_event(store, "SUCCESS", "FAIL")
    await set_columns(store, "deliveries", {"status": "FAIL"}, is_retryable=True, recovery_rounds=3)
    assert await request_cancel(store, event_id) == NothingLeft(EventStatus.DONE)


async def test_an_event_that_is_not_decided_yet_never_is(store: Store, settings: Settings) -> None:
    await add_members_with_devices(store, 3)
    event = trigger_event()
    await add_events(store, event)
    assert await cancel_counts(store, event.event_id, withdraw=True) == (0, 0, 0)
    worker = EventWorker(store, rules_notifying(Everyone(), SALE), settings, ClockedDecider(store, settings, Clock()))
    assert await worker.tick() == 0
    (step,) = await run_cancel_steps(store)
    assert (step.event_id, step.is_last, step.withdrawn) == (event.event_id, True, ())
    assert await rows(store, "SELECT 1 FROM bongsu_notifications") == []


async def test_members_not_yet_decided_are_not_decided_by_the_worker_that_has_claimed_the_event(
    store: Store, settings: Settings
) -> None:
    """Its audience is a user's own SELECT, of which the rest is stored; that rest goes too."""
    await add_members_with_devices(store, 9)
    event = trigger_event()
    await add_events(store, event)
    audience = Selected("SELECT member_id FROM bongsu_members")
    worker = EventWorker(store, rules_notifying(audience, SALE), settings, ClockedDecider(store, settings, Clock(), 2))
    await tick_until_work(worker)
    await tick_until_work(worker)
    assert await rows(store, "SELECT event_id FROM bongsu_audience_snapshots") != []
    decided = len(await rows(store, "SELECT 1 FROM bongsu_notifications"))
    assert 0 < decided < 9
    assert await cancel_counts(store, event.event_id) == (decided, 0, 0)
    while await worker.tick():
        pass
    await worker.stop()
    await run_cancel_steps(store)
    assert await statuses(store) == {"CANCELLED": decided}
    assert await rows(store, "SELECT event_id FROM bongsu_audience_snapshots") == []
    assert await counts_are_exact(store)


# --- withdraw later, replay and cancel again ------------------------------------------------------------------------------


async def test_withdrawing_later_keeps_the_other_figures_and_who_cancelled(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 5)
    (sent,) = await claim(store, 1)
    first = await request_cancel(store, event_id, "cli:mina")
    await run_cancel_steps(store)
    await record(store, sent, DeliveryStatus.READY)
    assert await statuses(store) == {"CANCELLED": 5}
    later = await request_cancel(store, event_id, "cli:jun", withdraw=True)
    assert isinstance(first, Cancellation)
    assert isinstance(later, Cancellation)
    assert (first.cancelled, first.sent, first.withdrawn) == (4, 1, 0)
    assert (later.cancelled, later.sent, later.withdrawn) == (4, 1, 5)
    assert (later.requested_by, later.requested_at) == ("cli:mina", first.requested_at)
    assert (later.withdraw, later.is_finished) == (True, False)
    await run_cancel_steps(store)
    assert await in_inboxes(store) == 0
    assert await counts_are_exact(store)


async def test_what_a_replay_sends_again_can_be_cancelled_again(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 6, chunk=2)
    for one in await claim(store, 3):
        await record(store, one, DeliveryStatus.FAIL)
    assert await cancel_counts(store, event_id, withdraw=True) == (3, 0, 6)
    await run_cancel_steps(store)
    await replay(store, event_id)
    assert await statuses(store) == {"CANCELLED": 3, "READY": 3}
    (gone, _) = await claim(store, 2)
    await record(store, gone, DeliveryStatus.SUCCESS)
    again = await request_cancel(store, event_id, "cli:jun")
    assert isinstance(again, Cancellation)
    assert (again.requested_by, again.cancelled, again.sent, again.withdrawn) == ("cli:jun", 4, 2, 6)
    assert again.withdraw
    assert [one.can_go for one in await claim(store)] == [False]
    assert await counts_are_exact(store)


# --- step -----------------------------------------------------------------------------------------------------------------


async def test_steps_change_so_many_members_each_message_by_message(store: Store, settings: Settings) -> None:
    """Two notices to the same five members, in steps of two: three for each, and one that finds no more."""
    await add_members_with_devices(store, 5)
    event = trigger_event()
    await decide(store, settings, Rules(rules_notifying(Everyone(), SALE), rules_notifying(Everyone(), MORE)), event)
    assert await cancel_counts(store, event.event_id, withdraw=True) == (10, 0, 10)
    steps = await run_cancel_steps(store, 2)
    messages = [row[0] for row in await rows(store, "SELECT message_id FROM bongsu_messages ORDER BY message_id")]
    assert [(one.message_id, one.cancelled, [who for who, _ in one.withdrawn], one.is_last) for one in steps] == [
        (messages[0], 2, ["m00000", "m00001"], False),
        (messages[0], 2, ["m00002", "m00003"], False),
        (messages[0], 1, ["m00004"], False),
        (messages[1], 2, ["m00000", "m00001"], False),
        (messages[1], 2, ["m00002", "m00003"], False),
        (messages[1], 1, ["m00004"], False),
        (0, 0, [], True),
    ]
    found = await rows(store, "SELECT member_id, notification_id FROM bongsu_notifications ORDER BY notification_id")
    assert sorted(one for step in steps for one in step.withdrawn) == sorted((row[0], row[1]) for row in found)
    assert await statuses(store) == {"CANCELLED": 10}
    assert await in_inboxes(store) == 0
    assert await counts_are_exact(store)


async def test_a_step_leaves_other_events_alone(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 4)
    await decide(store, settings, rules_notifying(Everyone(), MORE), trigger_event())
    await cancel_counts(store, event_id, withdraw=True)
    assert [len(one.withdrawn) for one in await run_cancel_steps(store)] == [4, 0]
    assert await statuses(store) == {"CANCELLED": 4, "READY": 4}
    assert await in_inboxes(store) == 4
    assert {row[0] for row in await rows(store, "SELECT unread FROM bongsu_members")} == {1}


async def test_an_event_is_finished_once_and_then_left_alone(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 2)
    await cancel_counts(store, event_id)
    await run_cancel_steps(store)
    done = await request_cancel(store, event_id)
    assert isinstance(done, Cancellation)
    assert done.is_finished
    assert await run_cancel_steps(store) == []


async def test_withdrawing_what_some_have_read_lowers_only_the_counts_of_the_others(
    store: Store, settings: Settings
) -> None:
    event_id = await decide_campaign(store, settings, 4)
    await decide(store, settings, rules_notifying(Everyone(), MORE), trigger_event())
    async with store.transaction() as tx:
        (read, newest) = [row[0] for row in await rows(store, OF_MEMBER, "m00001")]
        await inbox.mark_read(tx, "m00001", read, 10)
        await inbox.mark_read(tx, "m00002", 10**6, 10)
    await cancel_counts(store, event_id, withdraw=True)
    await run_cancel_steps(store, 3)
    found = await rows(store, "SELECT member_id, unread FROM bongsu_members ORDER BY member_id")
    assert [tuple(row) for row in found] == [("m00000", 1), ("m00001", 1), ("m00002", 0), ("m00003", 1)]
    assert await counts_are_exact(store)
    async with store.read() as tx:
        page, unread = await inbox.find_page(tx, "m00001", 2**62, 10)
    assert ([one.notification_id for one in page], unread) == ([newest], 1)
    # What is gone cannot be read any more.
    async with store.transaction() as tx:
        assert (await inbox.mark_read(tx, "m00000", 10**6, 10)).read == 1
    assert await counts_are_exact(store)


OF_MEMBER = "SELECT notification_id FROM bongsu_notifications WHERE member_id = $1 ORDER BY notification_id"


async def test_a_member_whose_row_is_gone_stops_no_step(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 3)
    await run_statement(store, "DELETE FROM bongsu_members WHERE member_id = 'm00001'")
    assert await cancel_counts(store, event_id, withdraw=True) == (3, 0, 3)
    await run_cancel_steps(store, 1)
    assert await statuses(store) == {"CANCELLED": 3}
    assert await in_inboxes(store) == 0


async def test_deliveries_that_wait_for_their_time_are_cancelled_too(store: Store, settings: Settings) -> None:
    """A paced notice, and quiet hours: all are due later."""
    paced = NoticeType("PACED", SALE.channels, pace_per_minute=1, duplicate_hours=0)
    event_id = await decide_campaign(store, settings, 7, chunk=2, kind=paced, clock=Clock(utc_now()))
    ahead = await rows(store, f"SELECT 1 FROM bongsu_deliveries WHERE due > {store.dialect.now}")
    assert len(ahead) >= 6
    assert await cancel_counts(store, event_id) == (7, 0, 0)
    await run_cancel_steps(store)
    assert await statuses(store) == {"CANCELLED": 7}
    assert await counts_are_exact(store)


async def test_a_step_that_fails_changes_nothing_and_the_next_does_it(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 5, chunk=2)
    await cancel_counts(store, event_id, withdraw=True)
    with pytest.raises(KeyError, match="before the commit"):
        async with store.transaction() as tx:
            part = await cancel_steps.stop_deliveries(tx, 3)
            assert part is not None
            assert (part.cancelled, len(await cancel_steps.withdraw_part(tx, part))) == (3, 3)
            raise KeyError("before the commit")
    assert await statuses(store) == {"READY": 5}
    assert await in_inboxes(store) == 5
    assert await counts_are_exact(store)
    assert [len(one.withdrawn) for one in await run_cancel_steps(store, 3)] == [3, 2, 0]
    assert await statuses(store) == {"CANCELLED": 5}
    assert await counts_are_exact(store)


async def test_the_oldest_cancellation_is_finished_first_and_one_can_be_asked_for(store: Store, settings: Settings) -> None:
    first = await decide_campaign(store, settings, 2)
    event = trigger_event()
    await decide(store, settings, rules_notifying(Everyone(), MORE), event)
    await cancel_counts(store, first)
    await cancel_counts(store, event.event_id)
    step = await cancel_steps.step(store, 10, event.event_id)
    assert step is not None
    assert (step.event_id, step.cancelled) == (event.event_id, 2)
    assert [one.event_id for one in await run_cancel_steps(store)] == [first, first, event.event_id]
    assert await cancel_steps.step(store, 10, event.event_id) is None
