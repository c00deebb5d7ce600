"""GET /api/admin/events and /api/admin/events/{eventId}: what they show, how the list pages, what they refuse."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from bongsu.api.paging import encode_cursor, encode_parts
from bongsu.model import new_id
from bongsu.store import Store
from bongsu.store.desk import event_progress
from bongsu.store.desk.event_progress import PageCursor
from tests.support.campaigns import add_cancellation, add_event, add_message, keep_counts
from tests.support.notifications import NOON, add_past_notification, add_past_suppression

PATH = "/api/admin/events"
HOUR = timedelta(hours=1)
AT = "2026-03-01T12:00:00+00:00"


async def answer(api: httpx.AsyncClient, path: str = PATH, **query: Any) -> dict[str, Any]:
    response = await api.get(path, params=query)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


# --- one --------------------------------------------------------------------------------------------------------------


async def test_an_event_that_no_worker_has_claimed_yet(api: httpx.AsyncClient, store: Store) -> None:
    async with store.transaction() as tx:
        event_id = await add_event(tx, actor_id="a", target_id="t", ref_id="sku-1", created_at=NOON)
    assert await answer(api, f"{PATH}/{event_id}") == {
        "eventId": str(event_id), "eventType": "product.price_changed", "status": "PENDING", "actorId": "a",
        "targetId": "t", "refId": "sku-1", "attempts": 0, "error": None,
        "decided": 0, "merged": 0, "suppressed": {}, "deliveries": {},
        "createdAt": AT, "dueAt": None, "finishedAt": None, "ratePerSecond": None, "expectedEnd": None,
        "cancellation": None,
    }  # fmt: skip


async def test_an_event_of_a_few_members(api: httpx.AsyncClient, store: Store) -> None:
    async with store.transaction() as tx:
        event_id = await add_event(tx, status="DONE", finished_at=NOON)
        message_id = await add_message(tx, event_id, seconds_ago=10)
        await add_past_notification(tx, message_id, "a", "SUCCESS", "FAIL", "SENDING")
        await add_past_notification(tx, message_id, "b", "UNKNOWN", channel="SMS")
        await add_past_suppression(tx, message_id, "c", "DUPLICATE")
    found = await answer(api, f"{PATH}/{event_id}")
    assert (found["status"], found["finishedAt"], found["decided"]) == ("DONE", AT, 3)
    assert found["suppressed"] == {"DUPLICATE": 1}
    assert found["deliveries"] == {"PUSH": {"SENDING": 1, "SUCCESS": 1, "FAIL": 1}, "SMS": {"UNKNOWN": 1}}
    # Three in ten seconds and a moment.
    assert 0.1 < found["ratePerSecond"] <= 0.3
    assert datetime.fromisoformat(found["expectedEnd"]).tzinfo is not None


async def test_progress_of_a_million_members_is_read_from_kept_counts(api: httpx.AsyncClient, store: Store) -> None:
    """There is no notification and no delivery that could be counted."""
    async with store.transaction() as tx:
        event_id = await add_event(tx)
        message_id = await add_message(tx, event_id, is_bulk=True, seconds_ago=100)
        counts = {"": {"NOTIFIED": 990_000, "RATE_LIMITED": 10_000}, "PUSH": {"MADE": 990_000, "SUCCESS": 490_000}}
        await keep_counts(tx, message_id, counts)
    found = await answer(api, f"{PATH}/{event_id}")
    assert found["decided"] == 1_000_000
    assert found["suppressed"] == {"RATE_LIMITED": 10_000}
    assert found["deliveries"] == {"PUSH": {"READY": 500_000, "SUCCESS": 490_000}}
    assert 4_000 < found["ratePerSecond"] <= 4_900


async def test_a_scheduled_and_a_cancelled_event(api: httpx.AsyncClient, store: Store) -> None:
    later = datetime(2100, 3, 1, 12, tzinfo=NOON.tzinfo)
    async with store.transaction() as tx:
        scheduled = await add_event(tx, due=later)
        cancelled = await add_event(tx, status="CANCELLED", finished_at=NOON)
        await add_cancellation(tx, cancelled, withdraw=True)
    assert (await answer(api, f"{PATH}/{scheduled}"))["dueAt"] == later.isoformat()
    found = await answer(api, f"{PATH}/{cancelled}")
    assert (found["status"], found["dueAt"]) == ("CANCELLED", None)
    assert "T" in found["cancellation"].pop("requestedAt")
    assert found["cancellation"] == {
        "requestedBy": "key:…abcd", "withdraw": True, "cancelled": 5, "sent": 7, "withdrawn": 3,
    }  # fmt: skip


async def test_an_unknown_event_is_404_and_a_bad_id_422(api: httpx.AsyncClient) -> None:
    unknown = new_id()
    response = await api.get(f"{PATH}/{unknown}")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == "urn:bongsu:no-such-event"
    assert str(unknown) in response.json()["detail"]
    assert (await api.get(f"{PATH}/7")).status_code == 422


# --- list -------------------------------------------------------------------------------------------------------------


async def test_the_list_has_each_event_without_counts(api: httpx.AsyncClient, store: Store) -> None:
    async with store.transaction() as tx:
        event_id = await add_event(
            tx, status="FAILED", actor_id="a", target_id="t", ref_id="r", attempts=4, error="KeyError: 'x'", created_at=NOON,
            finished_at=NOON,
        )  # fmt: skip
    assert await answer(api) == {
        "items": [
            {
                "eventId": str(event_id), "eventType": "product.price_changed", "status": "FAILED", "actorId": "a",
                "targetId": "t", "refId": "r", "attempts": 4, "error": "KeyError: 'x'", "createdAt": AT, "finishedAt": AT,
            }
        ],
        "next": None,
    }  # fmt: skip


async def walk(api: httpx.AsyncClient, **query: Any) -> list[list[str]]:
    """The ids of every page."""
    page = await answer(api, **query)
    found = [[one["eventId"] for one in page["items"]]]
    while page["next"] is not None:
        page = await answer(api, **query, cursor=page["next"])
        found.append([one["eventId"] for one in page["items"]])
    return found


async def test_pages_follow_each_other_without_repeats_or_gaps(api: httpx.AsyncClient, store: Store) -> None:
    async with store.transaction() as tx:
        # Pairs of the same moment, which their ids tell apart.
        known = []
        for number in range(11):
            at = NOON + (number // 2) * HOUR
            known.append((at, await add_event(tx, created_at=at)))
    newest_first = [str(event_id) for _, event_id in sorted(known, reverse=True)]
    found = await walk(api, limit=4)
    assert [one for page in found for one in page] == newest_first
    assert [len(page) for page in found] == [4, 4, 3]
    assert await walk(api, limit=11) == [newest_first]
    assert await walk(api) == [newest_first]


async def test_what_comes_in_between_pages_moves_nothing(api: httpx.AsyncClient, store: Store) -> None:
    async with store.transaction() as tx:
        known = [str(await add_event(tx, created_at=NOON + number * HOUR)) for number in range(4)][::-1]
    page = await answer(api, limit=2)
    async with store.transaction() as tx:
        await add_event(tx)
    rest = await answer(api, limit=2, cursor=page["next"])
    assert [one["eventId"] for one in page["items"] + rest["items"]] == known


async def test_a_page_may_be_short_though_there_are_more(
    api: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rare filter does not make one call read all events."""
    monkeypatch.setitem(event_progress.find_page.__kwdefaults__, "scan_limit", 3)  # type: ignore[arg-type]
    async with store.transaction() as tx:
        rare = str(await add_event(tx, "rare", created_at=NOON - HOUR))
        for number in range(5):
            await add_event(tx, created_at=NOON + number * HOUR)
    assert await walk(api, type="rare") == [[], [rare], []]


