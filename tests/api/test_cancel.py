"""POST /api/admin/events/{eventId}/cancel: its figures, what it refuses, who asked, and what history and why say then."""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
from rich.console import Console

from bongsu.api.bodies import SMALL_BODY_LIMIT
from bongsu.cli.why_view import explain
from bongsu.decide.worker import EventWorker
from bongsu.desk import cancel as module
from bongsu.desk.cancel import CancelWorker
from bongsu.errors import StoreUnreachable
from bongsu.model import Everyone, Listed, NoticeType, new_id, utc_now
from bongsu.rules import catalogue
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import CANCELLATIONS_TOPIC, DELIVERIES_TOPIC
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store import deliveries as statements
from bongsu.store.deliveries import ClaimedDelivery, DeliveryResult, DeliveryStatus, Success
from bongsu.store.desk import cancel_steps
from bongsu.store.ranks import RANKS
from tests.support.campaigns import add_event
from tests.support.cancellations import (
    SALE,
    add_members_with_devices,
    counts_are_exact,
    decide_campaign,
    event_status,
    in_inboxes,
    statuses,
)
from tests.support.decisions import IN_APP, Clock, ClockedDecider, decide, rows, rules_notifying, trigger_event
from tests.support.outbox import add_events
from tests.support.rows import NOW, add_member, set_columns

PATH = "/api/admin/events"
INBOX_ONLY = NoticeType("NOTE", IN_APP, duplicate_hours=0)


async def ask(api: httpx.AsyncClient, event_id: object, **body: Any) -> httpx.Response:
    return await api.post(f"{PATH}/{event_id}/cancel", json=body or None)


