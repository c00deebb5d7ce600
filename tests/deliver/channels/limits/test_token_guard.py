"""The brake on deleting tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bongsu.deliver.channels.limits.token_guard import TokenGuard


def test_a_few_dead_tokens_are_dead_tokens() -> None:
    brake = TokenGuard(least=20)
    assert not any(brake.saw(0, True) for _ in range(19))
    assert not brake.is_on


def test_many_at_once_activate_it_and_only_the_first_is_logged() -> None:
    brake = TokenGuard(least=20)
    assert [brake.saw(0, True) for _ in range(25)] == [False] * 19 + [True] + [False] * 5
    assert brake.is_on


def test_many_among_very_many_do_not() -> None:
    brake = TokenGuard(least=20, share=0.2, recent=500)
    for _ in range(300):
        assert not brake.saw(0, True)
        for _ in range(9):
            assert not brake.saw(0, False)


def test_it_is_released_when_sends_are_well_again() -> None:
    brake = TokenGuard(least=20, share=0.2, recent=100)
    for _ in range(50):
        brake.saw(0, True)
    turned = [number for number in range(100) if (brake.saw(0, False), brake.is_on)[1]]
    assert not brake.is_on
    assert max(turned) > 50, "released at half the share, not at the first good send"


def test_what_is_long_ago_does_not_count() -> None:
    brake = TokenGuard(least=20, seconds=600)
    for _ in range(19):
        brake.saw(0, True)
    assert not brake.saw(601, True)


@given(answers=st.lists(st.tuples(st.floats(0, 100), st.booleans()), min_size=1, max_size=200), least=st.integers(1, 10))
def test_it_is_on_only_with_enough_of_them_and_never_with_none(answers: list[tuple[float, bool]], least: int) -> None:
    brake, now, recent = TokenGuard(least, share=0.5, recent=20, seconds=300), 0.0, list[tuple[float, bool]]()
    for pause, is_suspect in answers:
        now += pause
        was_on = brake.is_on
        pulled = brake.saw(now, is_suspect)
        recent = [one for one in [*recent, (now, is_suspect)][-20:] if one[0] >= now - 300]
        suspects = sum(one[1] for one in recent)
        assert pulled == (brake.is_on and not was_on)
        if pulled:
            assert suspects >= least
            assert suspects * 2 >= len(recent)
        if not suspects:
            assert not brake.is_on
        if suspects == len(recent) >= least:
            assert brake.is_on
