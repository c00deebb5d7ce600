"""Problems are the rule, or one device's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bongsu.deliver.channels.limits.recent_problems import RecentProblems

answers = st.lists(st.tuples(st.sampled_from(["IOS", "ANDROID", "PUSH"]), st.booleans()), max_size=80)


@given(answers)
def test_problems_are_the_rule_if_five_of_the_last_ten_answers_of_the_place_were_such(seen: list[tuple[str, bool]]) -> None:
    problems, history = RecentProblems(), dict[str, list[bool]]()
    for target, is_problem in seen:
        last = history.setdefault(target, [])
        last.append(is_problem)
        assert problems.saw(target, is_problem) == (sum(last[-10:]) >= 5)
        # Nothing is kept of targets that are well.
        assert problems.is_any == any(any(one[-10:]) for one in history.values())


def test_a_place_that_works_again_counts_anew() -> None:
    problems = RecentProblems()
    assert [problems.saw("IOS", True) for _ in range(5)] == [False] * 4 + [True]
    problems.forget("IOS")
    assert not problems.is_any
    assert not problems.saw("IOS", True)
