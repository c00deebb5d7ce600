"""The retention job: what goes and what stays, with unread counts, cursors, replays and the size of SQLite's file right."""

from __future__ import annotations

import itertools
import random
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from bongsu.clock.jobs.retain import retain_job
from bongsu.clock.run import Run
from bongsu.clock.runs import Runs
from bongsu.desk.dead_filter import DeadFilter
from bongsu.errors import RunLost
from bongsu.model import Event, utc_now
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store, Transaction, outbox, retention
from bongsu.store.core import locks
from bongsu.store.core.query import same
from bongsu.store.inbox import count_unread, find_page
from bongsu.store.inbox.live import find_inbox_state, find_missed
from tests.support.decisions import rows
from tests.support.plans import generic_plan
from tests.support.replays import dead_letters
from tests.support.rows import (
    IN_APP_BIT,
    NOW,
    Sql,
    add_attempt,
    add_cancellation,
    add_delivery,
    add_event,
    add_many,
    add_member,
    add_message,
    add_message_count,
    add_notification,
    add_row,
    add_suppression,
    set_columns,
)
from tests.support.runs import LEASE_SECONDS, run_by_hand

PUSH_BIT = 1
STATUSES = (None, "SUCCESS", "FAIL", "UNKNOWN", "CANCELLED", "READY", "SENDING")
TABLES = ("events", "messages", "message_counts", "notifications", "suppressions", "deliveries", "attempts")


def days(count: float) -> timedelta:
    return timedelta(days=-count)


async def retain(store: Store, settings: Settings, batch: int = 500, **more: Any) -> str:
    run = await run_by_hand(store, retain_job(settings.model_copy(update=more), batch))
    assert run.result is not None
    return run.result


async def count(store: Store, *tables: str) -> dict[str, int]:
    return {name: (await rows(store, f"SELECT count(*) AS count FROM bongsu_{name}"))[0]["count"] for name in tables}


async def add_history(tx: Transaction, age: float, member_id: str, status: str | None = "SUCCESS") -> tuple[UUID, int]:
    """An event of that age with all that came of it: its id and the notification's."""
    at = days(age)
    event_id = await add_event(tx, status="DONE", created_at=at, finished_at=at)
    message_id = await add_message(tx, event_id=event_id, created_at=at, last_notified_at=at)
    await add_message_count(tx, message_id, category="NOTIFIED", count=1)
    notification_id = await add_notification(tx, member_id, message_id, created_at=at)
    await add_suppression(tx, message_id, f"not-{member_id}", created_at=at)
    if status is not None:
        more = {"created_at": at, "due": at, "finished_at": None if status in ("READY", "SENDING") else at}
        delivery_id = await add_delivery(tx, notification_id, member_id, message_id, status=status, **more)
        await add_attempt(tx, delivery_id, began_at=at, code="UNAVAILABLE")
    return event_id, notification_id


async def count_as_unread(store: Store) -> None:
    """As deciding and reading would have kept the counts."""
    unread = f"""(SELECT count(*) FROM bongsu_notifications AS n WHERE n.member_id = bongsu_members.member_id
        AND n.read_at IS NULL AND n.channels & {IN_APP_BIT} <> 0)"""
    await set_columns(store, "members", unread=Sql(unread))


async def test_with_thirty_days_29_stays_and_31_goes(store: Store, settings: Settings) -> None:
    async with store.transaction() as tx:
        await add_member(tx, "a")
        await add_history(tx, 31, "a")
        kept, _ = await add_history(tx, 29, "a")
    assert await retain(store, settings) == "1 deliveries, 1 notifications, 1 suppressions, 1 messages, 1 events"
    assert await count(store, *TABLES) == dict.fromkeys(TABLES, 1)
    assert [UUID(str(row["event_id"])) for row in await rows(store, "SELECT event_id FROM bongsu_events")] == [kept]
    assert await retain(store, settings) == "nothing to do"


