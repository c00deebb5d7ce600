"""Time that passes when the test says so."""

from __future__ import annotations


class ManualClock:
    """In place of time.monotonic."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
