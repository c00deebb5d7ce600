"""Pacing under a quota."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bongsu.deliver.channels.limits.pace import Pace


def turns(pace: Pace, arrivals: list[float]) -> list[float]:
    """When each send goes out, given when it came."""
    return [now + pace.reserve(now) for now in arrivals]


def test_a_few_sends_do_not_wait() -> None:
    assert turns(Pace(600_000), [0.0, 0.1, 0.2]) == [0.0, 0.1, 0.2]


def test_a_flood_is_spread_and_grows_over_the_first_minute() -> None:
    pace = Pace(6000, ramp_seconds=60, first_share=0.1)
    now, sent = 0.0, []
    while now < 180:
        now += pace.reserve(now)
        sent.append(now)
    by_minute = [sum(start <= moment < start + 60 for moment in sent) for start in (0, 60, 120)]
    assert by_minute[0] == pytest.approx(6000 * 0.55, rel=0.05)
    assert by_minute[1] == by_minute[2] == pytest.approx(6000 * 0.99, rel=0.01)


def test_after_a_minutes_quiet_or_a_complaint_it_begins_gently_again() -> None:
    pace = Pace(6000)
    now = 0.0
    while now < 70:
        now += pace.reserve(now)
    quick = pace.reserve(now)
    pace.restart()
    after_complaint = [pace.reserve(now) for _ in range(20)][-1]
    later = now + 61 + after_complaint
    after_quiet = [pace.reserve(later) for _ in range(20)][-1]
    assert after_complaint > 10 * quick
    assert after_quiet > 10 * quick


@given(
    pauses=st.lists(st.floats(0, 3) | st.floats(0, 100), min_size=1, max_size=400),
    quota=st.integers(100, 300),
    ramp=st.sampled_from([0.0, 60.0]),
)
def test_no_minute_wherever_it_begins_holds_more_than_the_quota(pauses: list[float], quota: int, ramp: float) -> None:
    pace, now, arrivals = Pace(quota, ramp_seconds=ramp), 0.0, []
    for pause in pauses:
        now += pause
        arrivals.append(now)
    sent = sorted(turns(pace, arrivals))
    for index, moment in enumerate(sent):
        # A hair less than a minute, because sums of fractions are not exact.
        assert sum(moment <= other < moment + 59.99 for other in sent[index:]) <= quota


@given(
    pauses=st.lists(st.floats(0, 3) | st.floats(0, 100), max_size=60),
    quota=st.integers(100, 300),
    ramp=st.sampled_from([0.0, 60.0]),
)
def test_a_place_is_taken_only_where_nobody_would_have_to_wait(pauses: list[float], quota: int, ramp: float) -> None:
    takes, reserves = Pace(quota, ramp_seconds=ramp), Pace(quota, ramp_seconds=ramp)
    now = 0.0
    for pause in pauses:
        now += pause
        wait = reserves.reserve(now)
        if takes.take(now):
            assert wait == 0.0
        else:
            takes.reserve(now)
        assert takes._tokens == pytest.approx(reserves._tokens)


def test_a_place_given_back_is_there_for_the_next() -> None:
    pace = Pace(100, ramp_seconds=0.0)
    assert pace.reserve(0.0) == 0.0
    assert not pace.take(0.0)
    pace.give_back()
    assert pace.take(0.0)
    assert not pace.take(0.0)


@given(
    arrivals=st.lists(st.tuples(st.floats(0, 1) | st.floats(0, 100), st.booleans()), min_size=1, max_size=200),
    quota=st.integers(100, 300),
    ramp=st.sampled_from([0.0, 60.0]),
)
def test_who_goes_first_has_its_turn_now_and_the_others_wait_for_one_more(
    arrivals: list[tuple[float, bool]], quota: int, ramp: float
) -> None:
    pace, alike = Pace(quota, ramp_seconds=ramp), Pace(quota, ramp_seconds=ramp)
    now, sent = 0.0, []
    for pause, is_first in arrivals:
        now += pause
        wait, in_order = pace.reserve(now, is_first=is_first), alike.reserve(now)
        assert wait == (0.0 if is_first else in_order)
        if not is_first:
            sent.append(now + wait)
    # The others alone never use more than the quota.
    assert all(sum(moment <= other < moment + 59.99 for other in sent) <= quota for moment in sent)


def test_those_who_come_after_many_that_went_first_wait_for_all_of_them() -> None:
    pace = Pace(600, ramp_seconds=0.0)
    assert [pace.reserve(0.0, is_first=True) for _ in range(50)] == [0.0] * 50
    assert not pace.take(0.0)
    # Six may go at once, and 9.9 flow in each second.
    assert pace.reserve(0.0) == pytest.approx((50 + 1 - 6) / 9.9)