@pytest.mark.parametrize("batch", [1, 3, 500])
async def test_whatever_the_batch_the_old_and_finished_go_and_counts_are_exact(
    store: Store, settings: Settings, batch: int
) -> None:
    kinds = list(itertools.product((31, 29), (True, False), (IN_APP_BIT, PUSH_BIT, IN_APP_BIT + PUSH_BIT), STATUSES))
    random.Random(35).shuffle(kinds)
    kept = []
    async with store.transaction() as tx:
        for number in range(5):
            await add_member(tx, f"m-{number}")
        for number, (age, is_read, channels, status) in enumerate(kinds):
            # Messages in the order of time, as they are; members in any.
            member_id, at = f"m-{number % 5}", days(age)
            message_id = await add_message(tx, created_at=days(31))
            columns = {"channels": channels, "created_at": at, "read_at": NOW if is_read else None}
            notification_id = await add_notification(tx, member_id, message_id, **columns)
            if status is not None:
                finished = None if status in ("READY", "SENDING") else at
                await add_delivery(tx, notification_id, member_id, message_id, status=status, finished_at=finished)
            if age == 29 or status in ("READY", "SENDING"):
                kept.append(notification_id)
    await count_as_unread(store)
    await retain(store, settings, batch)
    found = await rows(store, "SELECT notification_id FROM bongsu_notifications ORDER BY notification_id")
    assert [row["notification_id"] for row in found] == kept
    before = {row["member_id"]: row["unread"] for row in await rows(store, "SELECT member_id, unread FROM bongsu_members")}
    await count_as_unread(store)
    after = {row["member_id"]: row["unread"] for row in await rows(store, "SELECT member_id, unread FROM bongsu_members")}
    assert before == after
    orphans = """SELECT 1 FROM bongsu_deliveries WHERE notification_id NOT IN (
        SELECT notification_id FROM bongsu_notifications)"""
    assert not await rows(store, orphans)


async def test_each_kind_has_days_of_its_own(store: Store, settings: Settings) -> None:
    async with store.transaction() as tx:
        for age in (5, 15, 25, 35):
            await add_history(tx, age, f"m-{age}")
    await retain(
        store,
        settings,
        delivery_retention_days=10,
        suppression_retention_days=20,
        notification_retention_days=30,
        event_retention_days=1,
    )
    found = await count(store, *TABLES)
    # An event and its messages are kept as long as somebody has a notification or a suppression of them.
    assert found == {
        "events": 3, "messages": 3, "message_counts": 3, "notifications": 3, "suppressions": 2, "deliveries": 1,
        "attempts": 1,
    }  # fmt: skip


async def test_events_that_wait_stay_and_an_old_message_with_new_notifications_too(store: Store, settings: Settings) -> None:
    async with store.transaction() as tx:
        pending = await add_event(tx, created_at=days(40), due=NOW)
        await add_message(tx, event_id=pending, created_at=days(40))
        slow = await add_event(tx, status="DONE", created_at=days(40), finished_at=days(40))
        message_id = await add_message(tx, event_id=slow, created_at=days(40))
        await add_notification(tx, "a", message_id, created_at=days(29))
        late = await add_event(tx, status="FAILED", created_at=days(40), finished_at=days(29))
        await add_event(tx, status="UNHANDLED", created_at=days(40), finished_at=days(31))
    await retain(store, settings, batch=1)
    found = await rows(store, "SELECT event_id FROM bongsu_events")
    assert {UUID(str(row["event_id"])) for row in found} == {pending, slow, late}
    assert await count(store, "messages", "notifications") == {"messages": 2, "notifications": 1}


