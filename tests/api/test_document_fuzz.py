"""Requests made from the OpenAPI document by schemathesis: what it says is what is accepted, refused and answered.

A new operation is covered by being in the document. `make chaos` tries many more examples.
"""

from __future__ import annotations

import contextlib
import json
from datetime import datetime
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.specs.openapi import checks

from tests.support.long_runs import TIMES, examples
from tests.support.served_app import Answer, RawHeaders, ServedApp

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.positive_data_acceptance,
]
EXAMPLES = examples(5)
# Requests against the schema are refused before the store is read, alike on both, and take most of the time to draw.
# Of the two stores PostgreSQL takes fewer values. `make chaos` tries both.
RUNS = [
    ("sqlite", GenerationMode.POSITIVE),
    ("postgresql", GenerationMode.POSITIVE),
    ("postgresql", GenerationMode.NEGATIVE),
    *([("sqlite", GenerationMode.NEGATIVE)] if TIMES > 1 else []),
]
# In this process there is no connection to stream on: tests/live has the streams.
STREAM = "GET /api/notifications/stream"
# What is refused for a reason that a schema has no words for.
BEYOND_SCHEMA = (
    "`from` must lie before `to`",
    "nothing fits: an event is FAILED or UNHANDLED",  # of a filter, by two of its fields
    "start and end are the same",
    "is not a cursor",
    "must be a channel that an app declares",
    "contains a NUL character",  # anywhere in a payload
    "is the eventId of number",
    "give afterSeq or beforeSeq, not both",
    "send `unread` or `archived`, not both",
    "lies in the past: it would never be sent",
    "lies before sendAt: it would never be sent",
    "Input should be a valid integer",  # 1.0: an integer to a schema, and a float to every strict reader
)

_PAST = st.datetimes(datetime(1970, 1, 2), datetime(2026, 1, 1)).map(lambda moment: f"{moment.isoformat()}Z")
_MAIL = st.from_regex(r"[a-z0-9]{1,10}(\.[a-z]{1,5})?@[a-z]{1,10}\.example", fullmatch=True)
for name, texts in {
    "date-time": _PAST,
    "email": _MAIL,
    "time-zone": st.sampled_from(["UTC", "Asia/Seoul", "America/New_York"]),
    "channel": st.sampled_from(["PUSH", "SMS", "EMAIL", "IN_APP"]),
    "own-channel": st.just("KAKAO"),
    "cursor": st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1),
}.items():
    schemathesis.openapi.format(name, texts)


def operations(served: ServedApp) -> dict[str, tuple[Any, str]]:
    """Every operation, and the key it takes. Keys are not fuzzed here: see test_authorisation.py."""
    document = json.loads(served.call("GET", "/openapi.json").body)
    keys = {"apiKey": served.server_key, "memberToken": served.token("m-1"), "": ""}
    taken = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            # What both call is called by a member: a server names one.
            check = ([name for each in operation.pop("security") for name in each] or [""])[-1]
            taken[f"{method.upper()} {path}"] = keys[check]
    del document["components"]["securitySchemes"]
    found: list[Any] = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]  # type: ignore
    return {name: (each, taken[name]) for each in found if (name := f"{each.method.upper()} {each.path}") != STREAM}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("served", "mode"), RUNS, indirect=["served"], ids=str)
def test_what_the_document_says_is_what_is_accepted_refused_and_answered(served: ServedApp, mode: GenerationMode) -> None:
    tried = {name: _fuzz(served, *each, mode) for name, each in operations(served).items()}
    assert len(tried) > 30
    # There is nothing wrong to be sent to an operation that takes nothing.
    expected = len(tried) if mode is GenerationMode.POSITIVE else 15
    assert sum(count > 0 for count in tried.values()) >= expected, tried


def _fuzz(served: ServedApp, operation: Any, key: str, mode: GenerationMode) -> int:
    """How many requests were made."""
    count = 0

    @hypothesis.settings(
        max_examples=EXAMPLES, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def try_one(case: Case[Any]) -> None:
        nonlocal count
        count += 1
        request = _prepared(case, key)
        answer = served.call(*_parts(request))
        is_refused_rightly = mode is GenerationMode.POSITIVE and _is_beyond_schema(answer)
        case.validate_response(_response(answer, request), checks=CHECKS[: -1 if is_refused_rightly else None])

    with contextlib.suppress(hypothesis.errors.Unsatisfiable):
        try_one()
    return count


def _prepared(case: Case[Any], key: str) -> requests.PreparedRequest:
    given = case.as_transport_kwargs(base_url="http://bongsu")
    headers = dict(given.get("headers") or {}) | ({"Authorization": f"Bearer {key}"} if key else {})
    known = {name: given[name] for name in ("method", "url", "params", "data", "json", "cookies", "files") if name in given}
    return requests.Request(headers=headers, **known).prepare()


def _parts(request: requests.PreparedRequest) -> tuple[str, str, RawHeaders, bytes]:
    assert request.method
    assert request.url
    body = request.body or b""
    body = body.encode() if isinstance(body, str) else body
    assert isinstance(body, bytes)
    headers = [
        (str(name).encode(), value.encode() if isinstance(value, str) else value) for name, value in request.headers.items()
    ]
    return request.method, request.url.removeprefix("http://bongsu"), headers, body


def _response(answer: Answer, request: requests.PreparedRequest) -> Response:
    headers: dict[str, list[str]] = {}
    for name, value in answer.headers:
        headers.setdefault(name, []).append(value)
    return Response(answer.status, headers, answer.body, request, elapsed=0, verify=False)


def _is_beyond_schema(answer: Answer) -> bool:
    if answer.status not in (400, 422):
        return False
    problem = json.loads(answer.body)
    if problem["type"] in ("urn:bongsu:replay-without-filter", "urn:bongsu:source-not-configured"):
        return True
    mistakes = [mistake["msg"] for mistake in problem.get("errors", ())]
    return bool(mistakes) and all(any(reason in mistake for reason in BEYOND_SCHEMA) for mistake in mistakes)
