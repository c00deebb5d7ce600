"""Counters over HTTP: their answers, and what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx

from bongsu.store import Store
from tests.support.decisions import rows

URL = "/api/counters/comments/post-1"
LARGEST = 2**63 - 1


async def test_a_change_is_stored_and_read(api: httpx.AsyncClient) -> None:
    event_id = str(uuid4())
    answer = await api.post(URL, json={"delta": 3, "eventId": event_id})
    assert answer.status_code == 200
    changed = answer.json()
    assert datetime.fromisoformat(changed["asOf"]).utcoffset() == timedelta(0)
    assert changed == {"value": 3, "asOf": changed["asOf"], "eventId": event_id, "duplicate": False}
    again = (await api.post(URL, json={"delta": 3, "eventId": event_id})).json()
    assert (again["value"], again["duplicate"]) == (3, True)
    assert (await api.post(URL, json={"delta": -4})).json()["value"] == -1
    read = await api.get(URL)
    assert (read.status_code, read.json()["value"], set(read.json())) == (200, -1, {"value", "asOf"})
    assert (await api.get("/api/counters/comments/never-counted")).json()["value"] == 0


async def test_a_key_is_any_id(api: httpx.AsyncClient) -> None:
    for key in ("가 나", "a/b", "{x}", "😀", "x" * 255):
        url = f"/api/counters/comments/{quote(key, safe='')}"
        assert (await api.post(url, json={"delta": 2})).json()["value"] == 2, key
        assert (await api.get(url)).json()["value"] == 2, key
    assert (await api.get("/api/counters/comments/other")).json()["value"] == 0


NO_CHANGES: list[Any] = [
    {}, {"delta": None}, {"delta": "1"}, {"delta": 1.0}, {"delta": 1.5}, {"delta": True}, {"delta": LARGEST + 1},
    {"delta": -LARGEST - 2}, {"delta": 10**400}, {"delta": 1, "eventId": "no uuid"}, {"delta": 1, "eventId": 7},
    {"delta": 1, "more": 1}, [], [{"delta": 1}], 1, None,
]  # fmt: skip


async def test_a_body_that_is_no_change_is_refused_and_nothing_is_changed(api: httpx.AsyncClient, store: Store) -> None:
    for body in NO_CHANGES:
        answer = await api.post(URL, json=body)
        assert 400 <= answer.status_code < 500, body
        assert answer.headers["content-type"] == "application/problem+json", body
        assert (await api.get(URL)).json()["value"] == 0, body
    assert await rows(store, "SELECT 1 FROM bongsu_events") == []


async def test_a_sum_beyond_64_bits_is_refused(api: httpx.AsyncClient) -> None:
    assert (await api.post(URL, json={"delta": LARGEST})).json()["value"] == LARGEST
    answer = await api.post(URL, json={"delta": 1})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:bongsu:counter-overflow")
    assert (await api.get(URL)).json()["value"] == LARGEST


NO_COUNTERS = [
    ("unknown/k", 404), ("comment/k", 404), ("no%20spaces/k", 404), (f"{'x' * 65}/k", 404), ("comments/%00", 422),
    (f"comments/{'x' * 256}", 422), ("comments/a%0Ab", 422),
]  # fmt: skip


async def test_a_name_that_is_not_known_and_a_key_that_is_no_id_are_refused(api: httpx.AsyncClient) -> None:
    for path, status in NO_COUNTERS:
        for answer in (
            await api.get(f"/api/counters/{path}"),
            await api.post(f"/api/counters/{path}", json={"delta": 1}),
        ):
            assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), path


async def test_a_large_body_is_refused(api: httpx.AsyncClient) -> None:
    assert (await api.post(URL, content=b'{"delta": 1' + b" " * 300_000 + b"}")).status_code == 413
    assert (await api.post(URL, content=b"delta=1", headers={"content-type": "text/plain"})).status_code == 415
    assert (await api.post(URL, content=b"{")).status_code == 400


async def test_only_the_server_key_counts_and_reads(api: httpx.AsyncClient, member_token: str) -> None:
    for headers, status in (({"Authorization": f"Bearer {member_token}"}, 403), ({"Authorization": "Bearer x"}, 401)):
        assert (await api.get(URL, headers=headers)).status_code == status
        assert (await api.post(URL, json={"delta": 1}, headers=headers)).status_code == status
    assert (await api.get(URL)).json()["value"] == 0
