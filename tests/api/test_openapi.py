"""The OpenAPI document: every operation is described, with an example for its body and every status it can answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from bongsu.api.app import build_api
from bongsu.chat.fanout import Fanout
from bongsu.chat.order import ChatOrder
from bongsu.counters.calls import Counters
from bongsu.ingress.intake import Intake
from bongsu.live.gateway import Gateway
from bongsu.runtime.keys import Keys
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store

METHODS = {"get", "put", "post", "patch", "delete"}
# Without a verb, because these are what the field calls them.
NOUNS = {"Liveness", "Readiness"}
VERBS = {
    "Add", "Archive", "Begin", "Cancel", "Change", "Count", "Create", "Delete", "Edit", "End", "Erase", "Find", "List",
    "Mark", "Mute", "Read", "Record", "Register", "Remove", "Replay", "Run", "Send", "Set", "Show", "Stream", "Unarchive",
    "Unmute",
}  # fmt: skip


@pytest.fixture
async def document(store: Store, settings: Settings, intake: Intake) -> dict[str, Any]:
    gateway = Gateway(store, LocalSignals(), settings)
    order = ChatOrder(store, Fanout(LocalSignals()), settings)
    more: dict[str, Any] = {"gateway": gateway, "chat_order": order, "counters": Counters(store)}
    app = build_api(store, intake, Keys.load(settings), settings, lambda: False, **more)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://bongsu") as client:
        found: dict[str, Any] = (await client.get("/openapi.json")).json()
        return found


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in METHODS:
                yield f"{method.upper()} {path}", operation


def problems_of(name: str, operation: dict[str, Any]) -> set[str]:
    """The problems that an operation can answer with by what it takes."""
    expected = set()
    if operation.get("security") != []:
        expected |= {"401", "403"}
    if "requestBody" in operation:
        expected |= {"400", "413", "415", "422"}
    if operation.get("parameters"):
        expected.add("422")
    # All but these use the store.
    if name not in ("GET /healthz", "GET /metrics", "POST /api/session", "DELETE /api/session"):
        expected.add("503")
    return expected


async def test_every_operation_has_a_verb_first_summary_and_a_description(document: dict[str, Any]) -> None:
    names = dict(operations(document))
    assert len(names) > 30
    for name, operation in names.items():
        summary = operation["summary"]
        assert summary in NOUNS or summary.split()[0] in VERBS, (name, summary)
        assert not summary.endswith("."), name
        assert operation.get("description", "").rstrip().endswith("."), name


async def test_every_body_has_an_example(document: dict[str, Any]) -> None:
    bodies = {name: operation["requestBody"] for name, operation in operations(document) if "requestBody" in operation}
    assert len(bodies) >= 10
    for name, body in bodies.items():
        for kind, content in body["content"].items():
            assert content.get("example"), (name, kind)


async def test_every_status_that_can_be_answered_is_documented(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        answers = operation["responses"]
        assert any(status.startswith("2") for status in answers), name
        missing = problems_of(name, operation) - set(answers)
        assert not missing, (name, missing)
        for status, answer in answers.items():
            if status >= "400":
                assert list(answer["content"]) == ["application/problem+json"], (name, status)


async def test_every_schema_that_is_referred_to_is_there(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    missing = {name for name in references(document) if name not in schemas}
    assert not missing


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].removeprefix("#/components/schemas/")
        for value in part.values():
            yield from references(value)
    elif isinstance(part, list):
        for value in part:
            yield from references(value)
