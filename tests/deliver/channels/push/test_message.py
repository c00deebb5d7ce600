"""What FCM is sent: what a delivery becomes on the wire, and which limits it keeps."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.deliver.channels.push.message import build_message, request_body
from bongsu.model import Priority
from bongsu.model.outcome import Outgoing, Refused
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
    return build_message(outgoing(**fields), NOW)


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
    body = request_body(outgoing(**fields), NOW)
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
    body = request_body(outgoing(expires_at=NOW + lifetime if lifetime is not None else None, **fields), NOW)
    if isinstance(body, bytes):
        message = json.loads(body)["message"]
        assert Message(message, len(body)).violations == []
        # Every value of the rule's data is there, under its name or a free one.
        assert len(message["data"]) >= len(fields["data"])
