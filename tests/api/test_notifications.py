"""POST /api/notifications and calling off what has not gone yet."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest

from bongsu.api import notifications as direct
from bongsu.model import Channel, Event, EventStatus, Guarantee, Listed, Notice, Priority, new_id
from bongsu.rules import CRITICAL_DIRECT, DIRECT, catalogue
from bongsu.settings import Settings
from bongsu.store import Store, outbox
from bongsu.store.outbox import ClaimedEvent, EventResult, StoredEvent
from tests.support.outbox import count_events
from tests.support.rows import NOW, set_columns

LEAST: dict[str, Any] = {"type": "MARKETING", "userIds": ["a", "b"], "title": "봄 할인", "body": "오늘만\n반값"}


def in_hours(hours: float) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


async def sent(api: httpx.AsyncClient, **more: Any) -> dict[str, Any]:
    response = await api.post("/api/notifications", json={**LEAST, **more})
    assert response.status_code == 202, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def claim(store: Store) -> list[ClaimedEvent]:
    async with store.transaction() as tx:
        return await outbox.claim(tx, 100, 60, "w")


async def find(store: Store, event_id: str) -> StoredEvent:
    async with store.read() as tx:
        row = await outbox.find(tx, UUID(event_id))
    assert row is not None
    return row


def notice_of(event: Event) -> Notice:
    (notice,) = catalogue(Settings()).detect(event)
    return notice


# --- send -------------------------------------------------------------------------------------------------------------


async def test_the_least_that_can_be_sent_becomes_a_notice(api: httpx.AsyncClient, store: Store) -> None:
    answer = await sent(api, userIds=["b", "a", "b"])
    (claimed,) = await claim(store)
    assert answer == {"eventId": str(claimed.event.event_id), "status": "ACCEPTED", "members": 2, "sendAt": None}
    notice = notice_of(claimed.event)
    assert (notice.type.name, notice.audience, notice.ref_id) == ("MARKETING", Listed(("b", "a")), None)
    assert (notice.title, notice.body, notice.data) == ("봄 할인", "오늘만\n반값", {})


async def test_every_field_reaches_the_notice(api: httpx.AsyncClient, store: Store) -> None:
    await sent(
        api,
        refId="coupon-1",
        data={"coupon": "X", "nothing": None, "n": [1.5, {"이름": "사과"}]},
        channels=["EMAIL", "IN_APP"],
        priority="HIGH",
        subject="spring",
        guarantee="at_least_once",
        critical=True,
        sendAt=in_hours(-1),
        pacePerMinute=600,
        idempotencyKey="k",
    )
    (claimed,) = await claim(store)
    notice = notice_of(claimed.event)
    assert (notice.type.channels, notice.type.priority) == ((Channel.EMAIL, Channel.IN_APP), Priority.HIGH)
    assert (notice.type.guarantee, notice.type.is_critical) == (Guarantee.AT_LEAST_ONCE, True)
    assert notice.type.pace_per_minute == 600
    assert (notice.subject, notice.ref_id) == ("spring", "coupon-1")
    assert notice.data == {"coupon": "X", "nothing": None, "n": [1.5, {"이름": "사과"}]}


async def test_a_hundred_thousand_members_fit_into_one_call(api: httpx.AsyncClient, store: Store) -> None:
    ids = [f"{number:064d}" for number in range(100_000)]
    assert (await sent(api, userIds=ids))["members"] == 100_000
    (claimed,) = await claim(store)
    assert notice_of(claimed.event).audience == Listed(tuple(ids))
    response = await api.post("/api/notifications", json={**LEAST, "userIds": [*ids, "one more"]})
    assert response.status_code == 422
    assert "at most 100000" in response.json()["errors"][0]["msg"]


BAD: list[tuple[dict[str, Any], list[Any], str]] = [
    ({"userIds": []}, ["userIds"], "at least 1"),
    ({"userIds": "a"}, ["userIds"], "valid array"),
    ({"userIds": ["a", ""]}, ["userIds", 1], "at least 1"),
    ({"userIds": ["a", 7]}, ["userIds", 1], "valid string"),
    ({"userIds": ["a\x00"]}, ["userIds", 0], "pattern"),
    ({"userIds": ["x" * 256, ""]}, ["userIds", 0], "at most 255"),
    ({"type": ""}, ["type"], "must begin with a letter"),
    ({"type": "../x"}, ["type"], "must begin with a letter"),
    ({"type": "X\n"}, ["type"], "must begin with a letter"),
    ({"title": " \u3000"}, ["title"], "is empty"),
    ({"title": "a\nBcc: x"}, ["title"], "a line break at 1"),
    ({"title": "x" * 201}, ["title"], "at most 200"),
    ({"body": ""}, ["body"], "is empty"),
    ({"body": "a\x00"}, ["body"], "a control character at 1"),
    ({"body": "x" * 10_001}, ["body"], "at most 10000"),
    ({"body": None}, ["body"], "valid string"),
    ({"pacePerMinute": 0}, ["pacePerMinute"], "greater than or equal to 1"),
    ({"pacePerMinute": -60}, ["pacePerMinute"], "greater than or equal to 1"),
    ({"pacePerMinute": 10_000_001}, ["pacePerMinute"], "less than or equal to 10000000"),
    ({"pacePerMinute": 1.5}, ["pacePerMinute"], "valid integer"),
    ({"pacePerMinute": 60.0}, ["pacePerMinute"], "valid integer"),
    ({"pacePerMinute": "60"}, ["pacePerMinute"], "valid integer"),
    ({"pacePerMinute": True}, ["pacePerMinute"], "valid integer"),
    ({"pacePerMinute": [60]}, ["pacePerMinute"], "valid integer"),
    ({"data": []}, ["data"], "an object"),
    ({"data": {"a": {"b": "\x00"}}}, ["data"], "data.a.b contains a NUL"),
    ({"data": {"a": "x" * 70_000}}, ["data"], "the limit is 65536"),
    ({"channels": []}, ["channels"], "at least 1"),
    ({"channels": ["PUSH", "PUSH"]}, ["channels"], "more than once"),
    ({"channels": ["FAX"]}, ["channels", 0], "'PUSH', 'SMS'"),
    ({"priority": "URGENT"}, ["priority"], "'HIGH', 'NORMAL'"),
    ({"guarantee": "twice"}, ["guarantee"], "at_least_once"),
    ({"critical": "yes"}, ["critical"], "boolean"),
    ({"subject": ""}, ["subject"], "at least 1"),
    ({"sendAt": "tomorrow"}, ["sendAt"], "datetime"),
    ({"sendAt": "2026-01-01T00:00:00"}, ["sendAt"], "timezone"),
    ({"sendAt": 1}, ["sendAt"], "datetime"),
    ({"sendAt": "0001-01-01T00:00:00+14:00"}, ["sendAt"], "before 1970"),
    ({"sendAt": "9999-12-31T23:59:59-14:00"}, ["sendAt"], "more than a year ahead"),
    ({"expiresAt": "tomorrow"}, ["expiresAt"], "datetime"),
    ({"expiresAt": "2026-01-01T00:00:00"}, ["expiresAt"], "timezone"),
    ({"expiresAt": "2020-01-01T00:00:00Z"}, ["expiresAt"], "in the past"),
    ({"expiresAt": "0001-01-01T00:00:00+14:00"}, ["expiresAt"], "before 1970"),
    ({"expiresAt": "9999-12-31T23:59:59-14:00"}, ["expiresAt"], "more than a year ahead"),
    ({"expiresAt": in_hours(1), "sendAt": in_hours(2)}, ["expiresAt"], "before sendAt"),
    ({"idempotencyKey": ""}, ["idempotencyKey"], "at least 1"),
    ({"user_ids": ["a"]}, ["user_ids"], "Extra inputs"),
    ({"message": "x"}, ["message"], "Extra inputs"),
]


async def test_bad_input_says_what_and_where_and_stores_nothing(api: httpx.AsyncClient, store: Store) -> None:
    for change, loc, says in BAD:
        response = await api.post("/api/notifications", json={**LEAST, **change})
        assert response.status_code == 422, (change, response.text)
        mistakes = {tuple(one["loc"]): one["msg"] for one in response.json()["errors"]}
        assert says in mistakes[tuple(loc)], change
    for missing in LEAST:
        rest = {name: value for name, value in LEAST.items() if name != missing}
        response = await api.post("/api/notifications", json=rest)
        assert [one["loc"] for one in response.json()["errors"]] == [[missing]]
    # What our own client would not write.
    for number in ("NaN", "1e999", "9" * 5_000):
        body = f'{{"type":"X","userIds":["a"],"title":"t","body":"b","data":{{"a":{number}}}}}'
        response = await api.post("/api/notifications", content=body)
        assert response.status_code in (400, 422), number
        assert "Nothing was stored" in response.json()["detail"]
    assert await count_events(store) == 0


# --- the same again ---------------------------------------------------------------------------------------------------


async def test_a_key_sent_again_is_accepted_once(api: httpx.AsyncClient, store: Store) -> None:
    at = in_hours(1)
    for more in ({}, {"sendAt": at, "data": {"n": 1.0}}):
        first = await sent(api, idempotencyKey=f"k{more}", **more)
        again = await sent(api, idempotencyKey=f"k{more}", **more)
        assert (first["status"], again["status"]) == ("ACCEPTED", "DUPLICATE")
        assert first["eventId"] == again["eventId"]
    assert await count_events(store) == 2


async def test_a_number_sent_again_is_the_same_number(api: httpx.AsyncClient) -> None:
    for number in (1e23, -1.5e300, 5e-324, 1e16, 0.1, -0.0, 1.0, 2**70, 123456789.12345679):
        key, data = f"k {number}", {"n": number, "in": [{"side": number}]}
        await sent(api, idempotencyKey=key, data=data)
        assert (await sent(api, idempotencyKey=key, data=data))["status"] == "DUPLICATE", number
        other = {"n": number, "in": [{"side": number + max(1.0, abs(number) / 1024)}]}
        response = await api.post("/api/notifications", json={**LEAST, "idempotencyKey": key, "data": other})
        assert response.status_code == 409, number


async def test_a_key_sent_by_many_at_once_is_accepted_once(api: httpx.AsyncClient, store: Store) -> None:
    for number, more in enumerate(({}, {"sendAt": in_hours(1)})):
        answers = await asyncio.gather(*(sent(api, idempotencyKey=f"k{number}", **more) for _ in range(10)))
        assert sorted(one["status"] for one in answers) == ["ACCEPTED"] + ["DUPLICATE"] * 9
    assert await count_events(store) == 2


async def test_a_key_stands_for_one_request(api: httpx.AsyncClient, store: Store) -> None:
    first = await sent(api, idempotencyKey="k", sendAt="2020-01-01T09:00:00+09:00")
    # The same moment, written for another time zone.
    assert (await sent(api, idempotencyKey="k", sendAt="2020-01-01T00:00:00Z"))["status"] == "DUPLICATE"
    changes: list[dict[str, Any]] = [
        {"title": "other"}, {"userIds": ["a"]}, {"refId": "r"}, {"data": {}}, {"sendAt": in_hours(1)},
    ]  # fmt: skip
    for change in changes:
        body = {**LEAST, "idempotencyKey": "k", "sendAt": "2020-01-01T00:00:00Z", **change}
        response = await api.post("/api/notifications", json=body)
        assert response.status_code == 409, change
        assert "take another key" in response.json()["detail"]
    assert (await find(store, first["eventId"])).event.payload["title"] == LEAST["title"]
    assert await count_events(store) == 1


# --- later, or not at all ---------------------------------------------------------------------------------------------


async def test_what_is_scheduled_waits_for_its_time(api: httpx.AsyncClient, store: Store) -> None:
    at = in_hours(2)
    answer = await sent(api, sendAt=at)
    assert datetime.fromisoformat(answer["sendAt"]) == datetime.fromisoformat(at)
    assert await claim(store) == []
    stored = await find(store, answer["eventId"])
    assert (stored.due, stored.status) == (datetime.fromisoformat(at), EventStatus.PENDING)
    async with store.transaction() as tx:  # two hours pass
        await set_columns(tx, "events", due=NOW)
    (claimed,) = await claim(store)
    assert notice_of(claimed.event).audience == Listed(("a", "b"))


@pytest.mark.parametrize("hours", [2, -2])
async def test_the_stores_time_decides_what_lies_ahead(
    api: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    ahead, past = in_hours(1), in_hours(-1)
    # The clock of the API's machine is wrong by more than that.
    monkeypatch.setattr(direct, "utc_now", lambda: datetime.now(UTC) + timedelta(hours=hours))
    assert (await sent(api, sendAt=ahead))["sendAt"] is not None
    assert await claim(store) == []
    assert (await sent(api, sendAt=past))["sendAt"] is None
    assert len(await claim(store)) == 1


async def test_what_is_late_goes_at_once(api: httpx.AsyncClient, store: Store) -> None:
    assert (await sent(api, sendAt="2020-01-01T00:00:00Z"))["sendAt"] is None
    assert len(await claim(store)) == 1


async def cancel(api: httpx.AsyncClient, event_id: object) -> httpx.Response:
    return await api.delete(f"/api/notifications/scheduled/{event_id}")


async def test_what_has_not_gone_is_called_off_and_stays_so(api: httpx.AsyncClient, store: Store) -> None:
    event_id = (await sent(api, sendAt=in_hours(1), idempotencyKey="k"))["eventId"]
    for _ in range(2):
        response = await cancel(api, event_id)
        assert (response.status_code, response.json()) == (
            200, {"eventId": event_id, "status": "CANCELLED", "begun": False, "cancelled": 0, "sent": 0},
        )  # fmt: skip
    row = await find(store, event_id)
    assert (row.status, row.error, row.attempts) == (EventStatus.CANCELLED, None, 0)
    assert row.finished_at is not None
    async with store.transaction() as tx:
        await set_columns(tx, "events", due=NOW)
    assert await claim(store) == []
    # Its key does not bring it back, and says so.
    body = {**LEAST, "sendAt": in_hours(1), "idempotencyKey": "k"}
    response = await api.post("/api/notifications", json=body)
    assert response.status_code == 409
    assert "has been cancelled" in response.json()["detail"]


async def test_a_worker_that_holds_it_is_fenced_off(api: httpx.AsyncClient, store: Store) -> None:
    event_id = (await sent(api))["eventId"]
    (claimed,) = await claim(store)
    await set_columns(store, "events", fanout_cursor='[0, "a"]')
    answer = (await cancel(api, event_id)).json()
    assert answer == {"eventId": event_id, "status": "CANCELLED", "begun": True, "cancelled": 0, "sent": 0}
    async with store.transaction() as tx:
        assert await outbox.record(tx, [EventResult(claimed.event.event_id, claimed.epoch, EventStatus.DONE)]) == set()
    assert (await find(store, event_id)).status is EventStatus.CANCELLED


@pytest.mark.parametrize("status", [EventStatus.DONE, EventStatus.FAILED])
async def test_what_has_gone_or_failed_is_not_called_off(api: httpx.AsyncClient, store: Store, status: EventStatus) -> None:
    event_id = (await sent(api))["eventId"]
    (claimed,) = await claim(store)
    async with store.transaction() as tx:
        await outbox.record(tx, [EventResult(claimed.event.event_id, claimed.epoch, status)])
    response = await cancel(api, event_id)
    assert response.status_code == 409
    assert ("sent already" if status is EventStatus.DONE else "has failed") in response.json()["detail"]
    assert (await find(store, event_id)).status is status


async def test_only_what_was_sent_this_way_is_called_off(api: httpx.AsyncClient, store: Store) -> None:
    other = (await api.post("/api/events", json={"eventType": "product.updated"})).json()["events"][0]["eventId"]
    for unknown in (other, new_id()):
        assert (await cancel(api, unknown)).status_code == 404
    assert (await cancel(api, "7")).status_code == 422
    assert (await find(store, other)).status is EventStatus.PENDING


async def test_finishing_and_calling_off_at_once_have_one_winner(api: httpx.AsyncClient, store: Store) -> None:
    for _ in range(10):
        event_id = (await sent(api))["eventId"]
        (claimed,) = await claim(store)

        async def finish(one: ClaimedEvent = claimed) -> set[UUID]:
            async with store.transaction() as tx:
                return await outbox.record(tx, [EventResult(one.event.event_id, one.epoch, EventStatus.DONE)])

        response, finished = await asyncio.gather(cancel(api, event_id), finish())
        assert response.status_code == (409 if finished else 200)
        assert (await find(store, event_id)).status is (EventStatus.DONE if finished else EventStatus.CANCELLED)


async def test_the_event_type_is_the_one_the_rule_is_about(api: httpx.AsyncClient, store: Store) -> None:
    assert (await find(store, (await sent(api))["eventId"])).event.event_type == DIRECT


async def test_a_critical_one_has_an_event_type_of_its_own(api: httpx.AsyncClient, store: Store) -> None:
    event_id = (await sent(api, critical=True, sendAt=in_hours(1)))["eventId"]
    event = (await find(store, event_id)).event
    assert event.event_type == CRITICAL_DIRECT
    assert notice_of(event).type.is_critical
    assert (await find(store, (await sent(api, critical=False))["eventId"])).event.event_type == DIRECT
    assert (await cancel(api, event_id)).status_code == 200


def test_a_type_that_is_declared_critical_makes_it_critical() -> None:
    types = catalogue(Settings()).types

    def event_type(**more: Any) -> str:
        asked = direct.NotificationRequest(**{**LEAST, "type": "RESERVATION_CONFIRMED", **more})
        return asked.as_event(types).event_type

    assert event_type() == CRITICAL_DIRECT
    assert event_type(critical=False) == DIRECT
    assert event_type(type="PRICE_DROP") == DIRECT


async def test_a_members_key_sends_and_cancels_nothing(api: httpx.AsyncClient, member_token: str) -> None:
    calls = (("POST", "/api/notifications"), ("DELETE", f"/api/notifications/scheduled/{new_id()}"))
    for method, path in calls:
        headers = {"Authorization": f"Bearer {member_token}"}
        assert (await api.request(method, path, json=LEAST, headers=headers)).status_code == 403
    del api.headers["Authorization"]
    for method, path in calls:
        assert (await api.request(method, path, json=LEAST)).status_code == 401


async def test_the_request_is_described(api: httpx.AsyncClient) -> None:
    document = (await api.get("/openapi.json")).json()
    fields = document["components"]["schemas"]["NotificationRequest"]["properties"]
    assert {"userIds", "sendAt", "idempotencyKey"} < fields.keys()


# --- expiry -----------------------------------------------------------------------------------------------------------


async def test_a_time_of_expiry_reaches_the_notice(api: httpx.AsyncClient, store: Store) -> None:
    at = in_hours(2)
    await sent(api, expiresAt=at)
    (claimed,) = await claim(store)
    assert notice_of(claimed.event).expires_at == datetime.fromisoformat(at)


async def test_a_request_that_is_repeated_after_its_expiry_is_a_duplicate(
    api: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"idempotencyKey": "brief", "expiresAt": in_hours(1)}
    first = await sent(api, **body)

    async def later(_tx: object) -> datetime:
        return datetime.now(UTC) + timedelta(hours=2)

    monkeypatch.setattr(direct, "find_now", later)
    again = await sent(api, **body)
    assert (again["eventId"], again["status"]) == (first["eventId"], "DUPLICATE")
    response = await api.post("/api/notifications", json={**LEAST, **body, "idempotencyKey": "new"})
    assert response.status_code == 422
    assert await count_events(store) == 1