async def test_each_filter_is_heeded(api: httpx.AsyncClient, store: Store) -> None:
    async with store.transaction() as tx:
        a = str(await add_event(tx, "order.paid", target_id="m-1", status="DONE", created_at=NOON))
        b = str(await add_event(tx, "order.paid", target_id="m-2", status="FAILED", created_at=NOON + HOUR))
        c = str(await add_event(tx, "post.liked", target_id="m-1", status="PENDING", created_at=NOON + 2 * HOUR))
        d = str(await add_event(tx, "post.liked", status="CANCELLED", created_at=NOON + 3 * HOUR))
        e = str(await add_event(tx, "post.likd", status="UNHANDLED", created_at=NOON + 4 * HOUR))
    for query, found in (
        ({}, [e, d, c, b, a]),
        ({"type": "order.paid"}, [b, a]),
        ({"type": "nothing"}, []),
        ({"status": "DONE"}, [a]),
        ({"status": "FAILED"}, [b]),
        ({"status": "PENDING"}, [c]),
        ({"status": "CANCELLED"}, [d]),
        ({"status": "UNHANDLED"}, [e]),
        ({"targetId": "m-1"}, [c, a]),
        ({"targetId": "m-1", "type": "post.liked"}, [c]),
        ({"from": "2026-03-01T22:00:00+09:00"}, [e, d, c, b]),
        ({"to": "2026-03-01T14:00:00Z"}, [b, a]),
        ({"from": "2026-03-01T13:00:00Z", "to": "2026-03-01T13:00:00.000001Z"}, [b]),
        ({"from": "2026-03-01T13:00:00Z", "targetId": "m-1"}, [c]),
        ({"from": "2027-03-01T13:00:00Z"}, []),
        ({"cursor": encode_cursor(PageCursor(NOON, new_id()))}, [a]),
        ({"cursor": encode_cursor(PageCursor(NOON - HOUR, new_id()))}, []),
    ):
        assert [one["eventId"] for one in (await answer(api, **query))["items"]] == found, query


