"""The provider that is played: what it answers, decided by config, token, quota and dice."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.simulator.config import Config, Fault
from bongsu.simulator.provider import Provider
from bongsu.simulator.replies import Manner, Reply

EPOCH = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def epoch(self) -> float:
        return EPOCH + self.now


def played(clock: Clock | None = None, **config: Any) -> Provider:
    clock = clock or Clock()
    return Provider(Config.model_validate(config), clock, clock.epoch)


def send(provider: Provider, token: str = "ok", number: int = 1, authorization: str = "", **parts: Any) -> Reply:
    message = {"token": token, "data": {"notificationId": str(number), "nid": f"n{number}"}} | parts
    return provider.send("shop", authorization, json.dumps({"message": message}).encode())


def error_code(reply: Reply) -> str:
    details = json.loads(reply.body)["error"].get("details", [])
    return next((one["errorCode"] for one in details if "errorCode" in one), "")


def only_entry(provider: Provider) -> dict[str, Any]:
    (entry,) = provider.ledger.to_json()["messages"]
    assert isinstance(entry, dict)
    return entry


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_any_token_is_good_unless_its_name_says_otherwise() -> None:
    reply = send(played(), "whatever")
    assert (reply.status, reply.manner) == (200, Manner.WHOLE)
    assert json.loads(reply.body)["name"].startswith("projects/shop/messages/")


@pytest.mark.parametrize(
    ("token", "status", "code"),
    [
        ("unregistered-1", 404, "UNREGISTERED"),
        ("bad-1", 400, "INVALID_ARGUMENT"),
        ("other-project-1", 403, "SENDER_ID_MISMATCH"),
        ("third-party-1", 401, "THIRD_PARTY_AUTH_ERROR"),
        ("apns-gone-1", 400, "INVALID_ARGUMENT"),
        ("refused-1", 400, "INVALID_ARGUMENT"),
    ],
)
def test_the_name_of_a_token_says_what_becomes_of_it(token: str, status: int, code: str) -> None:
    reply = send(played(), token)
    assert (reply.status, error_code(reply)) == (status, code)


def test_a_dying_token_takes_so_many_and_is_then_unregistered() -> None:
    provider = played(diesAfter=2)
    answers = [send(provider, "dying-1", number).status for number in range(4)]
    assert answers == [200, 200, 404, 404]
    # The third learned of it; the fourth should have known.
    assert provider.stats()["sendsAfterUnregistered"] == 1


def test_a_token_can_name_the_fault_it_meets() -> None:
    provider = played()
    assert send(provider, "fault-silence-1").manner is Manner.SILENCE
    assert send(provider, "fault-internal-1").status == 500
    assert send(provider, "fault-nosuch-1").status == 200


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status", "manner", "accepted"),
    [
        (Fault.NONE, 200, Manner.WHOLE, 1),
        (Fault.UNAVAILABLE, 503, Manner.WHOLE, 0),
        (Fault.INTERNAL, 500, Manner.WHOLE, 0),
        (Fault.BAD_GATEWAY, 502, Manner.WHOLE, 0),
        (Fault.TRUNCATED, 500, Manner.WHOLE, 0),
        (Fault.GARBAGE, 200, Manner.WHOLE, 1),
        (Fault.RESET, 0, Manner.RESET, 0),
        (Fault.SILENCE, 0, Manner.SILENCE, 0),
        (Fault.ACCEPTED_RESET, 200, Manner.RESET, 1),
        (Fault.ACCEPTED_UNAVAILABLE, 503, Manner.WHOLE, 1),
        (Fault.ACCEPTED_SILENCE, 200, Manner.SILENCE, 1),
        (Fault.DRIP, 200, Manner.DRIP, 1),
        (Fault.UNAUTHORIZED, 401, Manner.WHOLE, 0),
        (Fault.FORBIDDEN, 403, Manner.WHOLE, 0),
        (Fault.NOT_FOUND, 404, Manner.WHOLE, 0),
        (Fault.QUOTA, 429, Manner.WHOLE, 0),
        (Fault.DEVICE_QUOTA, 429, Manner.WHOLE, 0),
    ],
)
def test_each_fault_answers_in_its_way_and_is_counted_truly(
    fault: Fault, status: int, manner: Manner, accepted: int
) -> None:
    provider = played(faults={fault: 1.0})
    reply = send(provider)
    assert (reply.status, reply.manner) == (status, manner)
    assert only_entry(provider)["accepted"] == accepted


def test_every_fault_there_is_has_a_line_in_the_table_above() -> None:
    tested = test_each_fault_answers_in_its_way_and_is_counted_truly.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert {line[0] for line in tested} == set(Fault)


def test_the_same_seed_gives_the_same_faults_in_whatever_order_they_are_met() -> None:
    shares = dict.fromkeys((Fault.UNAVAILABLE, Fault.INTERNAL, Fault.RESET, Fault.ACCEPTED_RESET), 0.1)
    latency = {"medianMs": 10, "tailMs": 500, "tailShare": 0.1}
    forwards, backwards, otherwise = (played(seed=seed, faults=shares, latency=latency, attempts=[]) for seed in (7, 7, 8))
    numbers = range(500)
    first = {number: send(forwards, number=number) for number in numbers}
    second = {number: send(backwards, number=number) for number in reversed(numbers)}
    third = {number: send(otherwise, number=number) for number in numbers}
    assert first == second
    assert first != third


def test_shares_and_tail_are_what_was_asked_for() -> None:
    provider = played(faults={"unavailable": 0.3, "reset": 0.1}, latency={"medianMs": 10, "tailMs": 1000, "tailShare": 0.05})
    delays = [send(provider, number=number).delay for number in range(4000)]
    answers = provider.stats()["answers"]
    assert 0.27 < answers["UNAVAILABLE"] / 4000 < 0.33
    assert 0.08 < answers["RESET"] / 4000 < 0.12
    assert 0.04 < sum(delay >= 0.5 for delay in delays) / 4000 < 0.06
    assert all(0.005 <= delay <= 0.015 or 0.5 <= delay <= 1.5 for delay in delays)


def test_attempts_script_what_befalls_each_try_of_every_message() -> None:
    provider = played(attempts=["unavailable", "acceptedReset", "none"])
    for number in (1, 2):
        assert [send(provider, number=number).code for _ in range(4)] == [
            *("UNAVAILABLE", "ACCEPTED_RESET", "ACCEPTED", "ACCEPTED")
        ]


def test_outages_come_and_go_on_time() -> None:
    clock = Clock()
    outages = [
        {"fromSecond": 10, "toSecond": 20, "faults": {"unavailable": 1}},
        {"fromSecond": 30, "toSecond": 40, "faults": {"notFound": 1}, "latency": {"medianMs": 1000}},
    ]
    provider = played(clock, outages=outages)
    seen = []
    for second in (0, 10, 19, 20, 30, 40):
        clock.now = 100 + second
        seen.append(send(provider, number=second).status)
    assert seen == [200, 503, 503, 200, 404, 200]
    clock.now = 131
    assert 0.5 <= send(provider, number=99).delay <= 1.5


# --- quota and Retry-After --------------------------------------------------------------------------------------------


def test_the_quota_is_refilled_after_a_minute_and_refusals_do_not_count() -> None:
    clock = Clock()
    provider = played(clock, quota={"perMinute": 2})
    assert [send(provider, number=number).status for number in range(4)] == [200, 200, 429, 429]
    clock.now += 60
    assert [send(provider, number=number).status for number in range(4, 8)] == [200, 200, 429, 429]


def test_a_device_has_a_quota_of_its_own() -> None:
    provider = played(quota={"perDevice": 1})
    assert [send(provider, token, number).status for number, token in enumerate(["a", "a", "b"])] == [200, 429, 200]


@pytest.mark.parametrize("fault", ["quota", "unavailable"])
@pytest.mark.parametrize(("form", "expected"), [("seconds", "7"), ("date", "date"), ("absent", None), ("nonsense", "soon")])
def test_retry_after_comes_in_every_form(fault: str, form: str, expected: str | None) -> None:
    clock = Clock()
    reply = send(played(clock, faults={fault: 1}, retryAfter={"form": form, "seconds": 6.5}))
    header = dict(reply.headers).get("Retry-After")
    floor = 60 if fault == "quota" else 10
    if expected == "date":
        assert header is not None
        assert 6.5 <= parsedate_to_datetime(header).timestamp() - clock.epoch() <= 7.5
        assert reply.asked_seconds == 6.5
    else:
        assert header == expected
        assert reply.asked_seconds == (7 if form == "seconds" else floor)


# --- OAuth ------------------------------------------------------------------------------------------------------------

GRANT = b"grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=x.y.z"


def test_access_tokens_are_wanted_when_configured_and_end() -> None:
    clock = Clock()
    provider = played(clock, oauth={"required": True, "seconds": 5})
    assert send(provider).status == 401
    token = json.loads(provider.token(GRANT).body)
    assert token["expires_in"] == 5
    bearer = f"Bearer {token['access_token']}"
    assert send(provider, number=2, authorization=bearer).status == 200
    clock.now += 5
    assert send(provider, number=3, authorization=bearer).status == 401
    renewed = f"Bearer {json.loads(provider.token(GRANT).body)['access_token']}"
    assert send(provider, number=4, authorization=renewed).status == 200
    provider.reset()
    assert send(provider, number=5, authorization=renewed).status == 401


@pytest.mark.parametrize(("fault", "status"), [("refused", 400), ("unavailable", 503), ("garbage", 200)])
def test_the_token_endpoint_can_fail_too(fault: str, status: int) -> None:
    reply = played(oauth={"fault": fault}).token(GRANT)
    assert reply.status == status
    assert b"access_token" not in reply.body


def test_another_grant_is_no_grant() -> None:
    assert played().token(b"grant_type=password").status == 400


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_the_ledger_tells_how_often_a_message_was_accepted_and_after_what_gaps() -> None:
    clock = Clock()
    provider = played(clock, attempts=["quota", "acceptedUnavailable", "none"], retryAfter={"form": "seconds", "seconds": 5})
    for pause in (5.0, 2.0, 0.0):
        send(provider)
        clock.now += pause
    entry = only_entry(provider)
    assert entry["accepted"] == 2
    assert entry["answers"] == ["QUOTA_EXCEEDED", "ACCEPTED_UNAVAILABLE", "ACCEPTED"]
    assert entry["isSameCollapseId"]
    assert entry["gaps"] == [
        {"after": "QUOTA_EXCEEDED", "seconds": 5.0, "askedSeconds": 5.0, "isTooSoon": False},
        {"after": "ACCEPTED_UNAVAILABLE", "seconds": 2.0, "askedSeconds": 5.0, "isTooSoon": True},
    ]
    stats = provider.stats()
    assert (stats["messages"], stats["sends"], stats["accepted"], stats["acceptedOften"]) == (1, 3, 2, 1)
    assert stats["retriesTooSoon"] == 1


def test_a_repeat_under_another_collapse_id_is_found_out() -> None:
    provider = played()
    for nid in ("one", "two"):
        send(provider, data={"notificationId": "1", "nid": nid})
    assert only_entry(provider)["collapseIds"] == ["one", "two"]
    assert provider.stats()["differentCollapseIds"] == 1


def test_parts_that_do_not_agree_on_the_collapse_id_are_found_out() -> None:
    provider = played()
    send(provider, android={"notification": {"tag": "other"}})
    assert provider.stats()["differentCollapseIds"] == 1


@pytest.mark.parametrize(
    "parts",
    [
        {"apns": {"headers": {"apns-expiration": str(int(EPOCH + 100 + 30))}}},
        {"android": {"ttl": "30s"}},
        {"webpush": {"headers": {"TTL": "30"}}},
    ],
    ids=["apns", "android", "web"],
)
def test_a_send_after_the_expiry_is_counted(parts: dict[str, Any]) -> None:
    clock = Clock()
    provider = played(clock)
    send(provider, **parts)
    clock.now += 29
    send(provider, **parts)
    assert provider.stats()["sendsAfterExpiry"] == 0
    clock.now += 3
    send(provider, **parts)
    assert provider.stats()["sendsAfterExpiry"] == 1


def test_messages_can_be_looked_up_and_forgotten() -> None:
    provider = played()
    for number, token in enumerate(["a", "b"]):
        send(provider, token, number)
    assert [one["token"] for one in provider.ledger.to_json(token="b")["messages"]] == ["b"]
    assert [one["token"] for one in provider.ledger.to_json(message="n0")["messages"]] == ["a"]
    provider.reset()
    assert provider.ledger.to_json()["messages"] == []
    assert provider.stats()["sends"] == 0


# --- what FCM refuses in a message ------------------------------------------------------------------------------------

LONG = "x" * 5000


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"token": ""}, "message"),
        ({"topic": "news"}, "message"),
        ({"token": 5}, "message"),
        ({"tokn": "x"}, "message.tokn"),
        ({"data": {"price": 9900}}, "message.data.price"),
        ({"notification": {"title": [1] * 1900}}, "message.notification.title"),
        ({"data": {"from": "x"}}, "message.data.from"),
        ({"data": {"message_type": "x"}}, "message.data.message_type"),
        ({"data": {"google.x": "x"}}, "message.data.google.x"),
        ({"data": {"gcm.x": "x"}}, "message.data.gcm.x"),
        ({"data": {"text": LONG}}, "message"),
        ({"data": "text"}, "message…data"),
        ({"notification": {"title": "가" * 1366}}, "message"),
        ({"android": {"priority": "urgent"}}, "message.android.priority"),
        ({"android": {"ttl": "30"}}, "message.android.ttl"),
        ({"android": {"notification": "tag"}}, "message…notification"),
        ({"apns": {"headers": {"apns-collapse-id": "x" * 65}}}, "message.apns.headers"),
        ({"apns": {"headers": {"apns-expiration": "soon"}}}, "message.apns.headers"),
        ({"apns": {"headers": {"apns-push-type": "background", "apns-priority": "10"}}}, "message.apns.headers"),
        (
            {"apns": {"headers": {"apns-push-type": "background"}, "payload": {"aps": {"alert": "x"}}}},
            "message.apns.payload.aps",
        ),
        ({"webpush": {"headers": {"Topic": "x" * 33}}}, "message.webpush.headers"),
        ({"webpush": {"headers": {"Topic": "a b"}}}, "message.webpush.headers"),
        ({"webpush": {"headers": {"TTL": "1h"}}}, "message.webpush.headers"),
        ({"webpush": {"headers": {"Urgency": "now"}}}, "message.webpush.headers"),
    ],
)
def test_a_message_fcm_would_refuse_is_refused_by_field(parts: dict[str, Any], field: str) -> None:
    provider = played()
    reply = send(provider, **parts)
    assert reply.status == 400
    (detail, _) = json.loads(reply.body)["error"]["details"]
    assert field in [one["field"] for one in detail["fieldViolations"]]
    assert provider.stats()["malformed"] == 1
    assert provider.stats()["accepted"] == 0


def test_a_topic_may_weigh_half_as_much() -> None:
    data = {"text": "x" * 3000}
    assert send(played(), data=data).status == 200
    assert send(played(), token=None, topic="news", data=data).status == 400  # type: ignore[arg-type]


def test_validate_only_is_judged_and_not_kept() -> None:
    provider = played()
    body = json.dumps({"validate_only": True, "message": {"token": "ok"}}).encode()
    assert provider.send("shop", "", body).status == 200
    assert provider.stats()["messages"] == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**6) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["message", "token", "data", "android", "apns", "webpush", "headers", "payload", "aps", "ttl", "x"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(body=json_values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40))
def test_whatever_it_is_sent_it_answers_200_or_400(body: bytes) -> None:
    assert played().send("shop", "", body).status in (200, 400)


@given(message=st.dictionaries(st.sampled_from(["token", "data", "android", "apns", "webpush"]), json_values))
def test_whatever_the_message_holds_it_is_judged(message: dict[str, Any]) -> None:
    assert played().send("shop", "", json.dumps({"message": message}).encode()).status in (200, 400, 404)