async def figures(api: httpx.AsyncClient, event_id: object, **body: Any) -> tuple[int, int, int]:
    response = await ask(api, event_id, **body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert (answer.pop("eventId"), answer.pop("status")) == (str(event_id), "CANCELLED")
    assert answer.keys() == {"cancelled", "sent", "withdrawn"}
    return answer["cancelled"], answer["sent"], answer["withdrawn"]


async def record(store: Store, claimed: ClaimedDelivery, status: DeliveryStatus) -> None:
    result: DeliveryResult | Success = DeliveryResult(
        claimed.delivery_id, claimed.epoch, status, "UNAVAILABLE", bulk_message=claimed.message_id
    )
    if status is DeliveryStatus.SUCCESS:
        result = Success(claimed.delivery_id, claimed.epoch, time.monotonic(), 1, bulk_message=claimed.message_id)
    assert await statements.record(store, "PUSH", [result]) == {claimed.delivery_id}


@pytest.fixture(params=[100, 3], ids=["small", "bulk"])
async def under_way(store: Store, settings: Settings, request: pytest.FixtureRequest) -> AsyncIterator[UUID]:
    """Of eight deliveries one has arrived, one has failed, of one nobody knows, one is to be tried again, one is being sent,
    and three wait."""
    event_id = await decide_campaign(store, settings, 8, request.param)
    claimed = sorted(await statements.claim(store, "PUSH", RANKS, 5, 60, "w"), key=lambda one: one.member_id)
    for one, status in zip(claimed, ("SUCCESS", "FAIL", "UNKNOWN", "READY"), strict=False):
        await record(store, one, DeliveryStatus(status))
    assert await statuses(store) == {"READY": 4, "SENDING": 1, "SUCCESS": 1, "FAIL": 1, "UNKNOWN": 1}
    yield event_id


ENDED = {"CANCELLED": 4, "SENDING": 1, "SUCCESS": 1, "FAIL": 1, "UNKNOWN": 1}


# --- figures --------------------------------------------------------------------------------------------------------------


async def test_it_answers_what_was_stopped_and_what_had_gone_and_the_same_when_asked_again(
    api: httpx.AsyncClient, store: Store, under_way: UUID
) -> None:
    assert await figures(api, under_way) == (4, 3, 0)
    assert await statuses(store) == ENDED
    assert await in_inboxes(store) == 8
    assert await event_status(store, under_way) == "CANCELLED"
    assert await figures(api, under_way) == (4, 3, 0)
    assert await figures(api, under_way, withdraw=False) == (4, 3, 0)
    assert await statuses(store) == ENDED
    assert await counts_are_exact(store)


async def test_with_withdraw_it_leaves_the_inboxes_and_unread_counts(
    api: httpx.AsyncClient, store: Store, settings: Settings, under_way: UUID
) -> None:
    headers = {"Authorization": f"Bearer {Keys.load(settings).member_token('m00002', timedelta(hours=1))}"}
    await decide(store, settings, rules_notifying(Listed(("m00002",)), INBOX_ONLY), trigger_event())
    assert (await api.get("/api/notifications/unread-count", headers=headers)).json() == {"unread": 2}
    assert await figures(api, under_way, withdraw=True) == (4, 3, 8)
    assert await figures(api, under_way, withdraw=True) == (4, 3, 8)
    page = (await api.get("/api/notifications", headers=headers)).json()
    assert ([item["type"] for item in page["items"]], page["unread"]) == (["NOTE"], 1)
    assert (await api.get("/api/notifications/unread-count", headers=headers)).json() == {"unread": 1}
    assert (await api.post("/api/notifications/read-all", headers=headers)).json() == {"read": 1, "unread": 0}
    assert await in_inboxes(store) == 1
    assert await counts_are_exact(store)


async def test_it_can_be_withdrawn_later(api: httpx.AsyncClient, store: Store, under_way: UUID) -> None:
    assert await figures(api, under_way) == (4, 3, 0)
    assert await in_inboxes(store) == 8
    assert await figures(api, under_way, withdraw=True) == (4, 3, 8)
    assert await in_inboxes(store) == 0
    # Who asks for less now is told what was done.
    assert await figures(api, under_way) == (4, 3, 8)
    assert await statuses(store) == ENDED
    assert await counts_are_exact(store)


async def test_an_event_in_the_inbox_alone_is_withdrawn(api: httpx.AsyncClient, store: Store, settings: Settings) -> None:
    await add_members_with_devices(store, 3)
    event = trigger_event()
    await decide(store, settings, rules_notifying(Everyone(), INBOX_ONLY), event)
    assert (await ask(api, event.event_id)).status_code == 409
    assert await figures(api, event.event_id, withdraw=True) == (0, 0, 3)
    assert await event_status(store, event.event_id) == "CANCELLED"
    assert await in_inboxes(store) == 0


async def test_an_event_that_was_only_published_is_never_decided(
    api: httpx.AsyncClient, store: Store, settings: Settings
) -> None:
    await add_members_with_devices(store, 3)
    event = trigger_event()
    await add_events(store, event)
    assert await figures(api, event.event_id) == (0, 0, 0)
    worker = EventWorker(store, rules_notifying(Everyone(), SALE), settings, ClockedDecider(store, settings, Clock()))
    assert await worker.tick() == 0
    assert await rows(store, "SELECT 1 FROM bongsu_notifications") == []


async def test_many_who_ask_at_once_get_one_answer(api: httpx.AsyncClient, store: Store, under_way: UUID) -> None:
    answers = await asyncio.gather(*(figures(api, under_way, withdraw=True) for _ in range(8)))
    assert set(answers) == {(4, 3, 8)}
    assert await in_inboxes(store) == 0
    assert await counts_are_exact(store)


async def test_a_cancel_and_a_withdrawal_at_once_withdraw(api: httpx.AsyncClient, store: Store, under_way: UUID) -> None:
    await asyncio.gather(*(ask(api, under_way, withdraw=number % 2 == 1) for number in range(6)))
    assert await figures(api, under_way) == (4, 3, 8)
    assert await in_inboxes(store) == 0
    assert await counts_are_exact(store)


# --- many rows ------------------------------------------------------------------------------------------------------------


async def test_the_answer_does_not_wait_for_the_rows_of_a_large_event(
    api: httpx.AsyncClient, store: Store, settings: Settings, signals: LocalSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0)
    monkeypatch.setattr(module, "MEMBERS", 2)
    heard: list[str] = []
    event_id = await decide_campaign(store, settings, 7, chunk=3)
    worker = CancelWorker(store, signals, settings.model_copy(update={"poll_seconds": 60}))
    async with running(worker):
        await worker.idle.wait()
        with (
            signals.listen(CANCELLATIONS_TOPIC, lambda _data: heard.append("cancellations")),
            signals.listen(DELIVERIES_TOPIC, lambda _data: heard.append("deliveries")),
        ):
            assert await figures(api, event_id, withdraw=True) == (7, 0, 7)
        assert heard == ["deliveries", "cancellations"]
        # Before its rows are changed, nobody takes it for waiting.
        page = (await api.get("/api/admin/history", params={"eventId": str(event_id)})).json()
        assert {item["status"] for item in page["items"]} == {"CANCELLED"}
        assert await statuses(store) == {"READY": 7}
        worker.wake()
        await worker.idle.wait()
    assert await statuses(store) == {"CANCELLED": 7}
    assert await in_inboxes(store) == 0
    assert await counts_are_exact(store)


async def test_a_store_that_fails_in_the_middle_loses_nothing(
    api: httpx.AsyncClient, store: Store, settings: Settings, signals: LocalSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MEMBERS", 2)
    event_id = await decide_campaign(store, settings, 7, chunk=3)
    taken, steps = cancel_steps.step, 0

    async def step(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise StoreUnreachable("gone")
        return await taken(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(cancel_steps, "step", step)
        # The cancellation is committed: an error would say that it is not.
        assert await figures(api, event_id, withdraw=True) == (7, 0, 7)
        assert steps == 2
    assert await statuses(store) == {"CANCELLED": 2, "READY": 5}
    assert await counts_are_exact(store)
    # It is cancelled all the same: nothing is sent, and any worker, or whoever asks again, changes the rest.
    assert {one.can_go for one in await statements.claim(store, "PUSH", RANKS, 2, -1, "w")} == {False}
    assert await figures(api, event_id, withdraw=True) == (7, 0, 7)
    assert await in_inboxes(store) == 0
    assert await counts_are_exact(store)


# --- what is refused ------------------------------------------------------------------------------------------------------


async def test_an_unknown_event_is_404_and_an_id_that_is_none_422(api: httpx.AsyncClient) -> None:
    unknown = new_id()
    for body in ({}, {"withdraw": True}):
        response = await ask(api, unknown, **body)
        assert response.status_code == 404
        assert response.json()["type"] == "urn:bongsu:no-such-event"
        assert str(unknown) in response.json()["detail"]
    for one in ("7", "x" * 36, "%00", "' OR 1=1"):
        assert (await ask(api, one)).status_code in (404, 422)
    assert (await ask(api, "7")).json()["errors"][0]["loc"] == ["path", "event_id"]


@pytest.mark.parametrize(
    ("status", "detail"),
    [("DONE", "sent already"), ("FAILED", "failed and is not sent unless"), ("UNHANDLED", "No rule handled it")],
)
async def test_a_finished_event_is_409_and_the_answer_says_why(
    api: httpx.AsyncClient, store: Store, status: str, detail: str
) -> None:
    async with store.transaction() as tx:
        event_id = await add_event(tx, status=status, finished_at=utc_now())
    for _ in range(2):
        response = await ask(api, event_id)
        assert (response.status_code, response.json()["type"]) == (409, "urn:bongsu:nothing-to-cancel")
        assert response.headers["content-type"] == "application/problem+json"
        assert detail in response.json()["detail"]
        assert str(event_id) in response.json()["detail"]
    assert await event_status(store, event_id) == status
    assert (await api.get(f"{PATH}/{event_id}")).json()["cancellation"] is None


BAD = [
    (b'{"withdraw": 1}', 422),
    (b'{"withdraw": "true"}', 422),
    (b'{"withdraw": null}', 422),
    (b'{"withdraw": []}', 422),
    (b'{"Withdraw": true}', 422),
    (b'{"withdraw": true, "now": true}', 422),
    (b"[]", 422),
    (b'[{"withdraw": true}]', 422),
    (b"true", 422),
    (b"null", 422),
    (b'"withdraw"', 422),
    (b"{", 400),
    (b"withdraw=true", 400),
    (b"\xff\xfe", 400),
    (b" ", 400),
    (b'{"withdraw": true}' + b" " * SMALL_BODY_LIMIT, 413),
    (b'{"withdraw": [' + b"1," * (SMALL_BODY_LIMIT // 4) + b"1]}", 422),
    (b"[" * 100_000, 400),
]


async def test_a_body_that_cannot_be_meant_is_refused_and_changes_nothing(
    api: httpx.AsyncClient, store: Store, settings: Settings
) -> None:
    event_id = await decide_campaign(store, settings, 2)
    for body, status in BAD:
        response = await api.post(f"{PATH}/{event_id}/cancel", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == status, body[:50]
        assert response.headers["content-type"] == "application/problem+json"
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/x-ndjson"):
        response = await api.post(f"{PATH}/{event_id}/cancel", content=b'{"withdraw": true}', headers={"Content-Type": kind})
        assert response.status_code == 415
    assert await event_status(store, event_id) == "DONE"
    assert await statuses(store) == {"READY": 2}
    assert await rows(store, "SELECT 1 FROM bongsu_cancellations") == []


@pytest.mark.parametrize("body", [b"", b"{}", b'{"withdraw": false}', b' {\n"withdraw":false} '])
async def test_without_a_body_or_with_an_empty_one_it_does_not_withdraw(
    api: httpx.AsyncClient, store: Store, settings: Settings, body: bytes
) -> None:
    event_id = await decide_campaign(store, settings, 2)
    response = await api.post(f"{PATH}/{event_id}/cancel", content=body)
    assert (response.status_code, response.json()["withdrawn"]) == (200, 0)
    assert await in_inboxes(store) == 2


async def test_only_the_servers_key_opens_it(
    api: httpx.AsyncClient, store: Store, settings: Settings, member_token: str
) -> None:
    event_id = await decide_campaign(store, settings, 2)
    path = f"{PATH}/{event_id}/cancel"
    for key, status in ((f"Bearer {member_token}", 403), ("Bearer x", 401), ("", 401), ("Basic eDp5", 401)):
        assert (await api.post(path, headers={"Authorization": key})).status_code == status
    assert (await api.get(path)).status_code == 405
    assert await event_status(store, event_id) == "DONE"
    assert await statuses(store) == {"READY": 2}


async def test_it_is_described(api: httpx.AsyncClient) -> None:
    document = (await api.get("/openapi.json")).json()
    described = document["paths"][f"{PATH}/{{event_id}}/cancel"]["post"]
    assert not described["requestBody"]["required"]
    assert set(document["components"]["schemas"]["CancelRequest"]["properties"]) == {"withdraw"}
    assert {"200", "404", "409", "422"} <= described["responses"].keys()


# --- what is said of it afterwards ----------------------------------------------------------------------------------------


async def test_who_cancelled_and_when_is_kept_and_shown(api: httpx.AsyncClient, under_way: UUID) -> None:
    await figures(api, under_way)
    first = (await api.get(f"{PATH}/{under_way}")).json()
    assert abs(datetime.fromisoformat(first["cancellation"]["requestedAt"]) - utc_now()) < timedelta(minutes=1)
    assert {**first["cancellation"], "requestedAt": ""} == {
        "requestedAt": "", "requestedBy": "key:ests", "withdraw": False, "cancelled": 4, "sent": 3, "withdrawn": 0,
    }  # fmt: skip
    assert (first["status"], first["decided"]) == ("CANCELLED", 8)
    assert first["finishedAt"] is not None
    assert first["deliveries"]["PUSH"]["CANCELLED"] == 4
    await figures(api, under_way, withdraw=True)
    later = (await api.get(f"{PATH}/{under_way}")).json()
    assert later["cancellation"] == {**first["cancellation"], "withdraw": True, "withdrawn": 8}
    assert later["finishedAt"] == first["finishedAt"]
    listed = (await api.get(PATH, params={"status": "CANCELLED"})).json()["items"]
    assert [one["eventId"] for one in listed] == [str(under_way)]


async def test_history_shows_what_was_cancelled_and_what_was_not(api: httpx.AsyncClient, under_way: UUID) -> None:
    await figures(api, under_way)

    async def found(**query: str) -> dict[str, str]:
        page = (await api.get("/api/admin/history", params={"eventId": str(under_way), **query})).json()
        return {item["memberId"]: item["status"] for item in page["items"]}

    every = {
        "m00000": "SENT", "m00001": "FAILED", "m00002": "UNKNOWN", "m00003": "CANCELLED", "m00004": "PENDING",
        "m00005": "CANCELLED", "m00006": "CANCELLED", "m00007": "CANCELLED",
    }  # fmt: skip
    assert await found() == every
    for status in ("CANCELLED", "SENT", "FAILED", "UNKNOWN", "PENDING"):
        assert await found(status=status) == {who: one for who, one in every.items() if one == status}
    page = (await api.get("/api/admin/history", params={"userId": "m00005"})).json()
    (item,) = page["items"]
    assert [(one["status"], one["finishedAt"] is not None) for one in item["deliveries"]] == [("CANCELLED", True)]
    assert "IN_APP" in item["channels"]


async def test_why_says_so(api: httpx.AsyncClient, store: Store, settings: Settings, under_way: UUID) -> None:
    await figures(api, under_way)

    async def why(member_id: str, event_id: UUID | None = under_way) -> str:
        console = Console(file=io.StringIO(), width=200)
        await explain(settings, member_id, event_id, 5, console)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    answer = await why("m00005")
    assert re.search(rf"Event {under_way} \(said\) was CANCELLED at [-0-9]+ [0-9:]+ by \S+\.\n", answer)
    assert "CANCELLED  SALE" in answer
    assert "PUSH to phone: cancelled before it was sent" in answer
    assert "PUSH to phone: cancelled after 1 attempt (" in await why("m00003")
    assert "PUSH to phone: sent " in await why("m00000")
    await fill_another(store)
    # Whether it was decided before it was cancelled is told by the two times.
    await set_columns(store, "events", {"event_id": under_way}, finished_at=NOW)
    assert " stranger was not decided before that" in await why("stranger")
    await set_columns(store, "events", {"event_id": under_way}, finished_at=timedelta(hours=-1))
    assert " stranger was not in its audience" in await why("stranger")
    await figures(api, under_way, withdraw=True)
    assert ", and withdrawn from the inboxes." in await why("m00005")
    assert "inbox:" not in await why("m00005", None)


async def fill_another(store: Store) -> None:
    async with store.transaction() as tx:
        await add_member(tx, "stranger")


async def test_why_says_of_an_inbox_row_that_it_was_withdrawn(
    api: httpx.AsyncClient, store: Store, settings: Settings
) -> None:
    await add_members_with_devices(store, 1)
    event = trigger_event()
    await decide(store, settings, rules_notifying(Everyone(), INBOX_ONLY), event)
    await figures(api, event.event_id, withdraw=True)
    console = Console(file=io.StringIO(), width=200)
    await explain(settings, "m00000", None, 5, console)
    assert isinstance(console.file, io.StringIO)
    assert "CANCELLED  NOTE" in console.file.getvalue()
    assert "inbox: withdrawn, because its event was cancelled" in console.file.getvalue()


# --- a direct notification ------------------------------------------------------------------------------------------------


async def test_deleting_a_notification_that_is_going_out_stops_it_the_same_way(
    api: httpx.AsyncClient, store: Store, settings: Settings
) -> None:
    ids = await add_members_with_devices(store, 4)
    body = {"type": "MARKETING", "userIds": ids, "title": "t", "body": "b"}
    event_id = UUID((await api.post("/api/notifications", json=body)).json()["eventId"])
    decider = ClockedDecider(store, settings, Clock(), 2)
    worker = EventWorker(store, catalogue(settings), settings, decider)
    await worker.tick()
    await statements.claim(store, "PUSH", RANKS, 1, 60, "w")
    decided = len(await rows(store, "SELECT 1 FROM bongsu_deliveries"))
    answer = (await api.delete(f"/api/notifications/scheduled/{event_id}")).json()
    assert answer == {
        "eventId": str(event_id), "status": "CANCELLED", "begun": True, "cancelled": decided - 1, "sent": 1,
    }  # fmt: skip
    while await worker.tick():
        pass
    await worker.stop()
    assert await statuses(store) == {"CANCELLED": decided - 1, "SENDING": 1}
    # It is one cancellation, whichever way it was asked for; this way knows withdrawing too.
    assert await figures(api, event_id, withdraw=True) == (decided - 1, 1, decided)
    assert (await api.get(f"{PATH}/{event_id}")).json()["cancellation"]["requestedBy"] == "key:ests"
    assert (await api.delete(f"/api/notifications/scheduled/{event_id}")).json() == answer


async def test_a_scheduled_notification_is_cancelled_by_either(api: httpx.AsyncClient, store: Store) -> None:
    at = (utc_now() + timedelta(hours=1)).isoformat()
    body = {"type": "MARKETING", "userIds": ["a"], "title": "t", "body": "b", "sendAt": at}
    event_id = (await api.post("/api/notifications", json=body)).json()["eventId"]
    assert await figures(api, event_id) == (0, 0, 0)
    answer = (await api.delete(f"/api/notifications/scheduled/{event_id}")).json()
    assert answer == {"eventId": event_id, "status": "CANCELLED", "begun": False, "cancelled": 0, "sent": 0}
    assert (await api.get(f"{PATH}/{event_id}")).json()["dueAt"] is None
