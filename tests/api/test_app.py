"""Who may call, health, the document, and the id that ties an answer to the log."""

from __future__ import annotations

import re
from datetime import timedelta

import httpx

from bongsu.runtime.keys import Keys
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.query import same

EVENT = {"eventType": "x"}


KEYS_AND_ANSWERS: list[tuple[dict[str, str], int]] = [
    ({}, 401),
    ({"Authorization": "Bearer wrong"}, 401),
    ({"Authorization": "Bearer "}, 401),
    ({"Authorization": "Basic server-key-of-the-tests"}, 401),
    ({"Authorization": "server-key-of-the-tests"}, 401),
    ({"Authorization": "Bearer \xf1"}, 401),
    ({"X-API-Key": "wrong"}, 401),
    ({"Cookie": "bongsu_session=server-key-of-the-testz"}, 401),
    ({"Authorization": "Bearer server-key-of-the-tests"}, 202),
    ({"Authorization": "bearer server-key-of-the-tests"}, 202),
    ({"X-API-Key": "server-key-of-the-tests"}, 202),
]


async def test_a_server_call_takes_an_api_key(api: httpx.AsyncClient) -> None:
    del api.headers["Authorization"]
    for headers, status in KEYS_AND_ANSWERS:
        raw = {name.encode(): value.encode("latin-1") for name, value in headers.items()}
        response = await api.post("/api/events", json=EVENT, headers=raw)
        assert response.status_code == status, headers
        if status == 401:
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["type"] == "urn:bongsu:bad-key"
            # Callers log what they are answered.
            assert "server-key-of-the-tes" not in response.text


async def test_a_member_token_does_not_open_a_server_call(
    api: httpx.AsyncClient, member_token: str, settings: Settings
) -> None:
    headers = {"Authorization": f"Bearer {member_token}"}
    response = await api.post("/api/events", json=EVENT, headers=headers)
    assert response.status_code == 403
    assert response.json()["type"] == "urn:bongsu:wrong-kind"
    expired = Keys.load(settings).member_token("m", timedelta(seconds=-1))
    response = await api.post("/api/events", json=EVENT, headers={"Authorization": f"Bearer {expired}"})
    assert response.status_code == 401


async def test_health_needs_no_key(api: httpx.AsyncClient, store: Store) -> None:
    del api.headers["Authorization"]
    assert (await api.get("/healthz")).json() == {"status": "ok"}
    assert (await api.get("/readyz")).json() == {"status": "ready"}


async def test_not_ready_without_the_tables_and_still_alive(api: httpx.AsyncClient, store: Store) -> None:
    async with store.transaction() as tx:
        await tx.execute(same("DROP TABLE bongsu_version")())
    response = await api.get("/readyz")
    assert response.status_code == 503
    assert "bongsu migrate" in response.json()["detail"]
    assert store.location not in response.text
    assert (await api.get("/healthz")).status_code == 200


async def test_the_document_describes_the_three_shapes(api: httpx.AsyncClient) -> None:
    del api.headers["Authorization"]
    document = (await api.get("/openapi.json")).json()
    content = document["paths"]["/api/events"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "application/x-ndjson"}
    assert set(document["components"]["schemas"]["Event"]["properties"]) >= {"eventId", "eventType", "payload"}
    assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    page = await api.get("/docs")
    assert page.status_code == 200
    # The page works where there is no internet: all it loads comes from here.
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(sources) == 3
    for source in sources:
        assert source.startswith("/docs/assets/")
        assert (await api.get(source)).status_code == 200


async def test_the_front_door_leads_to_the_document(api: httpx.AsyncClient) -> None:
    response = await api.get("/")
    assert (response.status_code, response.headers["location"]) == (307, "/docs")


async def test_names_on_the_wire_are_camel_case_only(api: httpx.AsyncClient) -> None:
    assert (await api.post("/api/events", json={"event_type": "x"})).status_code == 422
    lines = {"content": b'{"event_type":"x"}', "headers": {"Content-Type": "application/x-ndjson"}}
    assert (await api.post("/api/events", **lines)).status_code == 422  # type: ignore[arg-type]


async def test_unknown_paths_and_methods_are_problems_too(api: httpx.AsyncClient) -> None:
    for response in (await api.get("/nowhere"), await api.put("/api/events")):
        assert response.status_code in (404, 405)
        assert response.headers["content-type"] == "application/problem+json"


async def test_the_request_id_of_the_caller_comes_back_if_it_is_harmless(api: httpx.AsyncClient) -> None:
    assert (await api.get("/healthz", headers={"X-Request-ID": "abc-1"})).headers["x-request-id"] == "abc-1"
    for harmful in ("a b", "x" * 200, "a\x1b[31m"):
        made = (await api.get("/healthz", headers={"X-Request-ID": harmful})).headers["x-request-id"]
        assert made != harmful
        assert len(made) == 16


async def test_stats_and_metrics_want_the_server_key(api: httpx.AsyncClient) -> None:
    await api.post("/api/events", json=EVENT)
    stats = (await api.get("/api/admin/stats")).json()
    assert stats == {
        "events": {"pending": 1, "failed": 0, "unhandled": 0},
        "deliveries": {"ready": 0, "sending": 0, "fail": 0, "unknown": 0},
    }
    metrics = await api.get("/metrics")
    assert 'bongsu_events_accepted_total{ingress="http"}' in metrics.text
    del api.headers["Authorization"]
    assert (await api.get("/metrics")).status_code == 401
    assert (await api.get("/api/admin/stats")).status_code == 401


async def test_another_origin_is_let_in_only_by_setting(api: httpx.AsyncClient) -> None:
    response = await api.get("/healthz", headers={"Origin": "https://shop.example"})
    assert "access-control-allow-origin" not in response.headers
