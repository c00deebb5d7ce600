"""What becomes of a delivery whose event is cancelled: claimed, recorded, retried, recovered. And by which indexes."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from bongsu.errors import StoreError, StoreUnreachable
from bongsu.model import Channel, Everyone, Guarantee, NoticeType
from bongsu.settings import Settings
from bongsu.store import Statement, Store
from bongsu.store import deliveries as statements
from bongsu.store.decisions import audience_snapshots
from bongsu.store.deliveries import DeliveryResult, DeliveryStatus, recovery
from bongsu.store.desk import cancel_steps, cancellations
from tests.support.cancellations import (
    SALE,
    cancel_counts,
    counts_are_exact,
    decide_campaign,
    request_cancel,
    run_cancel_steps,
    statuses,
)
from tests.support.decisions import decide, rows, rules_notifying, trigger_event
from tests.support.deliveries import claim, result
from tests.support.plans import generic_plan, keep_statistics, rows_read
from tests.support.rows import set_columns

AGAIN = NoticeType("AGAIN", SALE.channels, guarantee=Guarantee.AT_LEAST_ONCE, duplicate_hours=0)
MORE = NoticeType("MORE", SALE.channels, duplicate_hours=0)
MANY = 5_000
READY, FAIL, UNKNOWN = DeliveryStatus.READY, DeliveryStatus.FAIL, DeliveryStatus.UNKNOWN


async def record(store: Store, *results: DeliveryResult) -> None:
    assert await statements.record(store, Channel.PUSH, results) == {one.delivery_id for one in results}


async def leases_end(store: Store) -> None:
    async with store.transaction() as tx:
        await set_columns(tx, "deliveries", {"status": ["READY", "SENDING"]}, due=timedelta(seconds=-1))


# --- what becomes of a delivery -------------------------------------------------------------------------------------------


async def test_a_claim_after_the_answer_sends_nothing_however_few_rows_are_changed_yet(
    store: Store, settings: Settings
) -> None:
    event_id = await decide_campaign(store, settings, 4, chunk=2)
    await cancel_counts(store, event_id)
    claimed = await claim(store)
    assert [(one.can_go, one.is_cancelled, one.status) for one in claimed] == [(False, True, "READY")] * 4
    assert await statuses(store) == {"READY": 4}
    # The dispatcher has it now, and records that it was not sent; a step leaves it to the dispatcher.
    await run_cancel_steps(store)
    assert await statuses(store) == {"READY": 4}
    await record(store, *(result(one, DeliveryStatus.CANCELLED, is_attempt=False) for one in claimed))
    assert await statuses(store) == {"CANCELLED": 4}
    assert await counts_are_exact(store)


@pytest.mark.parametrize("kind", [SALE, AGAIN])
async def test_one_left_on_the_wire_by_a_dispatcher_that_died_is_not_sent_again(
    store: Store, settings: Settings, kind: NoticeType
) -> None:
    event_id = await decide_campaign(store, settings, 3, chunk=2, kind=kind)
    (_lost,) = await claim(store, 1)
    assert await cancel_counts(store, event_id) == (2, 1, 0)
    await run_cancel_steps(store)
    await leases_end(store)
    (again,) = await claim(store)
    assert (again.status, again.can_go, again.is_cancelled) == ("SENDING", False, True)


@pytest.mark.parametrize("kind", [SALE, AGAIN])
async def test_the_recovery_job_settles_it_as_unknown(store: Store, settings: Settings, kind: NoticeType) -> None:
    event_id = await decide_campaign(store, settings, 3, chunk=2, kind=kind)
    (lost,) = await claim(store, 1)
    await cancel_counts(store, event_id)
    await run_cancel_steps(store)
    await leases_end(store)
    async with store.transaction() as tx:
        assert await recovery.settle_abandoned(tx, 10) == {(Channel.PUSH, "UNKNOWN"): 1}
    assert await statuses(store) == {"CANCELLED": 2, "UNKNOWN": 1}
    assert await statements.record(store, Channel.PUSH, [result(lost, FAIL)]) == set()
    assert await counts_are_exact(store)


@pytest.mark.parametrize("is_before", [True, False])
async def test_a_retry_of_what_was_on_the_wire_is_cancelled_when_it_is_recorded(
    store: Store, settings: Settings, is_before: bool
) -> None:
    """Also if the provider has asked for a day's wait: nobody looks at the event until then."""
    event_id = await decide_campaign(store, settings, 4, chunk=2)
    one, two = await claim(store, 2)
    assert await cancel_counts(store, event_id) == (2, 2, 0)
    if not is_before:
        await run_cancel_steps(store)
    later = result(one, READY, after_seconds=86_400.0)
    await record(store, later, result(two, FAIL, is_retryable=True))
    assert later.status is DeliveryStatus.CANCELLED
    await run_cancel_steps(store)
    assert await statuses(store) == {"CANCELLED": 3, "FAIL": 1}
    found = await rows(store, "SELECT attempts, finished_at IS NOT NULL, leased_by FROM bongsu_deliveries WHERE code = 'X'")
    assert [(row[0], bool(row[1]), row[2]) for row in found] == [(1, True, None)] * 2
    async with store.transaction() as tx:
        assert (await recovery.give_rounds(tx, 0, 10)).given == 0
    assert await statuses(store) == {"CANCELLED": 3, "FAIL": 1}
    assert await counts_are_exact(store)


