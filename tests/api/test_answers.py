"""What every answer has, whatever the endpoint: a complete `Allow`, and the headers for browsers and caches."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bongsu.api.app import build_api
from bongsu.api.problems import METHODS
from bongsu.ingress.intake import Intake
from bongsu.live.gateway import Gateway
from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from bongsu.store import Store

# Not in the document.
PAGES = {
    "/": {"GET"}, "/docs": {"GET"}, "/openapi.json": {"GET", "HEAD"}, "/bongsu-bell.js": {"GET", "HEAD"},
    "/docs/assets/swagger-ui.css": {"GET", "HEAD"}, "/demo": {"GET"}, "/demo/shop.js": {"GET"},
    "/demo/visits": {"GET", "POST"},
}  # fmt: skip


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Everything that can be served, without a key. Nothing here depends on the store."""
    settings = Settings(data_dir=tmp_path)
    store = Store.open(settings)
    # They are asked for nothing but their routes.
    gateway: Gateway = object()  # type: ignore[assignment]
    intake: Intake = object()  # type: ignore[assignment]
    app = build_api(store, intake, Keys.load(settings), settings, lambda: False, gateway=gateway, is_demo=True)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bongsu") as client:
        yield client
    await store.close()


async def paths(client: httpx.AsyncClient) -> dict[str, set[str]]:
    """Every path, with the methods it takes. One that has a name where others have an id takes theirs too."""
    document: dict[str, Any] = (await client.get("/openapi.json")).json()
    found: dict[str, set[str]] = dict(PAGES)
    for path, operations in document["paths"].items():
        methods = {method.upper() for method in operations} & set(METHODS)
        pattern = re.sub(r"\{\w+\}", "[^/]+", path)
        for alike in (re.sub(r"\{\w+\}", "1", other) for other in document["paths"]):
            if re.fullmatch(pattern, alike):
                found.setdefault(alike, set()).update(methods)
    return found


async def test_a_method_that_a_path_does_not_take_is_answered_with_all_that_it_takes(client: httpx.AsyncClient) -> None:
    expected = await paths(client)
    assert len(expected) > 30
    for path, methods in expected.items():
        for method in (*METHODS, "TRACE", "PROPFIND"):
            if method in methods:
                continue
            answer = await client.request(method, path)
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["allow"].split(", ")) == methods, (method, path)


async def test_no_answer_is_sniffed_and_none_is_stored_that_does_not_say_so(client: httpx.AsyncClient) -> None:
    for path, methods in (await paths(client)).items():
        for method in (*methods, "TRACE"):
            answer = await client.request(method, path)
            assert answer.headers["x-content-type-options"] == "nosniff", (method, path)
            assert answer.headers.get("cache-control") == "no-store" or "etag" in answer.headers, (method, path)
            for name in ("x-content-type-options", "cache-control", "x-frame-options"):
                assert len(answer.headers.get_list(name)) <= 1, (method, path, name)
            if answer.headers.get("content-type", "").startswith("text/html"):
                assert answer.headers["x-frame-options"] == "DENY", path
                assert answer.headers["referrer-policy"] == "same-origin", path


@pytest.mark.parametrize("path", ["/no/such/path", "/docs/assets/none", "/api/notifications/1/nothing"])
async def test_an_answer_that_nothing_is_there_has_the_same_headers(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 404
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")
