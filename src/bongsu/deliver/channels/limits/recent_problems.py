"""Distinguishes one misconfigured device from a misconfigured platform or channel. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable


class RecentProblems:
    """Whether problems are the rule among the last answers of a target, which is a platform or the whole channel.

    A Firebase project has several apps, each with its own APNs key: one bad key concerns the devices of one app.
    """

    def __init__(self, least: int = 5, recent: int = 10) -> None:
        self._least = least
        self._recent = recent
        # Only targets that had a problem lately, so that sends cost nothing here while there is none.
        self._answers: dict[Hashable, deque[bool]] = {}

    @property
    def is_any(self) -> bool:
        return bool(self._answers)

    def saw(self, target: Hashable, is_problem: bool) -> bool:
        """Count an answer; True if problems are the rule by now."""
        answers = self._answers.get(target)
        if answers is None:
            if not is_problem:
                return False
            answers = self._answers[target] = deque(maxlen=self._recent)
        answers.append(is_problem)
        problems = sum(answers)
        if not problems:
            del self._answers[target]
        return problems >= self._least

    def forget(self, target: Hashable) -> None:
        """It works again: start counting from zero."""
        self._answers.pop(target, None)
