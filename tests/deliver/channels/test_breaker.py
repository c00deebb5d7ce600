"""The circuit breaker, without a clock but the one in our hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bongsu.deliver.channels.limits.breaker import Breaker, State


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(failures=3, open_seconds=10, most_open_seconds=35)
    assert [breaker.failed(at) for _ in range(3)] == [False, False, True]
    return breaker


def test_it_opens_after_failures_in_a_row_and_half_opens_by_itself() -> None:
    breaker = opened()
    assert breaker.state(9.9) is State.OPEN
    assert breaker.ask(4) == 6
    assert breaker.state(10) is State.HALF_OPEN
    assert breaker.ask(10) == 0


def test_a_success_between_failures_keeps_it_closed() -> None:
    breaker = Breaker(failures=2)
    for _ in range(10):
        assert not breaker.failed(0)
        breaker.succeeded()
    assert breaker.state(0) is State.CLOSED


def test_half_open_it_lets_one_pass_and_its_success_closes_it() -> None:
    breaker = opened()
    assert breaker.ask(10) == 0
    assert breaker.ask(10) > 0
    breaker.succeeded()
    assert breaker.state(10) is State.CLOSED
    assert [breaker.failed(10) for _ in range(3)] == [False, False, True]


def test_each_failed_probe_doubles_the_wait_up_to_the_limit() -> None:
    breaker, now = opened(), 0.0
    waits = []
    for _ in range(4):
        wait = breaker.ask(now)
        waits.append(wait)
        now += wait
        assert breaker.ask(now) == 0
        assert breaker.failed(now)
    assert waits == [10, 20, 35, 35]


def test_what_was_sent_before_it_opened_does_not_lengthen_it() -> None:
    breaker = opened()
    assert not breaker.failed(9)
    assert breaker.ask(9) == 1


def test_a_probe_nobody_tells_about_is_replaced_in_time() -> None:
    breaker = opened()
    assert breaker.ask(10) == 0
    assert breaker.ask(19) == 1
    assert breaker.ask(20) == 0


steps = st.lists(st.tuples(st.floats(0, 60), st.sampled_from(["ask", "succeeded", "failed"])), max_size=60)


@given(steps=steps, failures=st.integers(1, 5))
def test_whatever_happens_it_never_waits_longer_than_its_limit_and_never_opens_early(
    steps: list[tuple[float, str]], failures: int
) -> None:
    breaker, now, in_a_row = Breaker(failures, open_seconds=10, most_open_seconds=40), 0.0, 0
    for pause, step in steps:
        now += pause
        match step:
            case "ask":
                wait = breaker.ask(now)
                assert 0 <= wait <= 40
                assert wait == 0 or in_a_row >= failures
                # Nothing passes before its time, and when it has come something does.
                if wait:
                    assert breaker.ask(now) == wait
            case "succeeded":
                breaker.succeeded()
                in_a_row = 0
                assert breaker.ask(now) == 0
            case _:
                in_a_row += 1
                if breaker.failed(now):
                    assert in_a_row >= failures
                    assert breaker.state(now) is State.OPEN
