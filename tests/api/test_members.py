"""Members, their preferences and devices, called by servers and by the members themselves."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.clock import find_now
from bongsu.store.core.query import same
from tests.support.rows import set_columns


@pytest.fixture
def as_member(settings: Settings) -> dict[str, str]:
    return {"Authorization": f"Bearer {Keys.load(settings).member_token('m-1', timedelta(hours=1))}"}


ANDROID = {"token": "token-a", "platform": "ANDROID", "pushConsent": True}


async def count(store: Store, table: str) -> int:
    async with store.read() as tx:
        (row,) = await tx.fetch(same(f"SELECT count(*) AS rows FROM bongsu_{table}")())
    return int(row["rows"])


async def test_a_member_is_stored_and_found(api: httpx.AsyncClient) -> None:
    known = {"locale": "ko-KR", "timezone": "Asia/Seoul", "email": "철수@example.com", "phone": "+82 10-1234-5678"}
    response = await api.put("/api/members/m-1", json=known)
    assert response.status_code == 200, response.text
    assert (await api.get("/api/members/m-1")).json() == {"memberId": "m-1", **known}
    # PUT replaces: what is left out is no longer known.
    await api.put("/api/members/m-1", json={"email": "a@b"})
    assert (await api.get("/api/members/m-1")).json() == {
        "memberId": "m-1", "locale": None, "timezone": None, "email": "a@b", "phone": None,
    }  # fmt: skip
    assert (await api.get("/api/members/nobody")).status_code == 404


BAD: list[tuple[str, Any, list[Any]]] = [
    ("/api/members/m", {"timezone": "Mars/Olympus"}, ["timezone"]),
    ("/api/members/m", {"timezone": "Asia"}, ["timezone"]),
    ("/api/members/m", {"locale": "korean!"}, ["locale"]),
    ("/api/members/m", {"email": "nobody"}, ["email"]),
    ("/api/members/m", {"email": "a\u0000@b"}, ["email"]),
    ("/api/members/m", {"email": "=?utf-8?q?a=0D=0ABcc:_x?=@example.org"}, ["email"]),
    ("/api/members/m", {"email": "a@b\r\nBcc: x@example.org"}, ["email"]),
    ("/api/members/m", {"email": "a@b..c"}, ["email"]),
    ("/api/members/m", {"phone": "call me"}, ["phone"]),
    ("/api/members/m", {"phone": "010-1234-5678\n"}, ["phone"]),
    ("/api/members/m", {"name": "x"}, ["name"]),
    ("/api/members/m", [], []),
    ("/api/members/m/preferences", {"enabled": "yes"}, ["enabled"]),
    ("/api/members/m/preferences", {"types": {"X": {"channels": ["PIGEON"]}}}, ["types", "X", "channels", 0]),
    ("/api/members/m/preferences", {"types": {"": {}}}, ["types", "", "[key]"]),
    ("/api/members/m/preferences", {"quietHours": {"start": "24:00", "end": "08:00"}}, ["quietHours", "start"]),
    ("/api/members/m/preferences", {"quietHours": {"start": "08:00", "end": "08:00"}}, ["quietHours"]),
    ("/api/members/m/preferences", {"quietHours": {"start": "22:00"}}, ["quietHours", "end"]),
    ("/api/members/m/devices/d", {**ANDROID, "token": ""}, ["token"]),
    ("/api/members/m/devices/d", {**ANDROID, "token": "한글"}, ["token"]),
    ("/api/members/m/devices/d", {**ANDROID, "platform": "TOASTER"}, ["platform"]),
    ("/api/members/m/devices/d", {**ANDROID, "pushConsent": 1}, ["pushConsent"]),
    ("/api/products/p", {"name": ""}, ["name"]),
    ("/api/products/p", {"name": "x", "price": -1}, ["price"]),
    ("/api/products/p", {"name": "x", "stock": 1.5}, ["stock"]),
    ("/api/products/p", {"name": "x", "stock": 2**70}, ["stock"]),
]


async def test_bad_input_says_what_and_where_and_changes_nothing(api: httpx.AsyncClient, store: Store) -> None:
    for path, body, loc in BAD:
        response = await api.put(path, json=body)
        assert response.status_code == 422, (path, body, response.text)
        assert loc in [one["loc"] for one in response.json()["errors"]], (path, body)
        for table in ("members", "preferences", "devices", "products"):
            assert await count(store, table) == 0, (path, body)


async def test_an_id_that_is_none_is_refused(api: httpx.AsyncClient) -> None:
    for member_id in ("%00", "a%0Ab", "x" * 300):
        assert (await api.put(f"/api/members/{member_id}", json={})).status_code == 422, member_id


async def test_preferences_are_found_as_they_were_set(api: httpx.AsyncClient) -> None:
    defaults = {"enabled": True, "types": {}, "quietHours": None}
    assert (await api.get("/api/members/m-1/preferences")).json() == defaults
    preferences = {
        "enabled": False,
        "types": {
            "POST_LIKE": {"enabled": False},
            "PRICE_DROP": {"enabled": True, "channels": ["PUSH", "IN_APP"]},
            "RESTOCK": {"enabled": True, "channels": []},
        },
        "quietHours": {"start": "22:00", "end": "08:30"},
    }
    assert (await api.put("/api/members/m-1/preferences", json=preferences)).json() == preferences
    assert (await api.get("/api/members/m-1/preferences")).json() == preferences
    await api.put("/api/members/m-1/preferences", json={})
    assert (await api.get("/api/members/m-1/preferences")).json() == defaults
    # Preferences and addresses do not overwrite each other.
    assert (await api.get("/api/members/m-1")).status_code == 200


async def test_a_member_has_several_devices_and_a_refreshed_token_keeps_its_device(api: httpx.AsyncClient) -> None:
    first = (await api.put("/api/members/m-1/devices/phone", json=ANDROID)).json()
    assert {key: first[key] for key in ("deviceId", "token", "platform", "pushConsent", "status")} == {
        "deviceId": "phone", **ANDROID, "status": "ACTIVE",
    }  # fmt: skip
    await api.put("/api/members/m-1/devices/web", json={"token": "token-w", "platform": "WEB", "pushConsent": False})
    await api.put("/api/members/m-1/devices/phone", json={**ANDROID, "token": "token-b"})
    devices = (await api.get("/api/members/m-1/devices")).json()["devices"]
    assert [(one["deviceId"], one["token"], one["pushConsent"]) for one in devices] == [
        ("phone", "token-b", True),
        ("web", "token-w", False),
    ]


async def test_a_token_is_one_devices_and_moves(api: httpx.AsyncClient) -> None:
    await api.put("/api/members/m-1/devices/phone", json=ANDROID)
    await api.put("/api/members/m-2/devices/tablet", json=ANDROID)
    assert (await api.get("/api/members/m-1/devices")).json() == {"devices": []}
    assert [one["deviceId"] for one in (await api.get("/api/members/m-2/devices")).json()["devices"]] == ["tablet"]


async def test_a_token_claimed_by_many_at_once_ends_with_one(api: httpx.AsyncClient, store: Store) -> None:
    answers = await asyncio.gather(*(api.put(f"/api/members/m-{n % 4}/devices/d-{n}", json=ANDROID) for n in range(12)))
    assert {answer.status_code for answer in answers} == {200}
    assert await count(store, "devices") == 1


async def test_registering_again_revives_an_invalid_device(api: httpx.AsyncClient, store: Store) -> None:
    await api.put("/api/members/m-1/devices/phone", json=ANDROID)
    await set_columns(store, "devices", status="INVALID")
    assert (await api.get("/api/members/m-1/devices")).json()["devices"][0]["status"] == "INVALID"
    assert (await api.put("/api/members/m-1/devices/phone", json=ANDROID)).json()["status"] == "ACTIVE"


async def test_removing_a_device_twice_is_fine(api: httpx.AsyncClient) -> None:
    await api.put("/api/members/m-1/devices/phone", json=ANDROID)
    for _ in range(2):
        assert (await api.delete("/api/members/m-1/devices/phone")).status_code == 204
    assert (await api.get("/api/members/m-1/devices")).json() == {"devices": []}


async def test_a_member_acts_for_itself_only(api: httpx.AsyncClient, as_member: dict[str, str]) -> None:
    assert (await api.put("/api/preferences", json={"enabled": False}, headers=as_member)).status_code == 200
    assert (await api.get("/api/preferences", headers=as_member)).json()["enabled"] is False
    assert (await api.put("/api/devices/phone", json=ANDROID, headers=as_member)).status_code == 200
    assert len((await api.get("/api/members/m-1/devices")).json()["devices"]) == 1
    assert (await api.delete("/api/devices/phone", headers=as_member)).status_code == 204
    assert (await api.get("/api/members/m-1/preferences")).json()["enabled"] is False


SERVER_CALLS = [
    ("PUT", "/api/members/m-1"),
    ("GET", "/api/members/m-1"),
    ("PUT", "/api/members/m-1/preferences"),
    ("GET", "/api/members/m-1/preferences"),
    ("PUT", "/api/members/m-1/devices/d"),
    ("GET", "/api/members/m-1/devices"),
    ("DELETE", "/api/members/m-1/devices/d"),
    ("PUT", "/api/products/p"),
    ("GET", "/api/products/p"),
    ("POST", "/api/behaviors"),
]
MEMBER_CALLS = [
    ("PUT", "/api/preferences"),
    ("GET", "/api/preferences"),
    ("PUT", "/api/devices/d"),
    ("DELETE", "/api/devices/d"),
]


async def test_a_members_key_opens_no_server_call(api: httpx.AsyncClient, as_member: dict[str, str]) -> None:
    del api.headers["Authorization"]
    for method, path in SERVER_CALLS:
        assert (await api.request(method, path, json={}, headers=as_member)).status_code == 403, (method, path)
        assert (await api.request(method, path, json={})).status_code == 401, (method, path)


async def test_a_server_key_opens_no_member_call(api: httpx.AsyncClient) -> None:
    with_key = {"Authorization": api.headers.pop("Authorization")}
    for method, path in MEMBER_CALLS:
        assert (await api.request(method, path, json={}, headers=with_key)).status_code == 403, (method, path)
        assert (await api.request(method, path, json={})).status_code == 401, (method, path)


# --- products and behaviours ------------------------------------------------------------------------------------------


async def test_a_product_is_stored_and_found(api: httpx.AsyncClient) -> None:
    assert (await api.get("/api/products/sku-1")).status_code == 404
    await api.put("/api/products/sku-1", json={"name": "사과", "price": 1000.5, "stock": 3})
    found = {"productId": "sku-1", "name": "사과", "price": 1000.5, "stock": 3}
    assert (await api.get("/api/products/sku-1")).json() == found
    await api.put("/api/products/sku-1", json={"name": "배"})
    assert (await api.get("/api/products/sku-1")).json() == {**found, "name": "배", "price": None, "stock": None}


async def kept(store: Store) -> list[tuple[str, str, str]]:
    return [(key, action, at.strftime("%d")) for key, action, at in await behaviors(store)]


async def behaviors(store: Store) -> list[tuple[str, str, datetime]]:
    async with store.read() as tx:
        query = same("SELECT product_id, member_id, action, acted_at AS at FROM bongsu_behaviors ORDER BY 1, 2, 3")
        rows = await tx.fetch(query())
    return [(f"{row['product_id']} {row['member_id']}", row["action"], store.dialect.time(row["at"])) for row in rows]


def did(member: str, action: str, day: int, product: str = "p") -> dict[str, str]:
    return {"userId": member, "productId": product, "action": action, "at": f"2026-03-{day:02d}T00:00:00Z"}


async def test_the_newest_of_each_is_kept_in_whatever_order_they_come(api: httpx.AsyncClient, store: Store) -> None:
    first = [did("a", "VIEW", 2), did("a", "VIEW", 5), did("a", "VIEW", 3), did("a", "CLICK", 1), did("b", "VIEW", 1)]
    assert (await api.post("/api/behaviors", json=first)).json() == {"accepted": 5}
    assert await kept(store) == [("p a", "CLICK", "01"), ("p a", "VIEW", "05"), ("p b", "VIEW", "01")]
    await api.post("/api/behaviors", json=did("a", "VIEW", 4))
    await api.post("/api/behaviors", json=did("b", "VIEW", 9))
    assert await kept(store) == [("p a", "CLICK", "01"), ("p a", "VIEW", "05"), ("p b", "VIEW", "09")]
    # A member who was not known is created.
    assert (await api.get("/api/members/a")).status_code == 200


async def test_a_behaviour_without_a_time_happened_when_it_was_stored_by_the_stores_clock(
    api: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store.read() as tx:
        before = await find_now(tx)
    # A process whose clock is wrong.
    monkeypatch.setattr("bongsu.model.utc_now", lambda: before + timedelta(hours=5))
    view = {"userId": "a", "productId": "p", "action": "VIEW"}
    given = before + timedelta(hours=1)
    posted = [view, view, {**view, "userId": "b", "at": given.isoformat()}, {**view, "userId": "b"}]
    assert (await api.post("/api/behaviors", json=posted)).json() == {"accepted": 4}
    async with store.read() as tx:
        after = await find_now(tx)
    (_, _, stored), (_, _, newest) = await behaviors(store)
    assert before - timedelta(milliseconds=1) <= stored <= after
    assert newest == given


async def test_behaviours_come_as_lines_too(api: httpx.AsyncClient, store: Store) -> None:
    import json

    lines = [json.dumps(did(f"m-{number}", "VIEW", 1 + number % 28)) for number in range(3000)]
    lines.insert(7, '{"userId":"x"}')
    response = await api.post(
        "/api/behaviors", content="\n".join(lines).encode(), headers={"Content-Type": "application/x-ndjson"}
    )
    answer = response.json()
    assert (answer["accepted"], answer["rejected"], answer["errors"][0]["line"]) == (3000, 1, 8)
    assert len(await kept(store)) == 3000


async def test_bad_behaviours_are_refused_whole(api: httpx.AsyncClient, store: Store) -> None:
    for bad in (did("a", "STARE", 1), did("", "VIEW", 1), {**did("a", "VIEW", 1), "at": "2026-03-01"}, {"userId": "a"}):
        response = await api.post("/api/behaviors", json=[did("a", "VIEW", 1), bad])
        assert response.status_code == 422
    assert await kept(store) == []


async def test_overlapping_behaviours_from_many_at_once_do_not_lock_up(api: httpx.AsyncClient, store: Store) -> None:
    import random

    dice = random.Random(1)
    batches = [
        [did(f"m-{dice.randrange(30)}", "VIEW", dice.randint(1, 28), f"p-{dice.randrange(5)}") for _ in range(50)]
        for _ in range(20)
    ]
    answers = await asyncio.gather(*(api.post("/api/behaviors", json=batch) for batch in batches))
    assert {answer.status_code for answer in answers} == {202}
    newest: dict[tuple[str, str], int] = {}
    for one in (one for batch in batches for one in batch):
        key = f"{one['productId']} {one['userId']}", "VIEW"
        newest[key] = max(newest.get(key, 0), int(one["at"][8:10]))
    assert await kept(store) == sorted((*key, f"{day:02d}") for key, day in newest.items())


# --- erase ------------------------------------------------------------------------------------------------------------


async def test_an_erased_member_is_not_found_and_erasing_again_is_answered_the_same(
    api: httpx.AsyncClient, settings: Settings
) -> None:
    path = "/api/members/member-7"
    await api.put(path, json={"email": "min-ji@example.com"})
    await api.put(f"{path}/devices/phone", json={"token": "t-7", "platform": "IOS", "pushConsent": True})
    await api.post("/api/behaviors", json={"userId": "member-7", "productId": "p", "action": "VIEW"})
    for _ in range(2):
        answer = await api.delete(path)
        assert (answer.status_code, answer.content) == (204, b"")
    assert (await api.get(path)).status_code == 404
    assert (await api.get(f"{path}/devices")).json() == {"devices": []}
    assert (await api.get("/api/admin/history", params={"userId": "member-7"})).json()["items"] == []
    shown = (await api.get("/api/admin/jobs/erase")).json()
    assert [run["requestedBy"] for run in shown["runs"]] == ["key:ests"] * 2
    assert "member-7" not in str(shown)


async def test_only_servers_erase_members(api: httpx.AsyncClient, member_token: str) -> None:
    headers = {"Authorization": f"Bearer {member_token}"}
    assert (await api.delete("/api/members/m-1", headers=headers)).status_code == 403
    del api.headers["Authorization"]
    assert (await api.delete("/api/members/m-1")).status_code == 401
