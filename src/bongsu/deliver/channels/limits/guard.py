"""Leaves a provider alone while it fails, or while our settings for it are wrong: a queue is not spent on a closed door.

Push looks after itself, because FCM tells more. This is for every other sender, the user's own included.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bongsu import telemetry
from bongsu.deliver.channels.limits.breaker import Breaker
from bongsu.deliver.channels.limits.send_metrics import SendMetrics
from bongsu.outcome import Misconfigured, Outcome, Outgoing, Retry, Scope, Sender, Unknown

# What somebody has to mend is tried with one send this often, so that it runs again by itself once it is mended.
PROBE_SECONDS = 60.0
# However long a provider asks the whole channel to wait, it is asked this often whether it still wants that.
LONGEST_HOLD = 3600.0


class Guarded:
    """A sender behind a circuit breaker."""

    def __init__(
        self, sender: Sender, *, clock: Callable[[], float] = time.monotonic, breaker: Breaker | None = None
    ) -> None:
        self.sender = sender
        self.channel = sender.channel
        self._clock = clock
        self._breaker = breaker or Breaker()
        # What the provider has asked of the whole channel, and until when.
        self._asked_until = 0.0
        self._wrong: Misconfigured | None = None
        self._wrong_until = 0.0
        self._meter = SendMetrics(self.channel, self._breaker, clock, lambda: self._asked_until)
        self._log = telemetry.log("bongsu.deliver")

    async def send(self, outgoing: Outgoing) -> Outcome:
        if (held := self._hold()) is not None:
            return held
        began = time.perf_counter()
        try:
            outcome = await self.sender.send(outgoing)
        except Exception as error:
            self._meter.crashed(began)
            self._failed("CRASHED", type(error).__name__)
            raise
        self._meter.answered(outcome, began)
        self._learn(outcome)
        return outcome

    async def close(self) -> None:
        await self.sender.close()

    def _hold(self) -> Outcome | None:
        """Why nothing is sent now; None when it may go."""
        now = self._clock()
        if now < self._asked_until:
            return _held("PROVIDER_BUSY", self._asked_until - now, "the provider has asked for patience")
        if self._wrong is not None and now < self._wrong_until:
            return _held(self._wrong.code, self._wrong_until - now, self._wrong.detail)
        if remaining := self._breaker.ask(now):
            return _held("CIRCUIT_OPEN", remaining, "the provider kept failing: it is left alone for a while")
        if self._wrong is not None:
            # This one goes out to see; the others go on waiting until it is back.
            self._wrong_until = now + PROBE_SECONDS
        return None

    def _learn(self, outcome: Outcome) -> None:
        match outcome:
            case Misconfigured(code, detail, Scope.CHANNEL):
                if self._wrong is None:
                    line = "the channel is misconfigured: correct it, sending goes on by itself"
                    self._log.error(line, channel=self.channel.value, code=code, why=detail)
                self._wrong, self._wrong_until = outcome, self._clock() + PROBE_SECONDS
            case Retry(code, wait, Scope.CHANNEL, detail):
                self._asked_until = max(self._asked_until, self._clock() + min(wait, LONGEST_HOLD))
                self._failed(code, detail)
            case Unknown(code, detail):
                self._failed(code, detail)
            case _:
                if self._wrong is not None:
                    self._log.info("sending again", channel=self.channel.value)
                self._wrong = None
                self._breaker.succeeded()

    def _failed(self, code: str, detail: str) -> None:
        if self._breaker.failed(self._clock()):
            line = "the provider keeps failing: nothing is sent for a while"
            self._log.error(line, channel=self.channel.value, code=code, why=detail)


def _held(code: str, seconds: float, why: str) -> Retry:
    return Retry(code, seconds, Scope.CHANNEL, why, is_held=True)
