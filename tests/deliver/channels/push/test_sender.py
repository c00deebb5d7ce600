"""Push against the simulator in its own process: each fault, what comes of it, and what the ledger says was sent."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from bongsu.deliver.channels.limits.breaker import Breaker
from bongsu.deliver.channels.limits.guard import LAST_PROBE_SECONDS
from bongsu.deliver.channels.limits.token_guard import TokenGuard
from bongsu.deliver.channels.push.sender import Push
from bongsu.errors import BadCredentials, BadSettings
from bongsu.model import Platform, utc_now
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Refused, Retry, Scope, Unknown
from bongsu.settings import Settings
from tests.simulator.running import Simulator
from tests.support.clocks import ManualClock
from tests.support.push import outgoing, pushing, sent
from tests.support.waiting import eventually


async def test_only_the_first_send_needs_a_task(simulator: Simulator) -> None:
    async with pushing(simulator.address) as push:
        assert isinstance(await push.send(outgoing()), Accepted)
        outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        for _ in range(3):
            assert push.start(outgoing(), outcomes.put_nowait) is None
        assert [type(await outcomes.get()) for _ in range(3)] == [Accepted] * 3


# --- what comes of each answer ----------------------------------------------------------------------------------------


async def test_an_accepted_message_has_fcms_reference_and_one_collapse_id(simulator: Simulator) -> None:
    message = outgoing()
    (outcome,) = await sent(simulator, message)
    assert isinstance(outcome, Accepted)
    assert outcome.reference.startswith("projects/bongsu/messages/")
    entry = simulator.entry("ok")
    assert entry["accepted"] == 1
    assert entry["text"] == {"title": "가격이 내렸어요", "body": "9,900원"}
    assert entry["collapseIds"] == [message.collapse_id]


@pytest.mark.parametrize(
    ("token", "expected", "accepted"),
    [
        ("unregistered-1", Gone("UNREGISTERED"), 0),
        ("bad-1", Gone("INVALID_ARGUMENT"), 0),
        ("apns-gone-1", Gone("UNREGISTERED"), 0),
        ("other-project-1", Gone("SENDER_ID_MISMATCH"), 0),
        ("refused-1", Refused("INVALID_ARGUMENT"), 0),
        ("third-party-1", Misconfigured("THIRD_PARTY_AUTH_ERROR", scope=Scope.PLATFORM), 0),
        ("fault-unauthorized-1", Misconfigured("UNAUTHENTICATED"), 0),
        ("fault-forbidden-1", Misconfigured("PERMISSION_DENIED"), 0),
        ("fault-notFound-1", Misconfigured("NOT_FOUND"), 0),
        ("fault-quota-1", Retry("QUOTA_EXCEEDED", 60, Scope.CHANNEL), 0),
        ("fault-deviceQuota-1", Retry("QUOTA_EXCEEDED", 60), 0),
        ("fault-unavailable-1", Retry("UNAVAILABLE", 10), 0),
        ("fault-internal-1", Retry("INTERNAL", 10), 0),
        ("fault-badGateway-1", Retry("HTTP_502", 10, may_have_arrived=True), 0),
        ("fault-truncated-1", Retry("HTTP_500", 10, may_have_arrived=True), 0),
        ("fault-acceptedUnavailable-1", Retry("HTTP_503", 10, may_have_arrived=True), 1),
        ("fault-garbage-1", Unknown("BAD_ANSWER"), 1),
        ("fault-reset-1", Unknown("CONNECTION_LOST"), 0),
        ("fault-acceptedReset-1", Unknown("CONNECTION_LOST"), 1),
    ],
)
async def test_each_fault_has_its_outcome(simulator: Simulator, token: str, expected: Outcome, accepted: int) -> None:
    (outcome,) = await sent(simulator, outgoing(token, platform=Platform.IOS))
    assert type(outcome) is type(expected)
    if isinstance(expected, Retry) and isinstance(outcome, Retry):
        assert expected.after_seconds <= outcome.after_seconds <= 1.2 * expected.after_seconds
        outcome = Retry(outcome.code, expected.after_seconds, outcome.scope, "", outcome.is_held, outcome.may_have_arrived)
        assert outcome == expected
    else:
        assert outcome.code == expected.code  # type: ignore[union-attr]
        assert getattr(outcome, "scope", None) == getattr(expected, "scope", None)
    entry = simulator.entry(token)
    # Whatever came back, it was handed over once: a retry is the dispatcher's to decide.
    assert len(entry["answers"]) == 1
    assert entry["accepted"] == accepted


@pytest.mark.parametrize(("fault", "accepted"), [("silence", 0), ("acceptedSilence", 1), ("drip", 1)])
async def test_an_answer_that_does_not_come_in_time_is_unknown(simulator: Simulator, fault: str, accepted: int) -> None:
    simulator.configure(dripMs=1000)
    (outcome,) = await sent(simulator, outgoing(f"fault-{fault}-1"), timeout=0.5)
    assert isinstance(outcome, Unknown)
    assert outcome.code == "TIMEOUT"
    # The simulator may still be at it when we no longer wait.
    token = f"fault-{fault}-1"
    eventually(lambda: [entry["accepted"] for entry in simulator.ledger(token=token)["messages"]], [accepted])


async def test_an_answer_that_drips_in_in_time_is_an_answer(simulator: Simulator) -> None:
    simulator.configure(faults={"drip": 1}, dripMs=0.1)
    assert isinstance((await sent(simulator, outgoing()))[0], Accepted)


async def test_where_nobody_listens_nothing_was_sent(closed_port: int) -> None:
    async with pushing(f"http://127.0.0.1:{closed_port}") as push:
        outcome = await push.send(outgoing())
    assert isinstance(outcome, Retry)
    assert outcome.code == "UNREACHABLE"
    assert not outcome.may_have_arrived


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_what_fcm_asks_for_is_waited(simulator: Simulator, form: str) -> None:
    simulator.configure(faults={"quota": 1}, retryAfter={"form": form, "seconds": 300})
    (outcome,) = await sent(simulator, outgoing())
    assert isinstance(outcome, Retry)
    assert 298 <= outcome.after_seconds <= 361


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"body": "가" * 2000}, "PAYLOAD_TOO_LARGE"),
        ({"expires_at": utc_now() - timedelta(seconds=1)}, "EXPIRED"),
        ({"address": ""}, "NO_TOKEN"),
        ({"collapse_id": "x" * 40}, "BAD_COLLAPSE_ID"),
        ({"data": {"any": object()}}, "UNENCODABLE"),
    ],
)
async def test_what_cannot_go_is_refused_and_never_sent(simulator: Simulator, fields: dict[str, Any], code: str) -> None:
    (outcome,) = await sent(simulator, outgoing(**fields))
    assert isinstance(outcome, Refused)
    assert outcome.code == code
    assert simulator.stats()["sends"] == simulator.stats()["malformed"] == 0


# --- what one answer means for the next -------------------------------------------------------------------------------


async def test_a_projects_quota_holds_all_until_its_time_is_over(simulator: Simulator) -> None:
    simulator.configure(quota={"perMinute": 1}, retryAfter={"form": "seconds", "seconds": 30})
    clock = ManualClock()
    async with pushing(simulator.address, clock=clock) as push:
        assert isinstance(await push.send(outgoing()), Accepted)
        first, held = await push.send(outgoing()), await push.send(outgoing())
        assert isinstance(first, Retry)
        assert isinstance(held, Retry)
        assert (first.is_held, held.is_held, held.scope) == (False, True, Scope.CHANNEL)
        assert simulator.stats()["sends"] == 2
        simulator.configure()
        clock.now += held.after_seconds
        assert isinstance(await push.send(outgoing()), Accepted)


async def test_one_devices_quota_holds_nobody_else(simulator: Simulator) -> None:
    outcomes = await sent(simulator, outgoing("fault-deviceQuota-1"), outgoing())
    assert [type(outcome) for outcome in outcomes] == [Retry, Accepted]


async def test_the_breaker_opens_after_repeated_failures_and_half_opens_by_itself(simulator: Simulator) -> None:
    simulator.configure(faults={"unavailable": 1})
    clock = ManualClock()
    breaker = Breaker(failures=3, open_seconds=10, most_open_seconds=40)
    async with pushing(simulator.address, clock=clock, breaker=breaker) as push:
        with capture_logs() as lines:
            outcomes = [await push.send(outgoing()) for _ in range(5)]
        assert [outcome.code for outcome in outcomes if isinstance(outcome, Retry)] == [
            *["UNAVAILABLE"] * 3,
            *["CIRCUIT_OPEN"] * 2,
        ]
        assert outcomes[4] == Retry("CIRCUIT_OPEN", 10, Scope.CHANNEL, outcomes[4].detail, is_held=True)  # type: ignore[union-attr]
        assert simulator.stats()["sends"] == 3
        assert [line["log_level"] for line in lines] == ["error"]

        clock.now += 10
        probe, held = await push.send(outgoing()), await push.send(outgoing())
        assert isinstance(probe, Retry)
        assert isinstance(held, Retry)
        assert (probe.code, held.code, held.after_seconds) == ("UNAVAILABLE", "CIRCUIT_OPEN", 20)

        simulator.configure()
        clock.now += 20
        assert [type(await push.send(outgoing())) for _ in range(3)] == [Accepted] * 3


async def test_one_device_with_a_wrong_key_fails_alone(simulator: Simulator) -> None:
    async with pushing(simulator.address, clock=ManualClock()) as push:
        with capture_logs() as lines:
            assert isinstance(await push.send(outgoing("third-party-1", platform=Platform.IOS)), Misconfigured)
        assert [(line["log_level"], line["code"]) for line in lines] == [("error", "THIRD_PARTY_AUTH_ERROR")]
        for _ in range(30):
            assert isinstance(await push.send(outgoing("ok-ios", platform=Platform.IOS)), Accepted)
            if _ % 3 == 0:
                assert isinstance(await push.send(outgoing("third-party-1", platform=Platform.IOS)), Misconfigured)


async def test_our_apns_key_pauses_that_platform_and_no_other(simulator: Simulator) -> None:
    clock = ManualClock()
    async with pushing(simulator.address, clock=clock) as push:
        with capture_logs() as lines:
            for _ in range(5):
                assert isinstance(await push.send(outgoing("third-party-1", platform=Platform.IOS)), Misconfigured)
            paused = await push.send(outgoing("ok-ios", platform=Platform.IOS))
        assert isinstance(paused, Retry)
        assert (paused.code, paused.is_held) == ("THIRD_PARTY_AUTH_ERROR", True)
        errors = [line["code"] for line in lines if line["log_level"] == "error"]
        assert errors == ["THIRD_PARTY_AUTH_ERROR"]
        assert isinstance(await push.send(outgoing("ok-android", platform=Platform.ANDROID)), Accepted)
        assert isinstance(await push.send(outgoing("ok-unknown")), Accepted)
        assert simulator.ledger(token="ok-ios")["messages"] == []

        clock.now += LAST_PROBE_SECONDS
        assert isinstance(await push.send(outgoing("ok-ios", platform=Platform.IOS)), Accepted)
        assert isinstance(await push.send(outgoing("ok-ios", platform=Platform.IOS)), Accepted)


@pytest.mark.parametrize(("fault", "failing"), [("forbidden", 1), ("notFound", 5)])
async def test_while_we_are_misconfigured_nothing_is_sent_but_a_probe(
    simulator: Simulator, fault: str, failing: int
) -> None:
    simulator.configure(faults={fault: 1})
    clock = ManualClock()
    async with pushing(simulator.address, clock=clock) as push:
        with capture_logs() as lines:
            outcomes = [await push.send(outgoing()) for _ in range(10)]
        assert all(isinstance(one, Misconfigured) for one in outcomes[:failing])
        assert all(isinstance(one, Retry) and one.is_held for one in outcomes[failing:])
        assert simulator.stats()["sends"] == failing
        assert [line["log_level"] for line in lines if line["log_level"] == "error"] == ["error"]
        clock.now += LAST_PROBE_SECONDS
        outcomes = await asyncio.gather(*(push.send(outgoing()) for _ in range(5)))
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Misconfigured", *["Retry"] * 4]
        assert simulator.stats()["sends"] == failing + 1
        simulator.configure()
        clock.now += LAST_PROBE_SECONDS
        assert {type(await push.send(outgoing())) for _ in range(5)} == {Accepted}


@pytest.mark.parametrize("kind", ["bad", "other-project"])
async def test_when_too_many_tokens_are_refused_they_are_kept(simulator: Simulator, kind: str) -> None:
    with capture_logs() as lines:
        outcomes = await sent(
            simulator, *(outgoing(f"{kind}-{number}") for number in range(10)), token_guard=TokenGuard(least=5)
        )
    assert [type(outcome) for outcome in outcomes] == [*[Gone] * 4, *[Refused] * 6]
    braking = [line for line in lines if "tokens refused" in line["event"]]
    assert [line["log_level"] for line in braking] == ["error"]


async def test_unregistered_tokens_go_however_many_they_are(simulator: Simulator) -> None:
    outcomes = await sent(
        simulator, *(outgoing(f"unregistered-{number}") for number in range(10)), token_guard=TokenGuard(least=5)
    )
    assert {type(outcome) for outcome in outcomes} == {Gone}


async def test_a_refused_payload_is_one_error_line_and_not_a_thousand(simulator: Simulator) -> None:
    with capture_logs() as lines:
        await sent(simulator, *(outgoing("refused-1") for _ in range(20)))
    assert [(line["log_level"], line["code"], line["type"]) for line in lines] == [
        ("error", "INVALID_ARGUMENT", "PRICE_DROP")
    ]


# --- many at once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
async def test_every_outcome_is_true_to_the_ledger(simulator: Simulator, seed: int) -> None:
    names = ["unavailable", "internal", "badGateway", "truncated", "garbage", "reset", "acceptedReset"]
    names += ["acceptedUnavailable", "deviceQuota", "drip"]
    latency = {"medianMs": 2, "tailMs": 20, "tailShare": 0.1}
    simulator.configure(seed=seed, faults=dict.fromkeys(names, 0.05), latency=latency, dripMs=0.01)
    kinds = ["ok", "ok", "ok", "unregistered", "bad", "other-project"]
    messages = [outgoing(f"{kinds[number % 6]}-{number}") for number in range(300)]
    breaker, token_guard = Breaker(failures=10**6), TokenGuard(least=10**6)
    async with pushing(simulator.address, breaker=breaker, token_guard=token_guard) as push:
        outcomes = await asyncio.gather(*(push.send(message) for message in messages))
    entries = {entry["token"]: entry for entry in simulator.ledger()["messages"]}
    for message, outcome in zip(messages, outcomes, strict=True):
        entry = entries[message.address]
        assert len(entry["answers"]) == 1
        match outcome:
            case Accepted():
                assert entry["accepted"] == 1
            case Gone() | Refused() | Misconfigured() | Retry(may_have_arrived=False):
                assert entry["accepted"] == 0
    assert {type(outcome) for outcome in outcomes} == {Accepted, Gone, Retry, Unknown}


async def test_an_outage_comes_and_goes_and_a_sender_that_waits_gets_through(simulator: Simulator) -> None:
    simulator.configure(attempts=["unavailable", "acceptedReset", "none"])
    message = outgoing()
    outcomes = await sent(simulator, message, message, message)
    assert [type(outcome) for outcome in outcomes] == [Retry, Unknown, Accepted]
    entry = simulator.entry("ok")
    assert entry["accepted"] == 2
    assert entry["isSameCollapseId"]


# --- settings ---------------------------------------------------------------------------------------------------------


def test_without_account_and_address_there_is_no_push() -> None:
    assert not Push.is_configured(Settings())
    with pytest.raises(BadSettings, match="BONGSU_FCM_CREDENTIALS"):
        Push(Settings())


@pytest.mark.parametrize("text", ["{}", "not json", '{"type": "service_account", "client_email": "x"}'])
def test_a_file_that_is_no_account_says_so(tmp_path: Path, text: str) -> None:
    file = tmp_path / "account.json"
    file.write_text(text)
    with pytest.raises(BadCredentials, match="account.json"):
        Push(Settings(fcm_credentials=str(file)))


async def test_a_simulator_next_door_is_not_looked_for_behind_a_proxy(
    simulator: Simulator, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port}")
    assert isinstance((await sent(simulator, outgoing()))[0], Accepted)


async def test_the_project_is_the_settings_and_is_quoted(simulator: Simulator) -> None:
    push = Push(Settings(fcm_url=f"{simulator.address}/", fcm_project="shop/kr"))
    outcome = await push.send(outgoing())
    await push.close()
    assert isinstance(outcome, Accepted)
    assert outcome.reference.startswith("projects/shop/kr/")
