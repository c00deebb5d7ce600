"""GET /api/admin/dead and POST /api/admin/dead/replay: what they show, what they do, what they refuse."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from bongsu.api.paging import encode_cursor
from bongsu.model import new_id, utc_now
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import DELIVERIES_TOPIC
from bongsu.store import Store
from bongsu.store.core.query import same
from bongsu.store.desk.dead_letters import Kind, PageCursor
from tests.support.deliveries import add_delivery_in_state as a_delivery
from tests.support.deliveries import add_guaranteed_message, add_one_delivery, delivery_columns, failed_event
from tests.support.rows import add_attempt

REPLAY = "/api/admin/dead/replay"


async def found(api: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    response = await api.get("/api/admin/dead", params=query)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def replay(api: httpx.AsyncClient, asked: dict[str, Any], **more: Any) -> tuple[int, Any]:
    response = await api.post(REPLAY, json={"filter": asked, **more})
    return response.status_code, response.json()


async def test_rows_name_what_failed_and_why(api: httpx.AsyncClient, store: Store) -> None:
    event_id = await failed_event(store, "bongsu.errors.BadTemplate: no title", "order.paid")
    source = new_id()
    async with store.transaction() as tx:
        one = await a_delivery(
            tx,
            await add_guaranteed_message(tx, event_id=source),
            "UNKNOWN",
            code="TIMEOUT",
            detail="no answer",
            recovery_rounds=1,
        )
    event, delivery = (await found(api))["items"]
    for row in (event, delivery):
        assert ("T" in row.pop("createdAt"), "T" in row.pop("finishedAt")) == (True, True)
    assert delivery.pop("notificationId").isdigit()
    assert event == {
        "source": "store", "queue": None, "kind": "event", "id": str(event_id), "state": "FAILED",
        "code": "bongsu.errors.BadTemplate",
        "error": "bongsu.errors.BadTemplate: no title", "type": "order.paid", "eventId": str(event_id), "memberId": None,
        "channel": None, "deviceId": None, "notificationId": None, "title": None, "tries": 4, "rounds": 0,
        "retryable": False,
    }  # fmt: skip
    assert delivery == {
        "source": "store", "queue": None, "kind": "delivery", "id": str(one), "state": "UNKNOWN", "code": "TIMEOUT",
        "error": "no answer",
        "type": "PRICE_DROP", "eventId": str(source), "memberId": "m-1", "channel": "PUSH", "deviceId": "d-0",
        "title": "사과 가격이 내렸어요", "tries": 4, "rounds": 1, "retryable": False,
    }  # fmt: skip


async def test_one_is_shown_with_its_text_and_its_attempts(api: httpx.AsyncClient, store: Store) -> None:
    event_id = await failed_event(store)
    async with store.transaction() as tx:
        one = await a_delivery(tx, await add_guaranteed_message(tx), "UNKNOWN", code="TIMEOUT")
        await add_attempt(tx, one, millis=15_000, code="TIMEOUT")
    listed = {row["id"]: row for row in (await found(api))["items"]}
    shown = {dead_id: (await api.get(f"/api/admin/dead/{dead_id}")).json() for dead_id in (str(event_id), str(one))}
    assert {dead_id: {name: details[name] for name in listed[dead_id]} for dead_id, details in shown.items()} == listed
    assert (shown[str(event_id)]["body"], shown[str(event_id)]["attempts"]) == (None, [])
    assert shown[str(one)]["body"]
    assert [(each["millis"], each["code"]) for each in shown[str(one)]["attempts"]] == [(15_000, "TIMEOUT")]


async def test_one_that_is_not_there_is_404(api: httpx.AsyncClient) -> None:
    for dead_id in (str(new_id()), "1", "x", "%00", "9" * 30):
        assert (await api.get(f"/api/admin/dead/{dead_id}")).status_code == 404, dead_id
    for query in ({"source": "nowhere"}, {"source": "outbox"}, {"limit": "1"}, {"source": ["store", "store"]}):
        assert (await api.get("/api/admin/dead/1", params=query)).status_code == 422, query


async def test_pages_follow_each_other(api: httpx.AsyncClient, store: Store) -> None:
    ids = [str(await add_one_delivery(store, "FAIL")) for _ in range(3)][::-1]
    ids = [str(await failed_event(store)), *ids]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await found(api, limit=1, **cursor)
        seen += [one["id"] for one in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == ids
    assert (await found(api, limit=4))["next"] is None


REFUSED: tuple[dict[str, Any], ...] = (
    {"status": "FAIL"}, {"state": "DONE"}, {"kind": "letter"}, {"id": "x"}, {"id": "-1"}, {"id": "9" * 30},
    {"channel": "FAX"}, {"userId": ""}, {"eventId": "1"}, {"from": "2026-03-01"}, {"limit": 0}, {"limit": 201},
    {"cursor": "x"}, {"cursor": encode_cursor(PageCursor())[:-3]},
    {"from": "2026-03-02T00:00:00Z", "to": "2026-03-01T00:00:00Z"},
    {"kind": "event", "channel": "PUSH"}, {"state": "FAILED", "userId": "m"}, {"kind": "delivery", "state": "FAILED"},
    {"code": ""}, {"code": "a\x00"}, {"code": ["A", "B"]}, {"type": "x" * 1_000}, {"cursor": "W1tbW10="},
)  # fmt: skip


async def test_what_cannot_be_asked_is_refused_with_its_cure(api: httpx.AsyncClient) -> None:
    for query in REFUSED:
        response = await api.get("/api/admin/dead", params=query)
        assert (response.status_code, bool(response.json()["errors"])) == (422, True), query


async def test_no_cursor_is_too_strange(api: httpx.AsyncClient) -> None:
    for cursor in (PageCursor(), PageCursor(Kind.DELIVERY), PageCursor(Kind.EVENT, utc_now(), new_id())):
        assert (await found(api, cursor=encode_cursor(cursor)))["items"] == []


async def test_a_replay_without_a_filter_is_refused(api: httpx.AsyncClient, store: Store) -> None:
    one = await add_one_delivery(store, "FAIL")
    bodies: tuple[dict[str, Any], ...] = ({}, {"filter": {}}, {"filter": None}, {"filter": {"code": None}}, {"dryRun": True})
    for body in bodies:
        response = await api.post(REPLAY, json=body)
        assert response.status_code == 400
        assert "at least one of source, id, kind" in response.json()["detail"]
        assert response.json()["type"] == "urn:bongsu:replay-without-filter"
    assert await delivery_columns(store, one, "status") == "FAIL"


async def test_an_unknown_name_is_refused_and_nothing_is_replayed(api: httpx.AsyncClient, store: Store) -> None:
    one = await add_one_delivery(store, "FAIL")
    for asked, more in (
        ({"status": "FAIL"}, {}),
        ({"state": "FAIL", "limit": 1}, {}),
        ({"state": "FAIL"}, {"dry_run": True}),
        ({"state": "FAIL"}, {"dryRun": "perhaps"}),
        ({"state": "SUCCESS"}, {}),
        ([], {}),
    ):
        status, answer = await replay(api, asked, **more)  # type: ignore[arg-type]
        assert (status, bool(answer["errors"])) == (422, True)
    assert (await api.post(REPLAY, content=b"{")).status_code == 400
    assert await delivery_columns(store, one, "status") == "FAIL"


async def test_a_dry_run_counts_and_changes_nothing(api: httpx.AsyncClient, store: Store) -> None:
    one = await add_one_delivery(store, "FAIL")
    assert await replay(api, {"state": "FAIL"}, dryRun=True) == (200, {"matched": 1, "replayed": 0})
    assert await delivery_columns(store, one, "status", "attempts") == ("FAIL", 4)
    async with store.read() as tx:
        assert await tx.fetch(same("SELECT run_id FROM bongsu_runs")()) == []


async def test_a_replay_puts_back_what_fits_and_says_by_whom(api: httpx.AsyncClient, store: Store) -> None:
    one, other = await add_one_delivery(store, "FAIL", code="A"), await add_one_delivery(store, "FAIL", code="B")
    assert await replay(api, {"code": "A"}, newCollapseId=True) == (200, {"matched": 1, "replayed": 1})
    assert await delivery_columns(store, one, "status", "collapse_series", "epoch") == ("READY", 1, 3)
    assert await delivery_columns(store, other, "status") == "FAIL"
    assert await replay(api, {"id": str(other)}) == (200, {"matched": 1, "replayed": 1})
    assert await delivery_columns(store, other, "status", "collapse_series") == ("READY", 0)
    async with store.read() as tx:
        (row,) = await tx.fetch(same("SELECT DISTINCT job, requested_by FROM bongsu_runs")())
    assert (row["job"], row["requested_by"]) == ("replay", "key:ests")
    second, first = (await api.get("/api/admin/jobs/replay")).json()["runs"]
    assert (first["requestedBy"], first["input"]["filter"], first["counts"]) == (
        "key:ests", {"code": "A"}, {"matched": 1, "replayed": 1},
    )  # fmt: skip
    assert second["input"]["filter"] == {"id": str(other)}


async def test_a_replay_wakes_dispatchers(api: httpx.AsyncClient, store: Store, signals: LocalSignals) -> None:
    await add_one_delivery(store, "FAIL")
    received: list[bytes | None] = []
    with signals.listen(DELIVERIES_TOPIC, received.append):
        await replay(api, {"state": "FAIL"})
    assert len(received) == 1


async def test_members_see_no_dead(api: httpx.AsyncClient, member_token: str) -> None:
    headers = {"Authorization": f"Bearer {member_token}"}
    assert (await api.get("/api/admin/dead", headers=headers)).status_code == 403
    assert (await api.post(REPLAY, json={"filter": {"state": "FAIL"}}, headers=headers)).status_code == 403


async def test_the_stats_count_deliveries_too(api: httpx.AsyncClient, store: Store) -> None:
    for status in ("READY", "FAIL", "SUCCESS"):
        await add_one_delivery(store, status)
    stats = (await api.get("/api/admin/stats")).json()
    assert stats["deliveries"] == {"ready": 1, "sending": 0, "fail": 1, "unknown": 0}


async def test_history_lists_every_attempt(api: httpx.AsyncClient, store: Store) -> None:
    one = await add_one_delivery(store, "FAIL", attempts=1)
    async with store.transaction() as tx:
        for epoch, code in ((1, "UNAVAILABLE"), (4, "UNREGISTERED")):
            await add_attempt(tx, one, epoch=epoch, millis=epoch * 10, code=code)
    (row,) = (await api.get("/api/admin/history")).json()["items"]
    (delivery,) = row["deliveries"]
    assert delivery["tries"] == 1
    assert [(each["millis"], each["code"]) for each in delivery["attempts"]] == [(10, "UNAVAILABLE"), (40, "UNREGISTERED")]
    assert all("T" in each["at"] for each in delivery["attempts"])


@pytest.mark.parametrize(
    "asked",
    [
        {"filter": {"state": "FAIL"}, "dryRun": "true"},
        {"filter": {"state": "FAIL"}, "dryRun": 1},
        {"filter": {"state": "FAIL"}, "dryRun": True, "newCollapseId": "no"},
        {"filter": {"id": 5}, "dryRun": True},
    ],
)
async def test_a_replay_converts_nothing(api: httpx.AsyncClient, asked: dict[str, Any]) -> None:
    assert (await api.post(REPLAY, json=asked)).status_code == 422
