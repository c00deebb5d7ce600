"""Ids in paths are opaque: no character of an id changes which route a request takes."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest

# Each as a member, a device and a product, beside the ids that a path with one more or one less segment would name.
IDS = [
    "bob/devices", "bob/preferences", "bob/devices/phone", "/", "//", "a/", "/a", "a/../b", "a%2Fb", "a%252Fb", "a;b=c",
    "a?b",
    "a#b",
    "a\\b", "...", "a.", ".a", "..a", "auth0|5f7c", "a b", "+", "사과/배",
]  # fmt: skip
PHONE = {"token": "token-of-the-phone", "platform": "ANDROID", "pushConsent": True}


def encoded(opaque_id: str) -> str:
    return quote(opaque_id, safe="")


@pytest.fixture
async def bob(api: httpx.AsyncClient) -> httpx.AsyncClient:
    await api.put("/api/members/bob", json={"locale": "ko"})
    await api.put("/api/members/bob/preferences", json={"enabled": False})
    await api.put("/api/members/bob/devices/phone", json=PHONE)
    return api


async def bobs_data(api: httpx.AsyncClient) -> list[object]:
    return [(await api.get(f"/api/members/bob{part}")).json() for part in ("", "/preferences", "/devices")]


async def test_every_id_names_its_own_member_device_and_product(bob: httpx.AsyncClient) -> None:
    before = await bobs_data(bob)
    for opaque_id in IDS:
        await _use_id(bob, opaque_id)
    assert await bobs_data(bob) == before


async def _use_id(api: httpx.AsyncClient, opaque_id: str) -> None:
    path = encoded(opaque_id)
    found = await api.put(f"/api/members/{path}", json={"locale": "en"})
    assert (found.status_code, found.json().get("memberId")) == (200, opaque_id), found.text
    assert (await api.get(f"/api/members/{path}")).json()["memberId"] == opaque_id
    assert (await api.put(f"/api/members/{path}/preferences", json={"enabled": True})).status_code == 200
    device = await api.put(f"/api/members/{path}/devices/{path}", json=PHONE | {"token": "another-token"})
    assert (device.status_code, device.json().get("deviceId")) == (200, opaque_id)
    listed = (await api.get(f"/api/members/{path}/devices")).json()["devices"]
    assert [device["deviceId"] for device in listed] == [opaque_id]
    assert (await api.put(f"/api/products/{path}", json={"name": "apple"})).json()["productId"] == opaque_id
    assert (await api.get(f"/api/products/{path}")).json()["productId"] == opaque_id
    assert (await api.delete(f"/api/members/{path}/devices/{path}")).status_code == 204
    assert (await api.get(f"/api/members/{path}/devices")).json() == {"devices": []}


@pytest.mark.parametrize("slash", ["%2F", "%2f"])
async def test_an_encoded_slash_is_no_slash(bob: httpx.AsyncClient, slash: str, member_token: str) -> None:
    before = await bobs_data(bob)
    for path in ("bob/preferences", "bob/devices/phone", "bob/devices"):
        # The id of a member that there is not: it is not found, and erased without an effect.
        for method, status in (("GET", 404), ("DELETE", 204)):
            answer = await bob.request(method, f"/api/members/{path.replace('/', slash)}")
            assert answer.status_code == status, answer.text
    for path in ("/api/notifications/unread-count", "/api/admin/stats", "/api/preferences"):
        answer = await bob.get("/api/" + path.removeprefix("/api/").replace("/", slash) + slash)
        assert answer.status_code == 404
    own = {"Authorization": f"Bearer {member_token}"}
    assert (await bob.get(f"/api/notifications{slash}unread-count", headers=own)).status_code == 404
    assert await bobs_data(bob) == before


async def test_what_is_not_an_id_is_refused_in_a_path(bob: httpx.AsyncClient) -> None:
    for refused in ("%2e", "%2E%2e", "%00", "%1F", "a%1Fb", "a%1fb%2Fc", "a%7Fb", "a%0D%0Ab", "x" * 256):
        # A client resolves a plain `..` by itself; here it is sent as it stands.
        url = httpx.URL("http://bongsu/").copy_with(raw_path=f"/api/members/{refused}".encode())
        assert (await bob.put(url, json={})).status_code == 422, refused


@pytest.mark.parametrize("refused", [".", "..", "a\x1fb", "a\x00b"])
async def test_what_cannot_stand_in_a_path_is_not_an_id_anywhere(bob: httpx.AsyncClient, refused: str) -> None:
    event = {"eventType": "post.liked", "actorId": "a", "targetId": "b", "refId": "c"}
    for name in ("actorId", "targetId", "refId"):
        answer = await bob.post("/api/events", json=event | {name: refused})
        assert (answer.status_code, answer.json()["errors"][0]["loc"]) == (422, [name])
    behavior = {"userId": refused, "productId": "p", "action": "VIEW"}
    assert (await bob.post("/api/behaviors", json=behavior)).status_code == 422
    direct = {"type": "NEWS", "userIds": ["a", refused], "title": "t", "body": "b"}
    assert (await bob.post("/api/notifications", json=direct)).status_code == 422
    lines = f'{{"eventType":"x","targetId":"{refused}"}}' if refused.startswith(".") else "{}"
    answer = await bob.post("/api/events", content=lines, headers={"Content-Type": "application/x-ndjson"})
    assert answer.status_code == 422
