"""GET /api/admin/history: what it shows, how it pages, what it refuses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx

from bongsu.api.paging import encode_cursor
from bongsu.model import new_id
from bongsu.store import Store
from bongsu.store.desk.history import PageCursor
from tests.support.notifications import NOON, add_past_message, add_past_notification, add_past_suppression


async def found(api: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    response = await api.get("/api/admin/history", params=query)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_a_row_for_who_was_notified_and_for_who_was_not(api: httpx.AsyncClient, store: Store) -> None:
    event_id = new_id()
    async with store.transaction() as tx:
        message_id = await add_past_message(tx, event_id=event_id)
        notification_id = await add_past_notification(tx, message_id, "a", "FAIL", code="UNREGISTERED", attempts=3)
        await add_past_suppression(tx, message_id, "b", "RATE_LIMITED")
    not_told, told = (await found(api))["items"]
    (delivery,) = told.pop("deliveries")
    assert delivery.pop("deliveryId").isdigit()
    at = "2026-03-01T12:00:00+00:00"
    assert delivery == {
        "channel": "PUSH", "deviceId": "d-0", "status": "FAIL", "code": "UNREGISTERED", "tries": 3, "attempts": [],
        "simulated": False, "createdAt": at, "finishedAt": None, "due": at,
    }  # fmt: skip
    assert told == {
        "memberId": "a", "eventId": str(event_id), "type": "PRICE_DROP", "subject": "product-1", "locale": "ko",
        "title": "사과 가격이 내렸어요", "message": "지금 10% 싸요", "status": "FAILED",
        "notificationId": str(notification_id), "mergedInto": None, "channels": ["PUSH", "IN_APP"],
        "createdAt": at, "readAt": None,
        "archivedAt": None, "deletedAt": None,
    }  # fmt: skip
    assert not_told == told | {"memberId": "b", "notificationId": None, "status": "RATE_LIMITED", "deliveries": []}


async def test_pages_follow_each_other_without_a_gap(api: httpx.AsyncClient, store: Store) -> None:
    async with store.transaction() as tx:
        for number in range(5):
            message_id = await add_past_message(tx, subject=str(number))
            for member in ("a", "철수.1", "~"):
                await add_past_notification(tx, message_id, member)
    seen: list[tuple[str, str]] = []
    cursor: dict[str, str] = {}
    while True:
        page = await found(api, limit=4, **cursor)
        seen += [(one["subject"], one["memberId"]) for one in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == [(str(number), member) for number in (4, 3, 2, 1, 0) for member in ("철수.1", "~", "a")]
    assert (await found(api, limit=15))["next"] is None


async def test_each_parameter_is_heeded(api: httpx.AsyncClient, store: Store) -> None:
    event_id = new_id()
    async with store.transaction() as tx:
        await add_past_notification(tx, await add_past_message(tx, "PRICE_DROP", event_id=event_id), "a", "SUCCESS")
        later = NOON + timedelta(hours=1)
        await add_past_suppression(tx, await add_past_message(tx, "POST_LIKE", later), "b", "NO_ADDRESS")
    for query, members in (
        ({}, ["b", "a"]),
        ({"userId": "a"}, ["a"]),
        ({"type": "POST_LIKE"}, ["b"]),
        ({"eventId": str(event_id)}, ["a"]),
        ({"status": "SENT"}, ["a"]),
        ({"status": "NO_ADDRESS"}, ["b"]),
        ({"channel": "PUSH"}, ["b", "a"]),
        ({"channel": "SMS"}, []),
        ({"from": "2026-03-01T22:00:00+09:00"}, ["b"]),
        ({"to": "2026-03-01T13:00:00Z"}, ["a"]),
        ({"from": "2026-03-01T12:00:00Z", "to": "2026-03-01T13:00:01Z"}, ["b", "a"]),
        ({"userId": "nobody"}, []),
        ({"cursor": encode_cursor(PageCursor(0, "a"))}, []),
        ({"cursor": encode_cursor(PageCursor(2**63 - 1, "a"))}, ["b", "a"]),
    ):
        assert [one["memberId"] for one in (await found(api, **query))["items"]] == members, query


BAD = [
    ("user=a", "user", "Extra inputs"),
    ("userId=", "userId", "at least 1"),
    ("userId=a%00", "userId", "pattern"),
    ("userId=a&userId=b", "userId", "more than once"),
    ("type=%00", "type", "pattern"),
    ("eventId=7", "eventId", "UUID"),
    ("status=sent", "status", "'SENT', 'FAILED'"),
    ("channel=PIGEON", "channel", "'PUSH', 'SMS'"),
    ("from=yesterday", "from", "must be a time with offset"),
    ("from=2026-03-01T09:00:00", "from", "must be a time with offset"),
    ("from=2026-03-01T09:00:00+09:00", "from", "a + in a URL is written %2B"),
    ("to=0001-01-01T00:00:00Z", "to", "must be a time with offset"),
    ("to=9999-12-31T23:59:59Z", "to", "must be a time with offset"),
    ("limit=0", "limit", "greater than or equal to 1"),
    ("limit=201", "limit", "less than or equal to 200"),
    ("limit=many", "limit", "integer"),
    ("cursor=", "cursor", "is not a cursor"),
    ("cursor=%ED%95%9C", "cursor", "is not a cursor"),
    ("cursor=MTIz", "cursor", "is not a cursor"),
    ("cursor=LTEuYQ", "cursor", "is not a cursor"),
    ("cursor=MS4A", "cursor", "is not a cursor"),
    ("cursor=gICA", "cursor", "is not a cursor"),
    ("cursor=W3RydWUsImEiXQ", "cursor", "is not a cursor"),  # [true,"a"]
    ("cursor=WyIxIiwiYSJd", "cursor", "is not a cursor"),  # ["1","a"]
    ("cursor=WzkyMjMzNzIwMzY4NTQ3NzU4MDgsImEiXQ", "cursor", "is not a cursor"),  # [9223372036854775808,"a"]
    ("cursor=Wy0xLCJhIl0", "cursor", "is not a cursor"),  # [-1,"a"]
    ("cursor=WzEsIlx1MDAwMCJd", "cursor", "is not a cursor"),  # [1,"\u0000"]
    ("cursor=WzEsIlx1ZDgwMCJd", "cursor", "is not a cursor"),  # [1,"\ud800"]
    ("cursor=WzEsICJhIl0", "cursor", "is not a cursor"),  # [1, "a"]
    ("cursor=eyJhIjoxfQ", "cursor", "is not a cursor"),  # {"a":1}
    ("cursor=WzEsImEiLDJd", "cursor", "is not a cursor"),  # [1,"a",2]
]


async def test_what_cannot_be_meant_is_refused_with_its_cure(api: httpx.AsyncClient) -> None:
    for query, name, says in BAD:
        response = await api.get(f"/api/admin/history?{query}")
        assert response.status_code == 422, query
        assert response.headers["content-type"] == "application/problem+json"
        (mistake,) = response.json()["errors"]
        assert mistake["loc"][:2] == ["query", name], query
        assert says in mistake["msg"], query


async def test_a_time_that_ends_before_it_begins_is_refused(api: httpx.AsyncClient) -> None:
    response = await api.get("/api/admin/history?from=2026-03-02T00:00:00Z&to=2026-03-01T00:00:00Z")
    assert response.status_code == 422
    assert response.json()["errors"][0]["msg"] == "`from` must lie before `to`"


async def test_a_members_key_does_not_open_it(api: httpx.AsyncClient, member_token: str) -> None:
    headers = {"Authorization": f"Bearer {member_token}"}
    assert (await api.get("/api/admin/history", headers=headers)).status_code == 403
    del api.headers["Authorization"]
    assert (await api.get("/api/admin/history")).status_code == 401


async def test_it_is_described(api: httpx.AsyncClient) -> None:
    call = (await api.get("/openapi.json")).json()["paths"]["/api/admin/history"]["get"]
    names = {one["name"] for one in call["parameters"]}
    assert names == {"userId", "type", "eventId", "status", "channel", "from", "to", "limit", "cursor"}
