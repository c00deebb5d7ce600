"""A member's inbox over HTTP: its shapes, its pages, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from bongsu.store import Store
from tests.support.inbox import add_unread

INBOX = "/api/notifications"


@pytest.fixture
async def mine(api: httpx.AsyncClient, member_token: str) -> AsyncIterator[httpx.AsyncClient]:
    """The client with the key of member m-1."""
    api.headers["Authorization"] = f"Bearer {member_token}"
    yield api


@pytest.fixture
def as_other(settings: Settings) -> dict[str, str]:
    return {"Authorization": f"Bearer {Keys.load(settings).member_token('m-2', timedelta(hours=1))}"}


async def add_notifications(store: Store, count: int = 1, member_id: str = "m-1", **words: Any) -> list[str]:
    async with store.transaction() as tx:
        return [str(one) for one in await add_unread(tx, member_id, count, **words)]


def ids(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return [item["id"] for item in response.json()["items"]]


async def test_a_notification_says_what_it_is_and_when(mine: httpx.AsyncClient, store: Store) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    data = '{"productId":"sku-1","price":10.5,"big":123456789012345678901234567890,"deep":{"a":[null,true,"가"]}}'
    [one] = await add_notifications(
        store, type="PRICE_DROP", title="사과 값이 내렸어요", body="이제 900원", ref_id="sku-1", data=data
    )
    answer = (await mine.get(INBOX)).json()
    [item] = answer["items"]
    created = datetime.fromisoformat(item.pop("createdAt"))
    assert before < created < datetime.now(UTC) + timedelta(seconds=1)
    assert item == {
        "id": one,
        "type": "PRICE_DROP",
        "title": "사과 값이 내렸어요",
        "message": "이제 900원",
        "refId": "sku-1",
        "data": {
            "productId": "sku-1", "price": 10.5, "big": 123456789012345678901234567890, "deep": {"a": [None, True, "가"]},
        },
        "readAt": None, "seenAt": None, "archivedAt": None, "updatedAt": None,
    }  # fmt: skip
    assert (answer["next"], answer["unread"]) == (None, 1)
    await add_notifications(store, ref_id=None, data="{}")
    newest = (await mine.get(INBOX)).json()["items"][0]
    assert (newest["refId"], newest["data"]) == (None, {})


async def test_an_inbox_nothing_came_to_is_empty(mine: httpx.AsyncClient) -> None:
    assert (await mine.get(INBOX)).json() == {"items": [], "next": None, "unread": 0}
    assert (await mine.get(f"{INBOX}/unread-count")).json() == {"unread": 0}
    assert (await mine.post(f"{INBOX}/read-all")).json() == {"read": 0, "unread": 0}


async def test_pages_follow_each_other_while_new_ones_arrive(mine: httpx.AsyncClient, store: Store) -> None:
    there = (await add_notifications(store, 25))[::-1]
    first = await mine.get(INBOX)
    assert ids(first) == there[:20]
    later = await add_notifications(store, 3)
    second = await mine.get(INBOX, params={"cursor": first.json()["next"]})
    assert ids(second) == there[20:]
    assert (second.json()["next"], second.json()["unread"]) == (None, 28)
    assert ids(await mine.get(INBOX, params={"limit": 3})) == later[::-1]
    # A last page that is full has none after it.
    assert (await mine.get(INBOX, params={"limit": 28})).json()["next"] is None
    assert ids(await mine.get(INBOX, params={"cursor": there[-1]})) == []


UNREAD_ALONE = ("?unread", "?unread=", "?unread=true", "?unread=True", "?unread=1")
ALL = ("", "?unread=false", "?unread=0")


async def test_the_unread_can_be_had_alone(mine: httpx.AsyncClient, store: Store) -> None:
    first, second, third = await add_notifications(store, 3)
    await mine.post(f"{INBOX}/{second}/read")
    for query in UNREAD_ALONE:
        assert ids(await mine.get(INBOX + query)) == [third, first], query
    for query in ALL:
        assert ids(await mine.get(INBOX + query)) == [third, second, first], query
    assert (await mine.get(INBOX + "?unread&limit=1")).json()["next"] == third


async def test_reading_one_twice_is_reading_it_once(mine: httpx.AsyncClient, store: Store) -> None:
    one, other = await add_notifications(store, 2)
    first = await mine.post(f"{INBOX}/{one}/read")
    assert first.status_code == 200
    answer = first.json()
    assert (answer["id"], answer["unread"]) == (one, 1)
    assert (await mine.post(f"{INBOX}/{one}/read")).json() == answer
    assert (await mine.get(f"{INBOX}/unread-count")).json() == {"unread": 1}
    read = {item["id"]: item["readAt"] for item in (await mine.get(INBOX)).json()["items"]}
    assert read == {one: answer["readAt"], other: None}
    assert datetime.fromisoformat(answer["readAt"]).utcoffset() == timedelta(0)


async def test_reading_all_twice_is_reading_them_once(mine: httpx.AsyncClient, store: Store) -> None:
    one, *_ = await add_notifications(store, 4)
    first = (await mine.post(f"{INBOX}/{one}/read")).json()
    assert (await mine.post(f"{INBOX}/read-all")).json() == {"read": 3, "unread": 0}
    assert (await mine.post(f"{INBOX}/read-all")).json() == {"read": 0, "unread": 0}
    page = (await mine.get(INBOX)).json()
    assert page["unread"] == 0
    # What was read before keeps its time.
    assert page["items"][-1]["readAt"] == first["readAt"]
    assert all(item["readAt"] for item in page["items"])


# --- what a member does with one --------------------------------------------------------------------------------------

CHANGES = [
    ("POST", "/1/read"), ("POST", "/1/unread"), ("POST", "/1/archive"), ("POST", "/1/unarchive"), ("DELETE", "/1"),
]  # fmt: skip


async def test_what_was_read_can_be_unread_again(mine: httpx.AsyncClient, store: Store) -> None:
    one, other = await add_notifications(store, 2)
    await mine.post(f"{INBOX}/read-all")
    for _ in range(2):
        assert (await mine.post(f"{INBOX}/{one}/unread")).status_code == 204
        assert (await mine.get(f"{INBOX}/unread-count")).json() == {"unread": 1}
    assert ids(await mine.get(f"{INBOX}?unread")) == [one]
    assert ids(await mine.get(INBOX)) == [other, one]


async def test_what_is_archived_is_read_and_in_no_list_but_its_own(mine: httpx.AsyncClient, store: Store) -> None:
    one, other = await add_notifications(store, 2)
    for _ in range(2):
        assert (await mine.post(f"{INBOX}/{one}/archive")).status_code == 204
        assert ids(await mine.get(INBOX)) == ids(await mine.get(f"{INBOX}?unread")) == [other]
    archive = (await mine.get(f"{INBOX}?archived=true")).json()
    [item] = archive["items"]
    assert (item["id"], archive["unread"], archive["next"]) == (one, 1, None)
    assert item["archivedAt"] == item["readAt"] == item["seenAt"] is not None
    # It is read already; to be unread it has to be in the inbox.
    assert (await mine.post(f"{INBOX}/{one}/read")).json() == {"id": one, "readAt": item["readAt"], "unread": 1}
    refused = await mine.post(f"{INBOX}/{one}/unread")
    assert refused.status_code == 409
    assert "unarchive" in refused.json()["detail"]
    for _ in range(2):
        assert (await mine.post(f"{INBOX}/{one}/unarchive")).status_code == 204
        assert ids(await mine.get(f"{INBOX}?archived")) == []
        assert ids(await mine.get(INBOX)) == [other, one]
    again = (await mine.get(INBOX)).json()
    assert (again["items"][1]["readAt"], again["items"][1]["archivedAt"]) == (item["readAt"], None)
    assert again["unread"] == 1


async def test_the_archive_has_pages(mine: httpx.AsyncClient, store: Store) -> None:
    there = (await add_notifications(store, 5))[::-1]
    for one in there[:4]:
        await mine.post(f"{INBOX}/{one}/archive")
    first = await mine.get(f"{INBOX}?archived=true&limit=3")
    assert ids(first) == there[:3]
    second = await mine.get(f"{INBOX}?archived=true&limit=3&cursor={first.json()['next']}")
    assert (ids(second), second.json()["next"]) == (there[3:4], None)


async def test_what_is_deleted_is_gone_for_good(mine: httpx.AsyncClient, store: Store) -> None:
    unread, archived, stays = await add_notifications(store, 3)
    await mine.post(f"{INBOX}/{archived}/archive")
    for one in (unread, archived):
        for _ in range(2):
            assert (await mine.delete(f"{INBOX}/{one}")).status_code == 204
        for call in ("read", "unread", "archive", "unarchive"):
            assert (await mine.post(f"{INBOX}/{one}/{call}")).status_code == 404, call
    page = await mine.get(INBOX)
    assert (ids(page), page.json()["unread"]) == ([stays], 1)
    assert ids(await mine.get(f"{INBOX}?archived")) == []


async def test_the_list_is_seen_and_stays_unread(mine: httpx.AsyncClient, store: Store) -> None:
    [one] = await add_notifications(store)
    assert (await mine.post(f"{INBOX}/seen")).status_code == 204
    [first] = (await mine.get(INBOX)).json()["items"]
    await add_notifications(store)
    assert (await mine.post(f"{INBOX}/seen")).status_code == 204
    assert (await mine.post(f"{INBOX}/seen")).status_code == 204
    page = (await mine.get(INBOX)).json()
    assert page["unread"] == 2
    # What was seen before keeps its time.
    assert page["items"][1]["seenAt"] == first["seenAt"] is not None
    assert page["items"][0]["seenAt"] >= first["seenAt"]
    assert one == first["id"]


# --- what is refused --------------------------------------------------------------------------------------------------


async def test_a_member_neither_sees_nor_reads_anothers(
    mine: httpx.AsyncClient, store: Store, as_other: dict[str, str]
) -> None:
    [one] = await add_notifications(store)
    [others] = await add_notifications(store, member_id="m-2")
    assert ids(await mine.get(INBOX)) == [one]
    for method, path in CHANGES:
        response = await mine.request(method, INBOX + path.replace("1", others, 1))
        assert response.status_code == 404, path
        assert response.headers["content-type"] == "application/problem+json"
    assert (await mine.post(f"{INBOX}/seen")).status_code == 204
    assert (await mine.post(f"{INBOX}/read-all")).json() == {"read": 1, "unread": 0}
    assert (await mine.get(f"{INBOX}/unread-count", headers=as_other)).json() == {"unread": 1}
    [item] = (await mine.get(INBOX, headers=as_other)).json()["items"]
    assert (item["readAt"], item["seenAt"]) == (None, None)


NO_IDS = (
    "0",
    "-1",
    "x",
    "1.0",
    "1e3",
    "+1",
    "%201",
    "01",
    "٣",
    "%00",
    "null",
    "999999",
    str(2**63 - 1),
    str(2**63),
    "9" * 5000,
)


async def test_an_id_that_is_none_is_not_found(mine: httpx.AsyncClient, store: Store) -> None:
    await add_notifications(store)
    for bad in NO_IDS:
        for method, path in CHANGES:
            response = await mine.request(method, INBOX + path.replace("1", bad, 1))
            assert response.status_code == 404, (path, bad)
            assert "GET /api/notifications" in response.json()["detail"], (path, bad)
    assert (await mine.get(f"{INBOX}/unread-count")).json() == {"unread": 1}


BAD_QUERIES = (
    ("limit=0", "limit", "greater than or equal to 1"),
    ("limit=101", "limit", "less than or equal to 100"),
    ("limit=-1", "limit", "greater than or equal to 1"),
    ("limit=", "limit", "integer"),
    ("limit=many", "limit", "integer"),
    ("limit=" + "9" * 5000, "limit", "integer"),
    *((f"cursor={bad}", "cursor", "not a cursor") for bad in ("", *NO_IDS) if bad not in ("999999", str(2**63 - 1))),
    ("unread=yes", "unread", "unread=true"),
    ("archived=yes", "archived", "archived=true"),
    ("unread=%00", "unread", "unread=true"),
    ("coursor=5", "coursor", "not permitted"),
)


async def test_a_bad_query_names_its_cure(mine: httpx.AsyncClient) -> None:
    for query, name, cure in BAD_QUERIES:
        response = await mine.get(f"{INBOX}?{query}")
        assert response.status_code == 422, query
        assert response.headers["content-type"] == "application/problem+json"
        [mistake] = response.json()["errors"]
        assert mistake["loc"] == ["query", name]
        assert cure in mistake["msg"]


async def test_the_archived_are_not_asked_for_as_unread(mine: httpx.AsyncClient) -> None:
    response = await mine.get(f"{INBOX}?archived&unread")
    assert response.status_code == 422
    assert "not both" in response.json()["errors"][0]["msg"]
    assert (await mine.get(f"{INBOX}?archived=false&unread")).status_code == 200


async def test_only_a_members_key_opens_an_inbox(api: httpx.AsyncClient) -> None:
    calls = [("GET", ""), ("GET", "/unread-count"), ("POST", "/read-all"), ("POST", "/seen"), *CHANGES]
    for method, path in calls:
        assert (await api.request(method, INBOX + path)).status_code == 403, path
    del api.headers["Authorization"]
    for method, path in calls:
        assert (await api.request(method, INBOX + path)).status_code == 401, path


async def test_the_document_says_what_a_page_takes(api: httpx.AsyncClient) -> None:
    document = (await api.get("/openapi.json")).json()
    parameters = {one["name"]: one["schema"] for one in document["paths"][INBOX]["get"]["parameters"]}
    assert set(parameters) == {"unread", "archived", "limit", "cursor"}
    assert (parameters["limit"]["type"], parameters["cursor"]["type"]) == ("integer", "string")
    assert {"type": "boolean"} in parameters["unread"]["anyOf"]
