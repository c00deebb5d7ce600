"""Who gets a stream: by token or cookie, from which pages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie

import httpx
import pytest

from bongsu.api.app import build_api
from bongsu.ingress.intake import Intake
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.settings import Settings
from bongsu.store import Store
from tests.live.client import PATH, ask
from tests.live.harness import Live, bearer, live_on, token

SHOP = "https://shop.example"
Embedded = tuple[Store, Settings]


@pytest.fixture
async def live(embedded: Embedded) -> AsyncIterator[Live]:
    store, settings = embedded
    async with live_on(store, settings.model_copy(update={"cors_origins": SHOP})) as everything:
        yield everything


@pytest.fixture
async def caller(live: Live) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=live.address, timeout=60) as client:
        yield client


async def refused(live: Live, headers: dict[str, str], path: str = PATH) -> int:
    answer = await ask(live.address, headers, path)
    problem = json.loads(await answer.body())
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["status"] == answer.status
    await answer.close()
    return answer.status


async def test_without_a_members_token_there_is_no_stream(live: Live) -> None:
    assert await refused(live, {}) == 401
    assert await refused(live, {"Authorization": "Bearer nonsense"}) == 401
    assert await refused(live, {"Authorization": "Bearer server-key-of-the-tests"}) == 403
    assert await refused(live, bearer(live.settings, "m-1", hours=-1)) == 401
    assert await refused(live, {}, f"/api/notifications/stream?token={token(live.settings, 'm-1')}") == 401


async def test_the_answer_says_what_proxies_and_browsers_need(live: Live) -> None:
    answer = await ask(live.address, bearer(live.settings, "m-1"))
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    await answer.close()


async def session(caller: httpx.AsyncClient, live: Live, **headers: str) -> SimpleCookie:
    answer = await caller.post("/api/session", headers={**bearer(live.settings, "m-1", minutes=10), **headers})
    assert answer.status_code == 204, answer.text
    return SimpleCookie(answer.headers["set-cookie"])


async def test_a_cookie_made_from_a_token_opens_a_stream_until_the_token_ends(live: Live, caller: httpx.AsyncClient) -> None:
    cookie = (await session(caller, live))["bongsu_session"]
    assert cookie["httponly"]
    assert (cookie["samesite"], cookie["path"], cookie["secure"]) == ("lax", "/api", "")
    assert 590 <= int(cookie["max-age"]) <= 600
    async with live.open(headers={"Cookie": f"bongsu_session={cookie.value}"}) as page:
        await page.until_live()
    gone = SimpleCookie((await caller.delete("/api/session")).headers["set-cookie"])["bongsu_session"]
    assert (gone.value, gone["max-age"]) == ("", "0")


async def test_over_https_the_cookie_is_secure_and_named_sites_may_use_it(live: Live, caller: httpx.AsyncClient) -> None:
    secure = {"X-Forwarded-Proto": "https"}
    own = (await session(caller, live, **secure))["bongsu_session"]
    assert (own["samesite"], own["secure"]) == ("lax", True)
    shared = (await session(caller, live, **secure, Origin=SHOP))["bongsu_session"]
    assert (shared["samesite"], shared["secure"]) == ("none", True)


async def test_a_cookie_is_not_made_from_a_cookie_nor_from_a_server_key(live: Live, caller: httpx.AsyncClient) -> None:
    cookie = {"Cookie": f"bongsu_session={token(live.settings, 'm-1')}"}
    assert (await caller.post("/api/session", headers=cookie)).status_code == 401
    assert (await caller.post("/api/session", headers={"X-API-Key": "server-key-of-the-tests"})).status_code == 403


async def test_an_api_key_in_the_cookie_opens_nothing(live: Live, caller: httpx.AsyncClient) -> None:
    cookie = {"Cookie": "bongsu_session=server-key-of-the-tests"}
    for method, path in (
        ("GET", "/api/admin/stats"),
        ("GET", "/metrics"),
        ("PUT", "/api/members/m-1"),
        ("POST", "/api/events"),
        ("GET", "/api/notifications"),
        ("GET", "/api/notifications/stream"),
    ):
        answer = await caller.request(method, path, headers=cookie, json={})
        assert answer.status_code == 401, path
        assert "session cookie" in answer.json()["detail"]


async def test_a_cookie_works_for_our_own_pages_and_for_named_ones(live: Live) -> None:
    cookie = {"Cookie": f"bongsu_session={token(live.settings, 'm-1')}"}
    fates = {live.address: 200, SHOP: 200, None: 200, "https://evil.example": 403, "null": 403}
    for origin, status in fates.items():
        answer = await ask(live.address, cookie if origin is None else {**cookie, "Origin": origin})
        assert answer.status == status, origin
        assert answer.headers.get("access-control-allow-origin") == (SHOP if origin == SHOP else None)
        await answer.close()


async def test_a_foreign_page_marks_nothing_as_read_with_the_cookie(live: Live, caller: httpx.AsyncClient) -> None:
    cookie = {"Cookie": f"bongsu_session={token(live.settings, 'm-1')}"}
    path = "/api/notifications/read-all"
    assert (await caller.post(path, headers={**cookie, "Origin": "https://evil.example"})).status_code == 403
    assert (await caller.post(path, headers={**cookie, "Origin": live.address})).status_code == 200


async def test_with_a_token_any_page_may_read_its_own_stream(live: Live) -> None:
    answer = await ask(live.address, {**bearer(live.settings, "m-1"), "Origin": "https://elsewhere.example"})
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers
    await answer.close()


async def test_other_methods_are_told_that_there_is_only_get(live: Live, caller: httpx.AsyncClient) -> None:
    answer = await caller.post("/api/notifications/stream", headers=bearer(live.settings, "m-1"))
    assert answer.status_code == 405
    document = (await caller.get("/openapi.json")).json()
    assert {"/api/notifications/stream", "/api/session"} <= set(document["paths"])


async def test_a_process_without_streams_makes_the_cookie_too(live: Live) -> None:
    """A proxy may send nothing but the stream itself to the gateways."""
    keys = Keys.load(live.settings)
    async with running(Intake(live.store, live.signals, "http")) as intake:
        app = build_api(live.store, intake, keys, live.settings, lambda: False)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bongsu") as caller:
            await session(caller, live)


# --- logging out ------------------------------------------------------------------------------------------------------


async def test_logging_out_ends_the_streams_that_were_opened_with_the_cookie(live: Live, caller: httpx.AsyncClient) -> None:
    cookie = {"Cookie": f"bongsu_session={token(live.settings, 'm-1')}"}
    # Of the same browser, opened before its token was renewed.
    earlier = {"Cookie": f"bongsu_session={token(live.settings, 'm-1', hours=2)}"}
    other = {"Cookie": f"bongsu_session={token(live.settings, 'm-2')}"}
    async with (
        live.open(headers=cookie) as page,
        live.open(headers=earlier) as before,
        live.open() as app,
        live.open(headers=other) as somebody,
    ):
        for one in (page, before, app, somebody):
            await one.until_live()
        assert (await caller.delete("/api/session", headers=cookie)).status_code == 204
        for one in (page, before):
            assert await one.until_seen("bye") == [{"reason": "logout"}]
        # Those that were not ended are sent what comes after it.
        await app.until_told(await live.ring("m-1"))
        await somebody.until_told(await live.ring("m-2"))
        assert app.seen("bye") == somebody.seen("bye") == []
        assert (app.connections, somebody.connections) == (1, 1)


async def test_logging_out_without_a_valid_session_ends_nothing(live: Live, caller: httpx.AsyncClient) -> None:
    async with live.open(headers={"Cookie": f"bongsu_session={token(live.settings, 'm-1')}"}) as page:
        await page.until_live()
        for value in ("", "nonsense", "server-key-of-the-tests", "[", '"\\', token(live.settings, "m-1", hours=-1)):
            answer = await caller.delete("/api/session", headers={"Cookie": f"bongsu_session={value}"})
            assert answer.status_code == 204
        await page.until_told(await live.ring("m-1"))
        assert page.connections == 1


# --- headers that cannot be parsed ------------------------------------------------------------------------------------

NO_HOSTS = ["[", "[::1", "a]b", "x:y", "%", "", "http://["]


async def test_an_origin_that_is_none_is_another_site(live: Live, caller: httpx.AsyncClient) -> None:
    cookie = f"bongsu_session={token(live.settings, 'm-1')}"
    for path in (PATH, "/api/notifications", "/api/admin/stats"):
        for origin in ("null", "", "http://\u00e9", *NO_HOSTS, *(f"http://{host}" for host in NO_HOSTS)):
            headers = [("Cookie", cookie), ("Origin", origin.encode("latin-1"))]
            answer = await caller.get(path, headers=headers)  # type: ignore[arg-type]
            assert answer.status_code == 403, (path, origin)
            assert answer.headers["content-type"] == "application/problem+json"


async def test_a_host_that_is_none_changes_no_answer(live: Live, caller: httpx.AsyncClient) -> None:
    calls = {
        ("GET", "/no/such/path"): 404,
        ("PATCH", "/api/notifications"): 405,
        ("POST", "/api/session"): 204,
        ("DELETE", "/api/session"): 204,
        ("GET", "/api/notifications"): 200,
        ("GET", "/"): 307,
        ("GET", "/docs"): 200,
        ("GET", "/docs/assets/none"): 404,
    }
    for host in NO_HOSTS:
        for (method, path), status in calls.items():
            answer = await caller.request(method, path, headers={**bearer(live.settings, "m-1"), "Host": host})
            assert answer.status_code == status, (host, method, path)


async def test_a_host_that_is_none_has_no_pages_of_its_own(live: Live, caller: httpx.AsyncClient) -> None:
    cookie = f"bongsu_session={token(live.settings, 'm-1')}"
    answer = await caller.get(PATH, headers={"Cookie": cookie, "Origin": "http://[x", "Host": "["})
    assert answer.status_code == 403
