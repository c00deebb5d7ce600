"""POST /api/events: three shapes in, a clear answer out, and nothing stored of what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from bongsu.api.bodies import BODY_LIMIT
from bongsu.errors import StoreUnreachable
from bongsu.ingress import ndjson
from bongsu.ingress.intake import Intake
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import EVENTS_TOPIC
from bongsu.store import Store, outbox
from bongsu.store.core.query import same
from tests.support.outbox import count_events

JSON = {"Content-Type": "application/json"}
NDJSON = {"Content-Type": "application/x-ndjson"}


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    assert body["type"]
    return body


async def test_one_event_is_accepted_and_can_be_looked_at(api: httpx.AsyncClient) -> None:
    event = {
        "eventId": str(uuid4()),
        "eventType": "product.price_changed",
        "occurredAt": "2026-05-01T12:00:00+09:00",
        "refId": "sku-1",
        "payload": {"previousPrice": 100, "currentPrice": 80},
    }
    response = await api.post("/api/events", json=event)
    assert response.status_code == 202
    assert response.json() == {
        "accepted": 1,
        "duplicates": 0,
        "events": [{"eventId": event["eventId"], "status": "ACCEPTED"}],
    }
    found = (await api.get(f"/api/events/{event['eventId']}")).json()
    assert found["payload"] == event["payload"]
    assert (found["eventType"], found["refId"], found["actorId"]) == ("product.price_changed", "sku-1", None)
    assert (found["status"], found["attempts"], found["error"], found["finishedAt"]) == ("PENDING", 0, None, None)
    assert found["occurredAt"].startswith("2026-05-01T")
    assert {"createdAt", "status", "attempts"} <= set(found)


async def test_an_array_is_accepted_and_duplicates_are_reported(api: httpx.AsyncClient, store: Store) -> None:
    events = [{"eventId": str(uuid4()), "eventType": "x"} for _ in range(3)]
    assert (await api.post("/api/events", json=events[:2])).json()["accepted"] == 2
    answer = (await api.post("/api/events", json=events)).json()
    assert (answer["accepted"], answer["duplicates"]) == (1, 2)
    assert [one["status"] for one in answer["events"]] == ["DUPLICATE", "DUPLICATE", "ACCEPTED"]
    assert await count_events(store) == 3


async def test_a_thousand_fit_and_one_more_does_not(api: httpx.AsyncClient, store: Store) -> None:
    assert (await api.post("/api/events", json=[{"eventType": "x"}] * 1000)).json()["accepted"] == 1000
    assert "application/x-ndjson" in problem(await api.post("/api/events", json=[{"eventType": "x"}] * 1001), 422)["detail"]
    assert await count_events(store) == 1000


async def test_an_empty_array_is_nothing(api: httpx.AsyncClient) -> None:
    response = await api.post("/api/events", json=[])
    assert response.status_code == 202
    assert response.json() == {"accepted": 0, "duplicates": 0, "events": []}


async def test_an_accepted_event_wakes_the_worker(api: httpx.AsyncClient, signals: LocalSignals) -> None:
    received: list[bytes | None] = []
    with signals.listen(EVENTS_TOPIC, received.append):
        await api.post("/api/events", json={"eventType": "x"})
        assert received == [b""]
        await api.post("/api/events", json={"eventType": ""})
        assert received == [b""]


BAD = [
    (b"", 400, None),
    (b"{", 400, None),
    (b"\xff\xfe", 400, None),
    (b'{"eventType":"x"} trailing', 400, None),
    (b'{"eventType":"\\ud800"}', 400, None),
    (b'{"eventType":"x","payload":{"a":"\\udc00"}}', 400, None),
    (b'{"eventType":"x","payload":{"a":' + b"[" * 500 + b"]" * 500 + b"}}", 400, None),
    (b'{"eventType":"x","payload":{"a":' + b"9" * 5000 + b"}}", 400, None),
    (b"7", 422, []),
    (b"null", 422, []),
    (b"[7]", 422, [0]),
    (b"{}", 422, ["eventType"]),
    (b'{"eventType":""}', 422, ["eventType"]),
    (b'{"eventType":7}', 422, ["eventType"]),
    (b'{"eventType":null}', 422, ["eventType"]),
    (b'{"eventType":"a\\u0000b"}', 422, ["eventType"]),
    (b'{"event_typo":"x","eventType":"x"}', 422, ["event_typo"]),
    (b'{"eventType":"x","status":"DONE"}', 422, ["status"]),
    (b'{"eventType":"x","eventId":"7"}', 422, ["eventId"]),
    (b'{"eventType":"x","eventId":7}', 422, ["eventId"]),
    (b'{"eventType":"x","occurredAt":"yesterday"}', 422, ["occurredAt"]),
    (b'{"eventType":"x","occurredAt":1700000000}', 422, ["occurredAt"]),
    (b'{"eventType":"x","occurredAt":"2026-01-01T00:00:00"}', 422, ["occurredAt"]),
    (b'{"eventType":"x","occurredAt":"9999-12-31T23:59:59Z"}', 422, ["occurredAt"]),
    (b'{"eventType":"x","occurredAt":"1970-01-01T00:00:00+01:00"}', 422, ["occurredAt"]),
    (b'{"eventType":"x","occurredAt":"9999-12-31T23:59:59-14:00"}', 422, ["occurredAt"]),
    (b'{"eventType":"x","occurredAt":"0001-01-01T00:00:00+14:00"}', 422, ["occurredAt"]),
    (b'{"eventType":"x","payload":[]}', 422, ["payload"]),
    (b'{"eventType":"x","payload":"{}"}', 422, ["payload"]),
    (b'{"eventType":"x","payload":{"currentPrice":NaN}}', 422, ["payload"]),
    (b'{"eventType":"x","payload":{"currentPrice":-Infinity}}', 422, ["payload"]),
    (b'{"eventType":"x","payload":{"currentPrice":1e999}}', 422, ["payload"]),
    (b'{"eventType":"x","payload":{"a":{"b":"\\u0000"}}}', 422, ["payload"]),
    (b'{"eventType":"x","payload":{"\\u0000":1}}', 422, ["payload"]),
    (b'{"eventType":"x","payload":{"a":"' + b"x" * 10_000_000 + b'"}}', 422, ["payload"]),
    (b'{"eventType":"x","refId":"' + b"x" * 10_000_000 + b'"}', 422, ["refId"]),
    (b'{"eventType":"x","payload":{"a":' + b"[" * 100 + b"]" * 100 + b"}}", 422, ["payload"]),
]


async def test_bad_input_is_a_4xx_that_says_what_and_where(api: httpx.AsyncClient, store: Store) -> None:
    for body, status, loc in BAD:
        answer = problem(await api.post("/api/events", content=body, headers=JSON), status)
        if loc is not None:
            assert [one["loc"] for one in answer["errors"]] == [loc], body[:60]
            assert answer["errors"][0]["msg"]
        assert await count_events(store) == 0, body[:60]


async def test_one_bad_event_in_an_array_keeps_all_out_and_is_named_by_its_place(
    api: httpx.AsyncClient, store: Store
) -> None:
    events: list[dict[str, Any]] = [{"eventType": "x"} for _ in range(5)]
    events[3]["refId"] = 7
    answer = problem(await api.post("/api/events", json=events), 422)
    assert answer["errors"] == [{"loc": [3, "refId"], "msg": "Input should be a valid string"}]
    assert await count_events(store) == 0


async def test_the_same_id_twice_in_one_request_is_refused(api: httpx.AsyncClient, store: Store) -> None:
    repeated = str(uuid4())
    events = [{"eventType": "x"}, {"eventType": "x", "eventId": repeated}, {"eventType": "x", "eventId": repeated.upper()}]
    answer = problem(await api.post("/api/events", json=events), 422)
    assert answer["errors"] == [{"loc": [2, "eventId"], "msg": "is the eventId of number 1 too"}]
    assert await count_events(store) == 0


async def test_a_body_past_the_limit_is_refused_announced_or_not(api: httpx.AsyncClient, store: Store) -> None:
    problem(await api.post("/api/events", content=b" " * (BODY_LIMIT + 1), headers=JSON), 413)

    async def unannounced() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b" " * (1024 * 1024)

    problem(await api.post("/api/events", content=unannounced(), headers=JSON), 413)
    assert await count_events(store) == 0


async def test_another_content_type_is_refused(api: httpx.AsyncClient) -> None:
    answer = problem(await api.post("/api/events", content=b"{}", headers={"Content-Type": "text/xml"}), 415)
    assert "application/x-ndjson" in answer["detail"]
    response = await api.post(
        "/api/events", content=b'{"eventType":"x"}', headers={"Content-Type": "application/json; charset=utf-8"}
    )
    assert response.status_code == 202


# --- NDJSON -----------------------------------------------------------------------------------------------------------


def lines(*events: Any) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


async def test_lines_are_accepted_blank_ones_passed_over(api: httpx.AsyncClient, store: Store) -> None:
    body = lines({"eventType": "a"}) + b"\r\n\n" + b'  {"eventType":"b"}  '
    response = await api.post("/api/events", content=body, headers=NDJSON)
    assert response.status_code == 202
    assert response.json() == {"accepted": 2, "duplicates": 0}
    assert await count_events(store) == 2


async def test_a_bad_line_is_reported_by_number_and_the_others_stand(api: httpx.AsyncClient, store: Store) -> None:
    repeated = str(uuid4())
    body = (
        lines(
            {"eventType": "ok", "eventId": repeated},
            {"eventType": ""},
            {"eventType": "again", "eventId": repeated},
            "not an object",
        )
        + b'{"eventType":"x"\n"refId":"y"}\n{"eventType":"x"},{"eventType":"y"}\n{"eventType":"last"}'
    )
    response = await api.post("/api/events", content=body, headers=NDJSON)
    assert response.status_code == 202
    answer = response.json()
    assert (answer["accepted"], answer["duplicates"], answer["rejected"]) == (2, 1, 5)
    assert [one["line"] for one in answer["errors"]] == [2, 4, 5, 6, 7]
    assert answer["errors"][0]["loc"] == ["eventType"]
    assert await count_events(store) == 2


async def test_many_lines_in_awkward_pieces_all_arrive(api: httpx.AsyncClient, store: Store) -> None:
    body = lines(*({"eventType": "x", "refId": str(number)} for number in range(2500)))

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 777):
            yield body[start : start + 777]

    response = await api.post("/api/events", content=pieces(), headers=NDJSON)
    assert response.json() == {"accepted": 2500, "duplicates": 0}
    async with store.read() as tx:
        refs = {row["ref_id"] for row in await tx.fetch(same("SELECT ref_id FROM bongsu_events")())}
    assert refs == {str(number) for number in range(2500)}


async def test_a_line_without_an_end_is_dropped_not_gathered(
    api: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ndjson, "LINE_LIMIT", 1000)
    body = lines({"eventType": "a"}) + b"x" * 5000 + b"\n" + lines({"eventType": "b"}) + b"y" * 1500

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 300):
            yield body[start : start + 300]

    answer = (await api.post("/api/events", content=pieces(), headers=NDJSON)).json()
    assert (answer["accepted"], answer["rejected"]) == (2, 2)
    assert [(one["line"], one["msg"]) for one in answer["errors"]] == [
        (2, "is longer than 1000 bytes: split it"),
        (4, "is longer than 1000 bytes: split it"),
    ]
    assert await count_events(store) == 2


async def test_only_bad_lines_are_bad_input(api: httpx.AsyncClient, store: Store) -> None:
    answer = problem(await api.post("/api/events", content=b"x\ny\n", headers=NDJSON), 422)
    assert [one["loc"] for one in answer["errors"]] == [[1], [2]]
    assert await count_events(store) == 0


async def test_no_lines_at_all_are_nothing(api: httpx.AsyncClient) -> None:
    response = await api.post("/api/events", content=b"\n\n", headers=NDJSON)
    assert response.status_code == 202
    assert response.json() == {"accepted": 0, "duplicates": 0}


# --- faults -----------------------------------------------------------------------------------------------------------


async def test_with_the_store_away_the_answer_is_503_and_later_it_works(
    api: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        async def away(*_arguments: object) -> None:
            raise StoreUnreachable("gone")

        patch.setattr("bongsu.store.outbox.add_many", away)
        response = await api.post("/api/events", json={"eventType": "x"})
        answer = problem(response, 503)
        assert answer["type"] == "urn:bongsu:store-unreachable"
        assert response.headers["retry-after"] == "1"
    assert (await api.post("/api/events", json={"eventType": "x"})).status_code == 202
    assert await count_events(store) == 1


async def test_too_much_waiting_is_turned_away(api: httpx.AsyncClient, store: Store, intake: Intake) -> None:
    intake.waiting_limit = 2
    assert problem(await api.post("/api/events", json=[{"eventType": "x"}] * 3), 503)["type"] == "urn:bongsu:too-busy"
    assert await count_events(store) == 0


async def in_tens(count: int) -> AsyncIterator[bytes]:
    for _ in range(count // 10):
        yield lines({"eventType": "x"}) * 10


async def test_a_stream_waits_for_room_instead_of_being_turned_away(
    api: httpx.AsyncClient, store: Store, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake.waiting_limit = 30
    monkeypatch.setattr(ndjson, "BATCH_ITEMS", 20)
    answers = await asyncio.gather(*(api.post("/api/events", content=in_tens(200), headers=NDJSON) for _ in range(5)))
    assert [answer.json() for answer in answers] == [{"accepted": 200, "duplicates": 0}] * 5
    assert await count_events(store) == 1000


async def test_a_stream_the_store_left_in_the_middle_says_how_far_it_came(
    api: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ndjson, "BATCH_ITEMS", 10)
    add_many, answers = outbox.add_many, [True, True]

    async def twice(*arguments: Any) -> Any:
        if not answers:
            raise StoreUnreachable("gone")
        answers.pop()
        return await add_many(*arguments)

    monkeypatch.setattr(outbox, "add_many", twice)
    answer = problem(await api.post("/api/events", content=in_tens(50), headers=NDJSON), 503)
    assert "after 20 accepted and 0 duplicates up to line 20: send the lines after it again" in answer["detail"]
    assert "nothing was stored" not in answer["detail"].lower()
    assert await count_events(store) == 20


async def test_a_bug_is_a_500_with_nothing_but_the_request_id(
    api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bug(*_arguments: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("bongsu.store.outbox.find", bug)
    response = await api.get(f"/api/events/{uuid4()}")
    assert "secret" not in response.text
    assert "X-Request-ID" in problem(response, 500)["detail"]
    assert response.headers["x-request-id"]


async def test_an_event_that_is_not_there_is_a_404_and_a_bad_id_a_422(api: httpx.AsyncClient) -> None:
    problem(await api.get(f"/api/events/{uuid4()}"), 404)
    answer = problem(await api.get("/api/events/7"), 422)
    assert answer["errors"][0]["loc"] == ["path", "event_id"]


async def test_an_event_the_store_refuses_fails_its_own_request_and_no_other(
    api: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests share a commit. An event that passed every check and still cannot be stored is no fault of the others."""
    add_many = outbox.add_many

    async def refuse_poison(store: Store, events: Any) -> Any:
        if any(event.event_type == "poison" for event in events):
            raise ValueError("the database refuses this row")
        return await add_many(store, events)

    monkeypatch.setattr(outbox, "add_many", refuse_poison)
    types = ["a", "b", "poison", "c", "d"]
    answers = await asyncio.gather(*(api.post("/api/events", json={"eventType": name}) for name in types))
    assert [answer.status_code for answer in answers] == [202, 202, 500, 202, 202]
    assert await count_events(store) == 4
