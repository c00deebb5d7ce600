"""Dead letters of cancelled events: only a replay that names the event, or one of its deliveries, sends them again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest

from bongsu.model import Everyone, NoticeType
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import DeliveryResult, DeliveryStatus
from tests.support.campaigns import add_event
from tests.support.cancellations import SALE, cancel_counts, counts_are_exact, decide_campaign, run_cancel_steps, statuses
from tests.support.decisions import decide, rows, rules_notifying, trigger_event
from tests.support.deliveries import claim

OTHER = NoticeType("OTHER", SALE.channels, duplicate_hours=0)


async def fail(store: Store, count: int, status: DeliveryStatus = DeliveryStatus.FAIL) -> None:
    for one in await claim(store, count):
        result = DeliveryResult(one.delivery_id, one.epoch, status, "UNREGISTERED", bulk_message=one.message_id)
        assert await statements.record(store, "PUSH", [result]) == {one.delivery_id}


async def replay(api: httpx.AsyncClient, *, dry_run: bool = False, **filters: Any) -> tuple[int, int]:
    response = await api.post("/api/admin/dead/replay", json={"filter": filters, "dryRun": dry_run})
    assert response.status_code == 200, response.text
    return response.json()["matched"], response.json()["replayed"]


@pytest.fixture(params=[100, 2], ids=["small", "bulk"])
async def cancelled(store: Store, settings: Settings, request: pytest.FixtureRequest) -> UUID:
    """Of five deliveries two have failed, of one nobody knows, and two were cancelled. Of another event one has failed."""
    event_id = await decide_campaign(store, settings, 5, request.param)
    await fail(store, 2)
    await fail(store, 1, DeliveryStatus.UNKNOWN)
    await cancel_counts(store, event_id)
    await run_cancel_steps(store)
    await decide(store, settings, rules_notifying(Everyone(), OTHER), trigger_event())
    await fail(store, 1)
    assert await statuses(store) == {"FAIL": 3, "UNKNOWN": 1, "CANCELLED": 2, "READY": 4}
    return event_id


async def test_a_filter_that_does_not_name_it_passes_it_over(api: httpx.AsyncClient, store: Store, cancelled: UUID) -> None:
    others: list[dict[str, Any]] = [{"code": "UNREGISTERED"}, {"kind": "delivery"}, {"from": "2026-01-01T00:00:00Z"}]
    for filters in others:
        assert await replay(api, dry_run=True, **filters) == (1, 0)
    of_it: list[dict[str, Any]] = [{"type": "SALE"}, {"state": "UNKNOWN"}, {"type": "SALE", "userId": "m00000"}]
    for filters in of_it:
        assert await replay(api, dry_run=True, **filters) == (0, 0)
        assert await replay(api, **filters) == (0, 0)
    assert await replay(api, code="UNREGISTERED") == (1, 1)
    assert {one.can_go for one in await claim(store)} == {True}
    assert await statuses(store) == {"FAIL": 2, "UNKNOWN": 1, "CANCELLED": 2, "SENDING": 5}
    # They are listed all the same.
    listed = (await api.get("/api/admin/dead", params={"type": "SALE"})).json()["items"]
    assert {(one["eventId"], one["state"]) for one in listed} == {(str(cancelled), "FAIL"), (str(cancelled), "UNKNOWN")}


async def test_one_that_names_it_sends_its_dead_letters_again_and_nothing_else_of_it(
    api: httpx.AsyncClient, store: Store, cancelled: UUID
) -> None:
    assert await replay(api, dry_run=True, eventId=str(cancelled)) == (3, 0)
    assert await replay(api, eventId=str(cancelled), state="FAIL") == (2, 2)
    assert await statuses(store) == {"UNKNOWN": 1, "FAIL": 1, "CANCELLED": 2, "READY": 4 + 2}
    claimed = [one for one in await claim(store) if one.can_go]
    assert len(claimed) == 4 + 2
    assert await counts_are_exact(store)


async def test_one_delivery_can_be_named_by_its_id(api: httpx.AsyncClient, store: Store, cancelled: UUID) -> None:
    (row,) = await rows(store, "SELECT delivery_id FROM bongsu_deliveries WHERE status = 'UNKNOWN'")
    assert await replay(api, id=str(row[0])) == (1, 1)
    assert row[0] in {one.delivery_id for one in await claim(store) if one.can_go}
    assert await statuses(store) == {"FAIL": 3, "CANCELLED": 2, "SENDING": 5}


async def test_what_fails_again_is_passed_over_again(api: httpx.AsyncClient, store: Store, cancelled: UUID) -> None:
    assert await replay(api, eventId=str(cancelled)) == (3, 3)
    await fail(store, 10)
    assert await replay(api, dry_run=True, type="SALE") == (0, 0)
    assert await replay(api, dry_run=True, eventId=str(cancelled)) == (3, 0)


async def test_after_a_replay_it_can_be_cancelled_again(api: httpx.AsyncClient, store: Store, cancelled: UUID) -> None:
    before = (await api.get(f"/api/admin/events/{cancelled}")).json()["cancellation"]
    assert (before["cancelled"], before["sent"]) == (2, 1)
    assert await replay(api, eventId=str(cancelled)) == (3, 3)
    answer = (await api.post(f"/api/admin/events/{cancelled}/cancel")).json()
    assert (answer["cancelled"], answer["sent"], answer["withdrawn"]) == (5, 0, 0)
    assert await statuses(store) == {"CANCELLED": 5, "FAIL": 1, "READY": 4}
    assert (await api.post(f"/api/admin/events/{cancelled}/cancel")).json() == answer
    assert await counts_are_exact(store)


async def test_a_replay_before_its_rows_are_all_changed_does_not_bring_it_back(
    api: httpx.AsyncClient, store: Store, settings: Settings
) -> None:
    event_id = await decide_campaign(store, settings, 4, chunk=2)
    await fail(store, 1)
    await cancel_counts(store, event_id)
    assert await replay(api, eventId=str(event_id)) == (1, 1)
    assert {one.can_go for one in await claim(store, 2)} == {False}
    await run_cancel_steps(store)
    assert (await statuses(store))["SENDING"] == 0


async def test_a_cancelled_event_is_no_dead_letter(api: httpx.AsyncClient, store: Store, settings: Settings) -> None:
    """One that had failed before it was withdrawn is not decided again, by whatever filter."""
    async with store.transaction() as tx:
        event_id = await add_event(tx, status="FAILED", error="KeyError: 'x'")
    assert await cancel_counts(store, event_id, withdraw=True) == (0, 0, 0)
    assert await replay(api, eventId=str(event_id)) == (0, 0)
    assert await replay(api, code="KeyError") == (0, 0)
