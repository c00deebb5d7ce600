"""A channel's numbers for `/metrics`: each send as its answer comes, everything else when it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable

from bongsu import telemetry
from bongsu.deliver.channels.limits.breaker import Breaker, State
from bongsu.model import Channel
from bongsu.outcome import Accepted, Gone, Misconfigured, Outcome, Refused, Retry, Unknown

_OUTCOMES: tuple[type[Outcome], ...] = (Accepted, Retry, Gone, Refused, Misconfigured, Unknown)


class SendMetrics:
    """Watches a sender. Of several on one channel, the last one is seen."""

    def __init__(
        self, channel: Channel, breaker: Breaker, clock: Callable[[], float], held_until: Callable[[], float]
    ) -> None:
        """`held_until` is the moment, by the same clock, until which the provider has asked the channel to wait."""
        name = channel.value
        self._answers = {kind: telemetry.SENDS.labels(name, kind.__name__.lower()) for kind in _OUTCOMES}
        self._crashes = telemetry.SENDS.labels(name, "crashed")
        for state in State:
            telemetry.BREAKER.labels(name, state.value).set_function(_is(breaker, state, clock))
        telemetry.HOLD_SECONDS.labels(name).set_function(lambda: max(0.0, held_until() - clock()))

    def answered(self, outcome: Outcome, began: float) -> None:
        """Counted by its kind and by how long the provider took. When it began is told by `time.perf_counter`."""
        # A sender of the user's own may answer anything: what is no outcome is the dispatcher's to complain of.
        self._answers.get(type(outcome), self._crashes).observe(time.perf_counter() - began)

    def crashed(self, began: float) -> None:
        self._crashes.observe(time.perf_counter() - began)


def _is(breaker: Breaker, state: State, clock: Callable[[], float]) -> Callable[[], float]:
    return lambda: float(breaker.state(clock()) is state)
