"""Times and cursors at the edge of what a database or Python can hold are refused or answered, never a 5xx."""

from __future__ import annotations

from typing import Any

import httpx

from bongsu.api.paging import encode_parts

TIMES: list[Any] = [
    "9999-12-31T23:59:59-23:59",
    "9999-12-31T23:59:59.999999+00:00", "9999-12-31T23:59:59+23:59", "9999-12-31T00:00:00-00:01",
    "0001-01-01T00:00:00+23:59", "0001-01-01T00:00:00-23:59", "1970-01-01T00:00:00+23:59",
    "2026-01-01T00:00:00+23:59:59.999999",
    "2026-01-01", "10000-01-01T00:00:00Z", 1, 1.5, True, [], {}, None, 10**400,
]  # fmt: skip
EVENT_ID = "018f0000-0000-7000-8000-000000000000"
LISTS = ("/api/admin/events", "/api/admin/dead", "/api/admin/history")


async def test_no_cursor_is_answered_with_a_5xx(api: httpx.AsyncClient) -> None:
    cursors: list[tuple[Any, ...]] = [(time, EVENT_ID) for time in TIMES]
    kinds: list[Any] = ["event", "delivery", [], 1]
    numbers: list[Any] = [-1, 2**63, 10**400, True, 1.5, []]
    cursors += [(kind, time, EVENT_ID, 1) for kind in kinds for time in TIMES]
    cursors += [(number, "m") for number in numbers]
    for path in LISTS:
        for parts in cursors:
            answer = await api.get(path, params={"cursor": encode_parts(*parts)})
            assert answer.status_code in (200, 422), (path, parts, answer.text)


async def test_no_time_of_a_filter_is_answered_with_a_5xx(api: httpx.AsyncClient) -> None:
    for time in TIMES:
        for name in ("from", "to"):
            for path in LISTS:
                answer = await api.get(path, params={name: str(time)})
                assert answer.status_code in (200, 422), (path, name, time, answer.text)


async def test_no_value_of_a_replay_filter_is_answered_with_a_5xx(api: httpx.AsyncClient) -> None:
    values: list[Any] = [*TIMES, "", "x", ["FAIL"], {"a": 1}, -1]
    for name in ("id", "kind", "state", "code", "channel", "type", "userId", "eventId", "from", "to"):
        for value in values:
            answer = await api.post("/api/admin/dead/replay", json={"filter": {name: value}, "dryRun": True})
            assert answer.status_code in (200, 400, 422), (name, value, answer.text)
