"""Which pages may read an answer: those of the origins that were named, for member calls and the bell alone."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from bongsu.api.app import build_api
from bongsu.api.cors import SHARED
from bongsu.errors import BadSettings
from bongsu.ingress.intake import Intake
from bongsu.runtime.keys import Keys
from bongsu.runtime.loop import running
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from bongsu.web.bell import routes as bell
from tests.conftest import KEYS

SHOP = "https://shop.example"
ASK = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(data_dir=tmp_path, cors_origins=f"{SHOP}, http://localhost:3000", **KEYS)
    store, signals = Store.open(settings), LocalSignals()
    await migrate(store)
    async with running(Intake(store, signals, "http")) as intake:
        app = build_api(store, intake, Keys.load(settings), settings, lambda: False, signals)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bongsu") as caller:
            yield caller
    await store.close()


def permissions(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control-")}


@pytest.mark.parametrize("origin", [SHOP, "http://localhost:3000"])
async def test_a_named_origin_may_call_with_the_cookie_and_read_the_answer_even_a_refusal(
    client: httpx.AsyncClient, origin: str
) -> None:
    answer = await client.get("/api/notifications", headers={"Origin": origin})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["access-control-allow-credentials"] == "true"
    assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
    assert answer.headers["vary"] == "Origin"


async def test_it_may_ask_before_it_calls(client: httpx.AsyncClient) -> None:
    for path in (*SHARED, "/api/notifications/7/read", "/api/notifications/stream"):
        answer = await client.options(path, headers={"Origin": SHOP, **ASK})
        assert answer.status_code == 204, path
        assert answer.headers["access-control-allow-origin"] == SHOP
        assert "Authorization" in answer.headers["access-control-allow-headers"]
        assert answer.headers["access-control-allow-methods"] == "GET, POST, PUT, PATCH, DELETE"
        assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize("origin", ["https://evil.example", "http://shop.example", f"{SHOP}.evil.example", "null", None])
async def test_others_get_no_permission_and_the_answer_varies_by_origin(
    client: httpx.AsyncClient, origin: str | None
) -> None:
    headers = {} if origin is None else {"Origin": origin}
    for answer in (
        await client.get("/api/notifications", headers=headers),
        await client.get("/bongsu-bell.js", headers=headers),
        await client.options("/api/notifications", headers={**headers, **ASK}),
    ):
        assert permissions(answer) == {}
        assert answer.headers["vary"] == "Origin"


async def test_server_calls_are_for_servers(client: httpx.AsyncClient) -> None:
    for path in ("/api/events", "/api/admin/stats", "/api/members/m-1", "/metrics", "/api/notificationsx"):
        assert permissions(await client.get(path, headers={"Origin": SHOP})) == {}
        assert permissions(await client.options(path, headers={"Origin": SHOP, **ASK})) == {}


@pytest.mark.parametrize(
    "value", ["shop.example", f"{SHOP}/", "*", "https://Shop.example", "https://u@shop.example", "http://"]
)
def test_an_origin_that_could_never_match_stops_the_start(value: str) -> None:
    with pytest.raises(BadSettings, match="BONGSU_CORS_ORIGINS"):
        Settings.load({"BONGSU_CORS_ORIGINS": value})


# --- the bell's file --------------------------------------------------------------------------------------------------


async def test_the_bell_is_a_script_that_browsers_keep_and_ask_after(client: httpx.AsyncClient) -> None:
    answer = await client.get("/bongsu-bell.js")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=300"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert hashlib.sha256(answer.content).hexdigest().startswith(answer.headers["etag"].strip('"'))
    assert (await client.head("/bongsu-bell.js")).headers["etag"] == answer.headers["etag"]
    for known in (answer.headers["etag"], f'"other", W/{answer.headers["etag"]}', "*"):
        again = await client.get("/bongsu-bell.js", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", answer.headers["etag"])
    assert (await client.get("/bongsu-bell.js", headers={"If-None-Match": '"other"'})).status_code == 200


def test_the_bell_puts_in_nothing_as_html() -> None:
    script = bell.script().body.decode()
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "DOMParser",
        "createContextualFragment",
    ):
        assert way not in script