async def test_a_cursor_at_a_deleted_notification_goes_on_with_what_came_after_it(store: Store, settings: Settings) -> None:
    async with store.transaction() as tx:
        await add_member(tx, "a")
        _, deleted = await add_history(tx, 31, "a", None)
        _, newest = await add_history(tx, 32, "a", None)
    await retain(store, settings)
    async with store.read() as tx:
        state = await find_inbox_state(tx, "a")
        assert state is not None
        assert state.newest == 0
        assert await find_missed(tx, "a", deleted, state.newest, 10, only_unread=False) == []
    async with store.transaction() as tx:
        _, new = await add_history(tx, 0, "a", None)
    # Ids are never given twice: a cursor above all that is left has not seen what comes.
    assert new > newest
    async with store.read() as tx:
        for cursor in (deleted, newest):
            missed = await find_missed(tx, "a", cursor, new, 10, only_unread=False)
            assert [found.notification_id for found in missed] == [new]
        page, unread = await find_page(tx, "a", new + 1, 10)
        assert [row.notification_id for row in page] == [new]
        assert unread == await count_unread(tx, "a")


async def test_what_is_left_can_be_replayed_and_what_is_gone_is_in_no_list(store: Store, settings: Settings) -> None:
    async with store.transaction() as tx:
        await add_history(tx, 31, "gone", "FAIL")
        await add_history(tx, 29, "left", "FAIL")
    await retain(store, settings)
    replayed = await dead_letters(store, LocalSignals()).replay(DeadFilter(state="FAIL"), "cli:tester")
    assert (replayed.matched, replayed.replayed) == (1, 1)
    found = await rows(store, "SELECT member_id, status FROM bongsu_deliveries")
    assert [tuple(row) for row in found] == [("left", "READY")]
    # What is to be sent again is not old.
    assert "deliveries" not in await retain(store, settings, notification_retention_days=1, delivery_retention_days=1)


async def test_an_event_that_is_sent_again_after_its_time_is_new(store: Store, settings: Settings) -> None:
    async with store.transaction() as tx:
        event_id, _ = await add_history(tx, 31, "a")
    await retain(store, settings)
    async with store.transaction() as tx:
        assert await outbox.add(tx, [Event(event_id=event_id, event_type="x")]) == {event_id}


async def test_runs_and_who_requested_what_are_kept_for_days_of_their_own(store: Store, settings: Settings) -> None:
    async with store.transaction() as tx:
        for job, age, slot in (
            ("daily", 40, True), ("daily", 31, True), ("daily", 29, True), ("yearly", 300, True),
            ("daily", 100, False), ("daily", 400, False), ("replay", 400, False), ("replay", 364, False),
        ):  # fmt: skip
            await add_row(tx, "runs", job=job, slot=days(age) if slot else None, started_at=days(age), finished_at=days(age))
        await add_row(tx, "runs", job="stuck", started_at=days(500))
        event_id = await add_event(tx, status="CANCELLED", finished_at=NOW)
        for event in (event_id, UUID(int=1)):
            counts = {"cancelled": 0, "sent": 0, "withdrawn": 0}
            await add_cancellation(tx, event, requested_at=days(400), finished_at=days(400), **counts)
    await retain(store, settings, batch=2)
    found = await rows(store, "SELECT job, slot, started_at FROM bongsu_runs WHERE job <> 'retain' ORDER BY run_id")
    # Of the clock's runs those of the last 30 days, of those by hand those of the last year, and the newest of each job.
    assert [row["job"] for row in found] == ["daily", "yearly", "daily", "daily", "replay", "stuck"]
    left = await rows(store, "SELECT event_id FROM bongsu_cancellations")
    assert [UUID(str(row["event_id"])) for row in left] == [event_id]


async def test_another_process_goes_on_from_the_same_place(store: Store, settings: Settings) -> None:
    async with store.transaction() as tx:
        for number in range(20):
            await add_history(tx, 31, f"m-{number}")

    async def lose_after_three_steps(run: Run) -> None:
        if run.steps == 3:
            await set_columns(store, "runs", {"run_id": run.run_id}, due=timedelta(seconds=-1))

    runs = Runs(store, LEASE_SECONDS)
    job = retain_job(settings, 2)
    held: list[Run] = []
    original = job.work

    async def work(run: Run) -> str | None:
        held.append(run)
        for _ in range(3):
            async with run.step() as step:
                deleted = await retention.delete_notifications(step, (run.cursor or (None, None))[1], _past(), 2)
                step.save(cursor=["notifications", deleted.after], counts=deleted.counts)
        await lose_after_three_steps(run)
        return await original(run)

    with pytest.raises(RunLost):
        await runs.run_by_hand(type(job)(job.name, job.does, work, job.cron), "cli:tester")
    (found,) = await runs.find_abandoned()
    assert found.counts == {"notifications": 6, "deliveries": 6}
    taken = await runs.take_over(found)
    assert taken is not None
    ended = await runs.execute(job, taken)
    assert ended.run.counts["notifications"] == ended.run.counts["events"] == 20
    assert await count(store, *TABLES) == dict.fromkeys(TABLES, 0)


