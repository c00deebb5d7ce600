"""Keeps addresses from being deleted when many tokens are refused at once: then the mistake is ours, not theirs. Pure."""

from __future__ import annotations

from collections import deque


class TokenGuard:
    """Given every answer, it is on while a large share of the recent ones would have deleted an address."""

    def __init__(self, least: int = 20, share: float = 0.2, recent: int = 500, seconds: float = 600.0) -> None:
        # Fewer than this many are what any list of old tokens has.
        self._least = least
        # Hysteresis: switched off at half the share, so that it does not toggle around the limit.
        self._share = share
        self._recent = recent
        self._seconds = seconds
        self._answers: deque[tuple[float, bool]] = deque()
        self._suspects = 0
        self.is_on = False

    def saw(self, now: float, is_suspect: bool) -> bool:
        """Take an answer into account; True when that has switched it on."""
        self._answers.append((now, is_suspect))
        self._suspects += is_suspect
        while len(self._answers) > self._recent or self._answers[0][0] < now - self._seconds:
            _, was_suspect = self._answers.popleft()
            self._suspects -= was_suspect
        share, was_on = self._suspects / len(self._answers), self.is_on
        if was_on:
            self.is_on = share >= self._share / 2
        else:
            self.is_on = self._suspects >= self._least and share >= self._share
        return self.is_on and not was_on
