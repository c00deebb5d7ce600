"""The circuit breaker, without a clock but the one in our hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bongsu.deliver.channels.limits.breaker import CRITICAL_LEAD_SECONDS, Breaker, State


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(failures=3, open_seconds=10, most_open_seconds=35)
    assert [breaker.failed(at, "old") for _ in range(3)] == [False, False, True]
    return breaker


def test_it_opens_after_failures_in_a_row_and_half_opens_by_itself() -> None:
    breaker = opened()
    assert breaker.state(9.9) is State.OPEN
    assert breaker.ask(4, "a") == 6
    assert breaker.state(10) is State.HALF_OPEN
    assert breaker.ask(10, "a") == 0


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker(failures=2)
    for _ in range(10):
        assert not breaker.failed(0, "a")
        breaker.succeeded()
    assert breaker.state(0) is State.CLOSED


def test_half_open_it_lets_one_pass_and_its_success_closes_it() -> None:
    breaker = opened()
    assert breaker.ask(10, "a") == 0
    assert breaker.ask(10, "b") > 0
    breaker.succeeded()
    assert breaker.state(10) is State.CLOSED
    assert [breaker.failed(10, "b") for _ in range(3)] == [False, False, True]


def test_each_probe_doubles_the_wait_up_to_the_limit() -> None:
    breaker, now = opened(), 0.0
    waits = []
    for _ in range(4):
        wait = breaker.ask(now, "a")
        waits.append(wait)
        now += wait
        assert breaker.ask(now, "a") == 0
        assert breaker.failed(now, "a")
    assert waits == [10, 20, 35, 35]
    breaker.succeeded()
    for _ in range(3):
        breaker.failed(now, "a")
    assert breaker.wait(now) == 10


def test_by_default_a_provider_that_has_recovered_is_found_within_five_seconds() -> None:
    breaker, now = Breaker(), 0.0
    for _ in range(10):
        breaker.failed(now, "old")
    for key in range(100):
        assert breaker.ask(now, key) <= 5
        now += breaker.wait(now)
        assert breaker.ask(now, key) == 0
        assert breaker.failed(now, key)


def test_what_was_sent_before_it_opened_does_not_lengthen_it() -> None:
    breaker = opened()
    assert not breaker.failed(9, "old")
    assert breaker.ask(9, "a") == 1
    assert breaker.ask(10, "a") == 0
    # Nor while the probe is out: a slow provider fails what it was sent before one by one.
    assert not breaker.failed(11, "old")
    assert breaker.state(11) is State.HALF_OPEN
    assert breaker.failed(12, "a")
    assert breaker.wait(12) == 20


def test_a_probe_without_an_answer_is_replaced_in_time_and_fails_for_nobody_then() -> None:
    breaker = opened()
    assert breaker.ask(10, "a") == 0
    assert breaker.ask(29, "b") == 1
    assert breaker.ask(30, "b") == 0
    assert not breaker.failed(31, "a")
    assert breaker.ask(64, "c") == 1
    assert breaker.ask(65, "c") == 0


def test_others_wait_as_long_again_as_the_probe_has_taken_and_a_second_at_least() -> None:
    breaker = opened()
    assert breaker.ask(10, "a") == 0
    assert [breaker.ask(now, "b") for now in (10, 11, 12, 14, 18, 26)] == [1, 1, 2, 4, 8, 4]


def test_a_critical_send_that_waits_is_the_probe() -> None:
    breaker = opened()
    assert breaker.ask(1, "a") == 9
    assert breaker.ask(2, "critical", is_critical=True) == 8
    # Others leave it the turn, for a while.
    assert breaker.ask(10, "a") == CRITICAL_LEAD_SECONDS
    assert breaker.ask(10.5, "critical", is_critical=True) == 0
    assert breaker.failed(11, "critical")
    assert breaker.ask(11, "critical", is_critical=True) == 20
    assert breaker.ask(31, "a") == CRITICAL_LEAD_SECONDS


def test_a_critical_send_that_does_not_come_back_keeps_nobody_waiting() -> None:
    breaker = opened()
    assert breaker.ask(2, "critical", is_critical=True) == 8
    assert breaker.ask(10 + CRITICAL_LEAD_SECONDS, "a") == 0
    assert breaker.failed(12, "a")
    assert breaker.ask(12, "a") == 20
    assert breaker.ask(32, "a") == 0


steps = st.lists(st.tuples(st.floats(0, 60), st.sampled_from(["ask", "ask critical", "succeeded", "failed"])), max_size=60)


@given(steps=steps, failures=st.integers(1, 5))
def test_whatever_happens_it_never_waits_longer_than_its_limit_and_never_opens_early(
    steps: list[tuple[float, str]], failures: int
) -> None:
    breaker, now, in_a_row = Breaker(failures, open_seconds=10, most_open_seconds=40), 0.0, 0
    for pause, step in steps:
        now += pause
        match step:
            case "ask" | "ask critical":
                is_critical = step == "ask critical"
                wait = breaker.ask(now, step, is_critical=is_critical)
                assert 0 <= wait <= 40 + CRITICAL_LEAD_SECONDS
                assert wait == 0 or in_a_row >= failures
                # Nothing passes before its time, and when it has come something does.
                if wait:
                    assert breaker.ask(now, step, is_critical=is_critical) == wait
            case "succeeded":
                breaker.succeeded()
                in_a_row = 0
                assert breaker.ask(now, step) == 0
            case _:
                in_a_row += 1
                if breaker.failed(now, "ask"):
                    assert in_a_row >= failures
                    assert breaker.state(now) is State.OPEN
