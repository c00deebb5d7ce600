"""What each of FCM's answers means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.deliver.channels.http.retry_after import LONGEST_ASKED
from bongsu.deliver.channels.push.answers import read_answer
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Refused, Retry, Scope, Unknown
from tests.deliver.channels.push.test_message import NOW, json_values


def status_body(status: int, code: str = "", message: str = "no", *details: dict[str, Any]) -> bytes:
    listed = list(details)
    if code:
        listed.insert(0, {"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code})
    return json.dumps({"error": {"code": status, "message": message, "status": "X", "details": listed}}).encode()


def read(status: int, body: bytes = b"", headers: dict[str, str] | None = None, **options: Any) -> Outcome:
    return read_answer(status, headers or {}, body, now=NOW, **options)


def violated(*fields: str) -> dict[str, Any]:
    found = [{"field": field, "description": "bad"} for field in fields]
    return {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": found}


def apns_error(status: Any, reason: str = "Unregistered") -> dict[str, Any]:
    return {"@type": "type.googleapis.com/google.firebase.fcm.v1.ApnsError", "statusCode": status, "reason": reason}


TOKEN_WORDS = "The registration token is not a valid FCM registration token"
HTML = b"<!DOCTYPE html><html><title>Error</title></html>"

TABLE: list[tuple[str, int, bytes, Outcome]] = [
    ("accepted", 200, b'{"name": "projects/p/messages/1"}', Accepted("projects/p/messages/1")),
    ("unregistered", 404, status_body(404, "UNREGISTERED"), Gone("UNREGISTERED", "no")),
    ("bad token", 400, status_body(400, "INVALID_ARGUMENT", TOKEN_WORDS), Gone("INVALID_ARGUMENT", TOKEN_WORDS)),
    (
        "bad token by field",
        400,
        status_body(400, "INVALID_ARGUMENT", "no", violated("message.token")),
        Gone("INVALID_ARGUMENT", "no"),
    ),
    (
        "bad field",
        400,
        status_body(400, "INVALID_ARGUMENT", "no", violated("message.data")),
        Refused("INVALID_ARGUMENT", "message.data: no"),
    ),
    (
        "bad field beside the token",
        400,
        status_body(400, "INVALID_ARGUMENT", TOKEN_WORDS, violated("message.token", "message.data")),
        Refused("INVALID_ARGUMENT", f"message.token, message.data: {TOKEN_WORDS}"),
    ),
    (
        "bad field without FcmError, whatever the words",
        400,
        status_body(400, "", TOKEN_WORDS, violated("message.token")),
        Refused("INVALID_ARGUMENT", f"message.token: {TOKEN_WORDS}"),
    ),
    ("some bad argument", 400, status_body(400, "INVALID_ARGUMENT"), Refused("INVALID_ARGUMENT", "no")),
    (
        "APNs says gone",
        400,
        status_body(400, "INVALID_ARGUMENT", "no", apns_error(410)),
        Gone("UNREGISTERED", "no"),
    ),
    (
        "APNs says gone, as text",
        400,
        status_body(400, "INVALID_ARGUMENT", "no", apns_error("410")),
        Gone("UNREGISTERED", "no"),
    ),
    (
        "APNs says something else",
        400,
        status_body(400, "INVALID_ARGUMENT", "no", apns_error(400, "BadTopic")),
        Refused("INVALID_ARGUMENT", "no"),
    ),
    (
        "APNs or web key",
        401,
        status_body(401, "THIRD_PARTY_AUTH_ERROR"),
        Misconfigured("THIRD_PARTY_AUTH_ERROR", "no", Scope.PLATFORM),
    ),
    (
        "its old name",
        401,
        status_body(401, "APNS_AUTH_ERROR"),
        Misconfigured("THIRD_PARTY_AUTH_ERROR", "no", Scope.PLATFORM),
    ),
    ("our token", 401, status_body(401), Misconfigured("UNAUTHENTICATED", "no", is_for_all=True)),
    ("another project's", 403, status_body(403, "SENDER_ID_MISMATCH"), Gone("SENDER_ID_MISMATCH", "no")),
    ("no right", 403, status_body(403), Misconfigured("PERMISSION_DENIED", "no", is_for_all=True)),
    ("no right, HTML", 403, HTML, Misconfigured("PERMISSION_DENIED", HTML.decode(), is_for_all=True)),
    ("no project", 404, status_body(404), Misconfigured("NOT_FOUND", "no")),
    ("no path, HTML", 404, HTML, Misconfigured("NOT_FOUND", HTML.decode())),
    ("bad request, HTML", 400, HTML, Refused("INVALID_ARGUMENT", HTML.decode())),
    ("quota", 429, status_body(429, "QUOTA_EXCEEDED"), Retry("QUOTA_EXCEEDED", 60, Scope.CHANNEL, "no")),
    ("quota, HTML", 429, HTML, Retry("QUOTA_EXCEEDED", 60, Scope.CHANNEL, HTML.decode())),
    ("internal", 500, status_body(500, "INTERNAL"), Retry("INTERNAL", 10, detail="no")),
    ("unavailable", 503, status_body(503, "UNAVAILABLE"), Retry("UNAVAILABLE", 10, detail="no")),
    ("gateway", 502, HTML, Retry("HTTP_502", 10, detail=HTML.decode(), may_have_arrived=True)),
    ("gateway timeout", 504, b"", Retry("HTTP_504", 10, may_have_arrived=True)),
    ("half an answer", 500, b'{"error": {"co', Retry("HTTP_500", 10, detail='{"error": {"co', may_have_arrived=True)),
    ("a redirect", 302, b"", Misconfigured("HTTP_302")),
    ("too large", 413, b"", Refused("PAYLOAD_TOO_LARGE")),
    ("any other", 418, b"", Refused("HTTP_418")),
]


@pytest.mark.parametrize(("status", "body", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_answer_means_what_the_table_says(status: int, body: bytes, expected: Outcome) -> None:
    assert read(status, body) == expected


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{}", b'"name"', b'{"name": ""}', b'{"name": 5}', HTML, b"\xff", b"[]", b"null"]
)
def test_a_200_without_a_name_may_have_been_accepted(body: bytes) -> None:
    outcome = read(200, body)
    assert isinstance(outcome, Unknown)
    assert outcome.code == "BAD_ANSWER"


def test_a_quota_of_one_device_does_not_hold_up_the_others() -> None:
    failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"subject": "device:abc"}]}
    outcome = read(429, status_body(429, "QUOTA_EXCEEDED", "too many", failure))
    assert isinstance(outcome, Retry)
    assert outcome.scope is Scope.DELIVERY


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        (" 120 ", 120.0),
        ("Sun, 15 Nov 2026 12:00:30 GMT", 30.0),
        ("Sun, 15 Nov 2026 12:00:30 -0000", 30.0),
        ("Sun, 15 Nov 2026 11:59:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", LONGEST_ASKED),
        ("999999999", LONGEST_ASKED),
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("٣", None),
    ],
)
def test_retry_after_is_obeyed_in_every_form_and_else_there_is_a_floor(
    status: int, header: str | None, seconds: float | None
) -> None:
    floor = 60 if status == 429 else 10
    for name in ("Retry-After", "retry-after"):
        outcome = read(status, b"", {name: header} if header is not None else {})
        assert isinstance(outcome, Retry)
        assert outcome.after_seconds == (floor if seconds is None else seconds)


def test_floors_double_with_each_try_and_end_somewhere() -> None:
    def waits(status: int, spread: float) -> list[float]:
        outcomes = [read(status, attempt=attempt, spread=spread) for attempt in (1, 2, 3, 4, 50)]
        return [outcome.after_seconds for outcome in outcomes if isinstance(outcome, Retry)]

    assert waits(503, 0.0) == [10, 20, 40, 80, 3600]
    assert waits(429, 0.0) == [60, 120, 240, 480, 3600]
    assert waits(503, 0.5) == pytest.approx([11, 22, 44, 88, 3960])


answers = st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode())
errors = st.fixed_dictionaries(
    {"error": st.dictionaries(st.sampled_from(["code", "message", "details", "status"]), json_values)}
).map(lambda value: json.dumps(value).encode())


@given(
    status=st.integers(100, 599), body=answers | errors, header=st.none() | st.text(max_size=40), attempt=st.integers(1, 99)
)
def test_whatever_is_answered_has_an_outcome_and_nonsense_invalidates_no_token(
    status: int, body: bytes, header: str | None, attempt: int
) -> None:
    outcome = read(status, body, {"Retry-After": header} if header is not None else {}, attempt=attempt)
    assert not isinstance(outcome, Gone)
    if status >= 500 or status == 429:
        assert isinstance(outcome, Retry)
        assert outcome.after_seconds >= 0
    elif status != 408:
        assert not isinstance(outcome, Retry)
