"""FCM as data: what a delivery becomes on the wire, which limits it keeps, and what each answer means."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.deliver.channels.push import fcm
from bongsu.model import Priority
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Scope, Unknown
from bongsu.simulator.rules import Message

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
NID = "AbCdEf0123456789_-AbCdEf01234567"


def outgoing(**fields: Any) -> Outgoing:
    given: dict[str, Any] = {
        "delivery_id": 1,
        "notification_id": 77,
        "member_id": "m",
        "address": "token-1",
        "type": "PRICE_DROP",
        "title": "가격이 내렸어요",
        "body": "9,900원",
        "collapse_id": NID,
    }
    return Outgoing(**(given | fields))


def built(**fields: Any) -> dict[str, Any]:
    return fcm.build_message(outgoing(**fields), NOW)


# --- the message ------------------------------------------------------------------------------------------------------


def test_an_alert_has_its_text_for_every_platform() -> None:
    message = built()
    assert message["token"] == "token-1"
    assert message["notification"] == {"title": "가격이 내렸어요", "body": "9,900원"}
    assert message["apns"]["payload"]["aps"]["alert"] == {"title": "가격이 내렸어요", "body": "9,900원"}
    assert message["apns"]["headers"]["apns-push-type"] == "alert"


def test_the_collapse_id_is_wherever_a_device_looks_for_it() -> None:
    message = built()
    assert message["data"]["nid"] == NID
    assert message["android"]["notification"]["tag"] == NID
    assert message["apns"]["headers"]["apns-collapse-id"] == NID
    assert message["webpush"]["headers"]["Topic"] == NID
    assert message["webpush"]["notification"]["tag"] == NID
    assert "collapse_key" not in message["android"]
    assert NID not in json.dumps(built(collapse_id=""))


def test_a_silent_one_is_data_and_nothing_else() -> None:
    message = built(is_silent=True, priority=Priority.LOW)
    assert "notification" not in message
    assert "notification" not in message["android"]
    assert "notification" not in message["webpush"]
    assert message["android"]["priority"] == "high"
    assert message["apns"]["headers"]["apns-push-type"] == "background"
    assert message["apns"]["headers"]["apns-priority"] == "5"
    assert message["apns"]["payload"] == {"aps": {"content-available": 1}}
    assert message["data"]["title"] == "가격이 내렸어요"
    assert message["data"]["body"] == "9,900원"
    assert message["data"]["nid"] == message["apns"]["headers"]["apns-collapse-id"] == NID


@pytest.mark.parametrize(
    ("priority", "android", "apns", "web"),
    [
        (Priority.HIGH, "high", "10", "high"),
        (Priority.NORMAL, "normal", "10", "normal"),
        (Priority.LOW, "normal", "5", "low"),
    ],
)
def test_each_platform_has_its_word_for_priority(priority: Priority, android: str, apns: str, web: str) -> None:
    message = built(priority=priority)
    assert message["android"]["priority"] == android
    assert message["apns"]["headers"]["apns-priority"] == apns
    assert message["webpush"]["headers"]["Urgency"] == web


@pytest.mark.parametrize("is_silent", [True, False])
def test_each_platform_has_its_word_for_expiry(is_silent: bool) -> None:
    expires_at = NOW + timedelta(hours=1, milliseconds=900)
    message = built(expires_at=expires_at, is_silent=is_silent)
    assert message["android"]["ttl"] == "3600s"
    assert message["apns"]["headers"]["apns-expiration"] == str(int(expires_at.timestamp()))
    assert message["webpush"]["headers"]["TTL"] == "3600"
    unlimited = built(is_silent=is_silent)
    assert "ttl" not in unlimited["android"]
    assert "apns-expiration" not in unlimited["apns"]["headers"]
    assert "TTL" not in unlimited["webpush"]["headers"]


def test_no_service_is_asked_to_keep_a_message_longer_than_it_would() -> None:
    message = built(expires_at=NOW + timedelta(days=90))
    assert message["android"]["ttl"] == "2419200s"
    assert message["webpush"]["headers"]["TTL"] == "2419200"


def test_data_is_strings_and_what_is_none_becomes_its_json() -> None:
    data = {"text": "있는 그대로", "price": 9900, "ok": True, "none": None, "list": [1, "둘"], "map": {"a": {"b": 0.5}}}
    assert built(data=data, ref_id="sku-1")["data"] == {
        "notificationId": "77",
        "type": "PRICE_DROP",
        "nid": NID,
        "refId": "sku-1",
        "text": "있는 그대로",
        "price": "9900",
        "ok": "true",
        "none": "null",
        "list": '[1,"둘"]',
        "map": '{"a":{"b":0.5}}',
    }


def test_reserved_names_give_way_and_nothing_is_overwritten() -> None:
    names = ["from", "notification", "message_type", "google.c.a", "gcm.n.e", "nid", "type", "notificationId", "refId"]
    data = {name: f"theirs {name}" for name in names} | {"data_from": "theirs too", "fromage": "brie"}
    sent = built(data=data, ref_id="r")["data"]
    assert sent["nid"] == NID
    assert sent["type"] == "PRICE_DROP"
    assert sent["data_data_from"] == "theirs from"
    assert sent["data_from"] == "theirs too"
    assert sent["data_google.c.a"] == "theirs google.c.a"
    assert sent["data_nid"] == "theirs nid"
    assert sent["fromage"] == "brie"
    assert not {"from", "notification", "message_type", "google.c.a", "gcm.n.e"} & set(sent)


# --- before it is sent ------------------------------------------------------------------------------------------------


def refusal(**fields: Any) -> str:
    body = fcm.request_body(outgoing(**fields), NOW)
    return body.code if isinstance(body, Refused) else ""


def test_what_fcm_would_not_take_is_refused_without_asking_it() -> None:
    assert refusal() == ""
    assert refusal(body="가" * 1400) == "PAYLOAD_TOO_LARGE"
    assert refusal(data={"text": "x" * 4096}) == "PAYLOAD_TOO_LARGE"
    assert refusal(data={"text": "x" * 3000}) == ""
    assert refusal(address="") == "NO_TOKEN"
    assert refusal(collapse_id="x" * 33) == "BAD_COLLAPSE_ID"
    assert refusal(collapse_id="not base64url!") == "BAD_COLLAPSE_ID"
    assert refusal(title="half a \ud800 pair") == "UNENCODABLE"
    assert refusal(data={"not": float("nan")}) == "UNENCODABLE"
    assert refusal(data={"any": object()}) == "UNENCODABLE"


def test_what_is_past_its_expiry_is_not_sent() -> None:
    assert refusal(expires_at=NOW) == "EXPIRED"
    assert refusal(expires_at=NOW - timedelta(seconds=1)) == "EXPIRED"
    assert refusal(expires_at=NOW + timedelta(seconds=1)) == ""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.text(max_size=10) | st.sampled_from(["from", "notification", "nid", "type", "google.x", "gcm.y", "data_from"])


@pytest.mark.slow
@given(
    title=st.text(max_size=2000),
    body=st.text(max_size=2000),
    data=st.dictionaries(names, json_values, max_size=6),
    priority=st.sampled_from(Priority),
    is_silent=st.booleans(),
    collapse_id=st.from_regex(r"[A-Za-z0-9_-]{0,40}", fullmatch=True),
    lifetime=st.none() | st.timedeltas(timedelta(seconds=-5), timedelta(days=100)),
)
def test_what_we_would_send_fcm_has_nothing_against(lifetime: timedelta | None, **fields: Any) -> None:
    body = fcm.request_body(outgoing(expires_at=NOW + lifetime if lifetime is not None else None, **fields), NOW)
    if isinstance(body, bytes):
        message = json.loads(body)["message"]
        assert Message(message, len(body)).violations == []
        # Every value of the rule's data is there, under its name or a free one.
        assert len(message["data"]) >= len(fields["data"])


# --- what is answered -------------------------------------------------------------------------------------------------


def status_body(status: int, code: str = "", message: str = "no", *details: dict[str, Any]) -> bytes:
    listed = list(details)
    if code:
        listed.insert(0, {"@type": "type.googleapis.com/google.firebase.fcm.v1.FcmError", "errorCode": code})
    return json.dumps({"error": {"code": status, "message": message, "status": "X", "details": listed}}).encode()


def read(status: int, body: bytes = b"", headers: dict[str, str] | None = None, **options: Any) -> Outcome:
    return fcm.read_answer(status, headers or {}, body, now=NOW, **options)


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
        ("Fri, 31 Dec 9999 23:59:59 GMT", fcm.LONGEST_ASKED),
        ("999999999", fcm.LONGEST_ASKED),
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
def test_whatever_is_answered_has_a_meaning_and_no_token_dies_of_nonsense(
    status: int, body: bytes, header: str | None, attempt: int
) -> None:
    outcome = read(status, body, {"Retry-After": header} if header is not None else {}, attempt=attempt)
    assert not isinstance(outcome, Gone)
    if status >= 500 or status == 429:
        assert isinstance(outcome, Retry)
        assert outcome.after_seconds >= 0
    elif status != 408:
        assert not isinstance(outcome, Retry)
