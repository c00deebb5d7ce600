"""What `/metrics` says of channels."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from bongsu.deliver.channels.limits.breaker import Breaker
from bongsu.deliver.channels.limits.pace import Pace
from bongsu.deliver.channels.limits.token_guard import TokenGuard
from bongsu.model.outcome import Accepted, Gone, Outcome, Retry, Scope, Unknown
from bongsu.runtime import telemetry
from tests.deliver.channels.limits.test_guard import DOWN, Scene
from tests.simulator.running import Simulator
from tests.support.clocks import ManualClock
from tests.support.push import outgoing, pushing


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def state(channel: str) -> str:
    """The one state whose gauge says 1."""
    (one,) = [
        name for name in ("closed", "open", "half_open") if value("bongsu_breaker", channel=channel, state=name) == 1.0
    ]
    return one


def sends(channel: str, outcome: str) -> float:
    return value("bongsu_send_seconds_count", channel=channel, outcome=outcome)


@pytest.mark.parametrize(("answer", "name"), [(Accepted(), "accepted"), (Gone("X"), "gone"), (Unknown("X"), "unknown")])
async def test_every_answer_is_counted_by_its_kind(answer: Outcome, name: str) -> None:
    scene = Scene()
    before = sends("SMS", name)
    await scene.send(answer)
    assert sends("SMS", name) == before + 1


async def test_a_crash_is_counted_and_what_is_held_is_not() -> None:
    scene = Scene()
    before = sends("SMS", "crashed"), sends("SMS", "retry")
    scene.provider.answer = RuntimeError("broken")
    for _ in range(3):
        await scene.send()
    for _ in range(5):
        held = await scene.send(DOWN)
        assert isinstance(held, Retry)
        assert held.is_held
    assert (sends("SMS", "crashed"), sends("SMS", "retry")) == (before[0] + 3, before[1])


async def test_the_breaker_shows_its_state_as_time_goes_by() -> None:
    scene = Scene()
    assert state("SMS") == "closed"
    for _ in range(3):
        await scene.send(DOWN)
    assert state("SMS") == "open"
    scene.now += 10
    assert state("SMS") == "half_open"
    await scene.send(Accepted())
    assert state("SMS") == "closed"


async def test_a_wait_the_provider_asked_for_runs_down() -> None:
    scene = Scene()
    await scene.send(Retry("SLOW_DOWN", 30, Scope.CHANNEL))
    assert value("bongsu_hold_seconds", channel="SMS") == 30
    scene.now += 20
    assert value("bongsu_hold_seconds", channel="SMS") == 10
    scene.now += 20
    assert value("bongsu_hold_seconds", channel="SMS") == 0


async def test_push_has_metrics_of_token_guard_breaker_pace_and_quota(simulator: Simulator) -> None:
    clock = ManualClock()
    token_guard, breaker, pace = TokenGuard(least=3), Breaker(failures=2), Pace(60_000, ramp_seconds=0.0)
    before = sends("PUSH", "accepted"), sends("PUSH", "gone")
    async with pushing(simulator.address, clock=clock, pace=pace, token_guard=token_guard, breaker=breaker) as push:
        await push.send(outgoing())
        assert value("bongsu_token_guard_active", channel="PUSH") == 0
        for number in range(3):
            await push.send(outgoing(f"bad-{number}"))
        assert value("bongsu_token_guard_active", channel="PUSH") == 1
        assert (sends("PUSH", "accepted"), sends("PUSH", "gone")) == (before[0] + 1, before[1] + 3)
        assert value("bongsu_pace_waiting", channel="PUSH") == 0
        # The clock stands still: 600 may go at once, the others wait.
        for _ in range(620 - 4):
            pace.reserve(clock.now)
        assert value("bongsu_pace_waiting", channel="PUSH") == 20
        clock.now += 60
        assert state("PUSH") == "closed"
        for _ in range(2):
            await push.send(outgoing("fault-unavailable-1"))
        assert state("PUSH") == "open"
        clock.now += 10
        await push.send(outgoing("fault-quota-1"))
        assert 60 <= value("bongsu_hold_seconds", channel="PUSH") < 90  # a minute, spread a little


def test_durations_add_up_as_a_histogram_must() -> None:
    series = telemetry.SENDS.labels("TEST", "accepted")
    for seconds in (0.001, 0.005, 0.3, 99.0):
        series.observe(seconds)
    labels = {"channel": "TEST", "outcome": "accepted"}
    counted = {
        end: value("bongsu_send_seconds_bucket", **labels, le=end) for end in ("0.005", "0.01", "0.5", "15.0", "+Inf")
    }
    assert counted == {"0.005": 2, "0.01": 2, "0.5": 3, "15.0": 3, "+Inf": 4}
    assert value("bongsu_send_seconds_sum", **labels) == pytest.approx(99.306)
    assert value("bongsu_send_seconds_count", **labels) == 4
