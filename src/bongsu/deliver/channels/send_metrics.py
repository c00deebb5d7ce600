"""A channel's numbers for `/metrics`: each send as its answer comes, everything else when it is scraped."""

from __future__ import annotations

import time
from collections.abc import Callable

from bongsu.deliver.channels.limits.breaker import Breaker, State
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Refused, Retry, Unknown
from bongsu.runtime import telemetry

_OUTCOMES: tuple[type[Outcome], ...] = (Accepted, Retry, Gone, Refused, Misconfigured, Unknown)


class SendMetrics:
    """Counts the sends of one channel. Of several senders on a channel, the gauges show the last one made."""

    def __init__(self, channel: str, breaker: Breaker, clock: Callable[[], float], held_until: Callable[[], float]) -> None:
        """`held_until` is the moment, by the same clock, until which the provider has asked the channel to wait."""
        name = channel
        self._answers = {kind: telemetry.SENDS.labels(name, kind.__name__.lower()) for kind in _OUTCOMES}
        self._crashes = telemetry.SENDS.labels(name, "crashed")
        for state in State:
            telemetry.BREAKER.labels(name, state.value).set_function(_is(breaker, state, clock))
        telemetry.HOLD_SECONDS.labels(name).set_function(lambda: max(0.0, held_until() - clock()))

    def answered(self, outcome: Outcome, began: float) -> None:
        """Count it by its kind and by how long the provider took. `began` is a time.perf_counter()."""
        # A user's own sender may return anything: what is not an outcome counts as a crash.
        self._answers.get(type(outcome), self._crashes).observe(time.perf_counter() - began)

    def crashed(self, began: float) -> None:
        self._crashes.observe(time.perf_counter() - began)


def _is(breaker: Breaker, state: State, clock: Callable[[], float]) -> Callable[[], float]:
    return lambda: float(breaker.state(clock()) is state)