def _past() -> Any:
    return utc_now() - timedelta(days=30)


def _uuid(tx: Transaction) -> str:
    if tx.dialect.name == "sqlite":
        return "printf('00000000-0000-4000-8000-%012d', number)"
    return "CAST(format('00000000-0000-4000-8000-%s', lpad(CAST(number AS text), 12, '0')) AS uuid)"


async def test_a_batch_is_found_by_an_index_that_follows_time(store: Store) -> None:
    async with store.transaction() as tx:
        member_id = Sql("'m-' || CAST(number AS text)")
        await add_many(tx, "notifications", 3_000, member_id=member_id, message_id=Sql("number"))
        await add_many(tx, "suppressions", 3_000, member_id=member_id, message_id=Sql("number"))
        ids = {"notification_id": Sql("number"), "message_id": Sql("number")}
        await add_many(tx, "deliveries", 3_000, member_id=member_id, status="SUCCESS", **ids)
        await add_many(tx, "attempts", 3_000, delivery_id=Sql("number"), code="TIMEOUT")
        await add_many(tx, "members", 3_000, member_id=member_id)
        await add_many(tx, "digests", 3_000, member_id=member_id, notification_id=Sql("number"))
        await add_many(tx, "digest_entries", 3_000, member_id=member_id, **ids)
        event_id = {"event_id": Sql(_uuid(tx))}
        await add_many(tx, "events", 3_000, status="DONE", **event_id)
        await add_many(tx, "messages", 3_000, **event_id)
    async with store.transaction() as tx:
        await tx.execute(same("ANALYZE")())
    for statement in (
        retention.FIND_NOTIFICATIONS,
        retention.FIND_SUPPRESSIONS,
        retention.FIND_DELIVERIES,
        retention.FIND_EVENTS,
        retention.LOCK_DELIVERIES,
        locks.LOCK_MEMBERS,
        retention.DELETE_DIGESTS,
        retention.DELETE_ENTRIES,
        retention.DELETE_NOTIFICATIONS,
        retention.DELETE_ATTEMPTS,
        retention.DELETE_DELIVERIES,
        retention.DELETE_SUPPRESSIONS,
        retention.DELETE_MESSAGES,
        retention.DELETE_EVENTS,
    ):
        steps = await generic_plan(store, statement)
        assert "Seq Scan on bongsu" not in steps, (statement, steps)
        assert "SCAN bongsu" not in steps and "USE TEMP B-TREE FOR ORDER BY" not in steps, (statement, steps)


# PostgreSQL vacuums by itself.
@pytest.mark.parametrize("settings", ["sqlite"], indirect=True)
async def test_sqlites_file_does_not_grow_for_ever(settings: Settings, store: Store) -> None:
    sizes = []
    for _ in range(6):
        async with store.transaction() as tx:
            member_id = Sql("'m-' || CAST(number AS text)")
            message_id = await add_message(tx, created_at=days(31))
            at = {"created_at": days(31), "message_id": message_id, "member_id": member_id}
            await add_many(tx, "notifications", 2_000, **at)
            await add_many(tx, "suppressions", 2_000, **at)
        await retain(store, settings)
        (row,) = await rows(store, "SELECT page_count FROM pragma_page_count()")
        sizes.append(row["page_count"])
    # Freed pages are used again: after the second night it is as large as it gets.
    assert sizes[-1] <= sizes[1] + 5, sizes