BAD = [
    ("eventType=a", "eventType", "Extra inputs"),
    ("target=a", "target", "Extra inputs"),
    ("type=", "type", "at least 1"),
    ("type=%00", "type", "pattern"),
    ("type=a&type=b", "type", "more than once"),
    ("status=done", "status", "'PENDING', 'DONE'"),
    ("targetId=", "targetId", "at least 1"),
    ("targetId=a%00", "targetId", "pattern"),
    ("from=yesterday", "from", "must be a time with offset"),
    ("from=2026-03-01T09:00:00", "from", "must be a time with offset"),
    ("to=0001-01-01T00:00:00Z", "to", "must be a time with offset"),
    ("to=9999-12-31T23:59:59Z", "to", "must be a time with offset"),
    ("limit=0", "limit", "greater than or equal to 1"),
    ("limit=101", "limit", "less than or equal to 100"),
    ("limit=many", "limit", "integer"),
    *(
        (f"cursor={cursor}", "cursor", "is not a cursor")
        for cursor in (
            "",
            "MTIz",
            encode_parts(7, str(new_id())),
            encode_parts(AT, 7),
            encode_parts(AT, "7"),
            encode_parts(AT, str(new_id()), 1),
            encode_parts("2026-03-01T12:00:00", str(new_id())),
            encode_parts("1969-03-01T12:00:00+00:00", str(new_id())),
            encode_parts("9999-12-31T23:59:59-01:00", str(new_id())),
            encode_parts("noon", str(new_id())),
        )
    ),
]


async def test_what_cannot_be_meant_is_refused_with_its_cure(api: httpx.AsyncClient) -> None:
    for query, name, says in BAD:
        response = await api.get(f"{PATH}?{query}")
        assert response.status_code == 422, query
        assert response.headers["content-type"] == "application/problem+json"
        (mistake,) = response.json()["errors"]
        assert mistake["loc"][:2] == ["query", name], query
        assert says in mistake["msg"], query


async def test_a_time_that_ends_before_it_begins_is_refused(api: httpx.AsyncClient) -> None:
    response = await api.get(f"{PATH}?from=2026-03-02T00:00:00Z&to=2026-03-01T00:00:00Z")
    assert response.status_code == 422
    assert response.json()["errors"][0]["msg"] == "`from` must lie before `to`"


# --- both -------------------------------------------------------------------------------------------------------------


async def test_only_the_servers_key_opens_them(api: httpx.AsyncClient, store: Store, member_token: str) -> None:
    async with store.transaction() as tx:
        event_id = await add_event(tx)
    for path in (PATH, f"{PATH}/{event_id}"):
        assert (await api.get(path)).status_code == 200
        assert (await api.get(path, headers={"Authorization": f"Bearer {member_token}"})).status_code == 403
        assert (await api.get(path, headers={"Authorization": ""})).status_code == 401


async def test_they_are_described(api: httpx.AsyncClient) -> None:
    document = (await api.get("/openapi.json")).json()
    names = {one["name"] for one in document["paths"][PATH]["get"]["parameters"]}
    assert names == {"type", "status", "targetId", "from", "to", "limit", "cursor"}
    one = document["paths"][f"{PATH}/{{event_id}}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    properties = document["components"]["schemas"][one["$ref"].rpartition("/")[2]]["properties"]
    assert {"decided", "suppressed", "deliveries", "ratePerSecond", "expectedEnd", "dueAt", "cancellation"} <= set(
        properties
    )