async def test_other_results_of_what_was_on_the_wire_are_recorded_as_they_are(store: Store, settings: Settings) -> None:
    event_id = await decide_campaign(store, settings, 3, chunk=2)
    one, two, three = await claim(store, 3)
    assert await cancel_counts(store, event_id) == (0, 3, 0)
    await run_cancel_steps(store)
    success = statements.Success(three.delivery_id, three.epoch, time.monotonic(), 1, bulk_message=three.message_id)
    assert len(await statements.record(store, Channel.PUSH, [result(one, FAIL), result(two, UNKNOWN), success])) == 3
    assert await statuses(store) == {"FAIL": 1, "UNKNOWN": 1, "SUCCESS": 1}
    assert await counts_are_exact(store)


async def test_a_retry_of_another_event_waits_as_ever(store: Store, settings: Settings) -> None:
    await decide_campaign(store, settings, 1)
    (one,) = await claim(store)
    await record(store, result(one, READY))
    assert [tuple(row) for row in await rows(store, "SELECT status, finished_at FROM bongsu_deliveries")] == [
        ("READY", None)
    ]


async def test_a_store_that_is_away_cancels_nothing_and_says_so(
    store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    event_id = await decide_campaign(store, settings, 2)

    async def fails(*_: Any) -> None:
        raise StoreUnreachable("gone")

    with monkeypatch.context() as patch, pytest.raises(StoreError):
        patch.setattr(audience_snapshots, "forget", fails)
        await request_cancel(store, event_id)
    assert await rows(store, "SELECT 1 FROM bongsu_cancellations") == []
    assert [one.can_go for one in await claim(store)] == [True, True]


# --- by index -----------------------------------------------------------------------------------------------------------


async def test_the_plans_are_by_index(store: Store, settings: Settings) -> None:
    await decide_campaign(store, settings, 50, chunk=20)
    sending: Statement = cancellations._COUNT_MANY
    plan = await generic_plan(store, sending)
    if store.dialect.name == "sqlite":
        assert "USING INDEX bongsu_deliveries_sending" in plan
        changed = await generic_plan(store, cancel_steps._CANCEL_DELIVERIES)
        assert "USING INDEX bongsu_deliveries_notification (notification_id=?)" in changed
        few = await generic_plan(store, cancellations._COUNT_FEW)
        assert "USING INDEX bongsu_deliveries_notification (notification_id=?)" in few
        taken = await generic_plan(store, cancel_steps._TAKE)
        assert "bongsu_cancellations_open" in taken
        retryable = await generic_plan(store, cancellations._FIND_RETRYABLE)
        assert "USING INDEX bongsu_deliveries_dead_by_message (message_id=?)" in retryable


async def test_of_a_campaign_newer_than_the_statistics_only_its_members_rows_are_read(
    store: Store, settings: Settings
) -> None:
    if store.dialect.name == "sqlite":
        return
    await decide_campaign(store, settings, MANY)
    await set_columns(store, "deliveries", status="SUCCESS")
    await keep_statistics(store)
    event = trigger_event()
    await decide(store, settings, rules_notifying(Everyone(), MORE), event, chunk=1_000)
    await claim(store, 7)
    (message_id,) = [row[0] for row in await rows(store, "SELECT max(message_id) FROM bongsu_messages")]
    part = (message_id, "m00099", "m00199")
    assert await rows_read(store, cancellations._COUNT_MANY(message_id)) < 50
    # Notification and delivery of each, and the delivery once more to change it.
    assert await rows_read(store, cancel_steps._CANCEL_DELIVERIES(*part)) <= 3 * 100
    assert await rows_read(store, cancel_steps._FIND_SKIPPED(*part)) <= 2 * 100
    assert await rows_read(store, cancel_steps._LOCK_MEMBERS(*part)) <= 2 * 100
    assert await rows_read(store, cancel_steps._CHANGE_MEMBERS(*part, 1_000_000)) <= 3 * 100
    assert await rows_read(store, cancel_steps._WITHDRAW(*part, 1_000_000)) <= 2 * 100
    await cancel_counts(store, event.event_id)
    await run_cancel_steps(store)
    # Where nothing is left to be found, it looks at no more either.
    assert await rows_read(store, cancel_steps._CANCEL_DELIVERIES(*part)) <= 2 * 100
    assert await rows_read(store, cancel_steps._FIND_SKIPPED(*part)) <= 2 * 100
