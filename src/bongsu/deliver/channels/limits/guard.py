"""Decides whether a channel may send now, and learns from every answer. One for every channel, push included.

Three things hold a channel: its provider asks for a wait, its provider keeps failing (circuit breaker), or our settings are
wrong (pause). A held delivery is not an attempt. Each hold ends by itself: one send passes as a probe, its answer decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bongsu.deliver.channels.limits.breaker import Breaker
from bongsu.deliver.channels.limits.recent_problems import RecentProblems
from bongsu.deliver.channels.send_metrics import SendMetrics
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Scope, Unknown
from bongsu.runtime import telemetry

# A pause is probed after the first, then after twice as long, up to the last: a correction that comes soon is noticed soon,
# and one that takes all night costs one failed delivery a minute.
FIRST_PROBE_SECONDS = 1.0
LAST_PROBE_SECONDS = 60.0
# However long a provider asks the whole channel to wait, it is asked again after this.
LONGEST_HOLD = 3600.0
# The same problem is one ERROR line in this time; the history has each delivery.
REPEAT_SECONDS = 60.0

# A channel or a platform, by its name.
Target = str


def is_failure(outcome: Outcome) -> bool:
    """Whether the circuit breaker counts it as a failure of the provider."""
    return isinstance(outcome, Unknown) or (isinstance(outcome, Retry) and outcome.scope is Scope.CHANNEL)


def is_answer(outcome: Outcome) -> bool:
    """Whether it proves that the provider accepted our credentials."""
    return not is_failure(outcome)


@dataclass
class _Pause:
    """What is wrong with a target. Its breaker is open from the first failure on and decides when to probe."""

    code: str = ""
    detail: str = ""
    breaker: Breaker = field(default_factory=lambda: Breaker(1, FIRST_PROBE_SECONDS, LAST_PROBE_SECONDS))


class Guard:
    """`admit` before a send, `answered` or `crashed` after it."""

    def __init__(
        self,
        channel: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        breaker: Breaker | None = None,
        is_failure: Callable[[Outcome], bool] = is_failure,
        is_answer: Callable[[Outcome], bool] = is_answer,
    ) -> None:
        self.channel = channel
        self._clock = clock
        self._breaker = breaker or Breaker()
        self._is_failure = is_failure
        self._is_answer = is_answer
        self._asked_until = 0.0
        self._asked_why = ""
        self._pauses: dict[Target, _Pause] = {}
        self._problems = RecentProblems()
        self._silent_until: dict[str, float] = {}
        self._metrics = SendMetrics(channel, self._breaker, clock, lambda: self._asked_until)
        self._log = telemetry.log("bongsu.deliver")

    # --- before a send ------------------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether nothing on this channel passes now but a probe."""
        return not self._breaker.is_closed or self.channel in self._pauses or self._clock() < self._asked_until

    def admit(self, outgoing: Outgoing) -> Retry | None:
        """Why nothing is sent now; None when it may go. Report its answer then: it may be the probe."""
        if not self._pauses and not self._asked_until and self._breaker.is_closed:
            return None
        now = self._clock()
        if now < self._asked_until:
            return held("PROVIDER_BUSY", self._asked_until - now, self._asked_why)
        self._asked_until = 0.0
        targets: tuple[Target | None, ...] = (self.channel, outgoing.platform)
        pauses = [pause for target in targets if target is not None and (pause := self._pauses.get(target)) is not None]
        for pause in pauses:
            if wait := pause.breaker.wait(now, is_critical=outgoing.is_urgent):
                return held(pause.code, wait, pause.detail)
        if wait := self._breaker.ask(now, outgoing.delivery_id, is_critical=outgoing.is_urgent):
            return held("CIRCUIT_OPEN", wait, "the provider kept failing: its circuit breaker is open")
        for pause in pauses:
            pause.breaker.ask(now, outgoing.delivery_id, is_critical=outgoing.is_urgent)
        return None

    # --- after a send -------------------------------------------------------------------------------------------------

    def answered(self, outgoing: Outgoing, outcome: Outcome, began: float) -> None:
        """Learn from an outcome. `began` is a time.perf_counter()."""
        self._metrics.answered(outcome, began)
        if isinstance(outcome, Accepted) and not self._pauses and not self._problems.is_any:
            self._breaker.succeeded()  # nearly always, and nothing else to learn
            return
        now = self._clock()
        self._learn_health(outgoing, outcome, now)
        self._learn_settings(outgoing, outcome, now)

    def unusable(self, outgoing: Outgoing, outcome: Outcome) -> None:
        """Nothing could be sent, for a reason that concerns every send, such as no access token."""
        self._learn_settings(outgoing, outcome, self._clock())

    def crashed(self, outgoing: Outgoing, error: BaseException, began: float) -> None:
        self._metrics.crashed(began)
        self._failed(outgoing, "CRASHED", type(error).__name__, self._clock())

    def log_problem(self, key: str, event: str, **fields: str) -> None:
        """An ERROR line about what an operator has to correct, at most once a minute for each key."""
        now = self._clock()
        if now >= self._silent_until.get(key, now):
            self._silent_until[key] = now + REPEAT_SECONDS
            self._log.error(event, channel=self.channel, **fields)

    def _learn_health(self, outgoing: Outgoing, outcome: Outcome, now: float) -> None:
        match outcome:
            case Retry(code, detail=detail) | Unknown(code, detail) if self._is_failure(outcome):
                self._failed(outgoing, code, detail, now)
            case _:
                self._breaker.succeeded()
        match outcome:
            case Retry(after_seconds=wait, scope=Scope.CHANNEL, detail=detail) if wait > 0:
                self._asked_until = max(self._asked_until, now + min(wait, LONGEST_HOLD))
                self._asked_why = detail or "the provider asked for a wait"

    def _learn_settings(self, outgoing: Outgoing, outcome: Outcome, now: float) -> None:
        match outcome:
            case Misconfigured(code, detail, scope):
                # It needs no restart: once it is corrected, a probe succeeds and sending resumes.
                self.log_problem(code, "channel misconfigured", code=code, detail=detail)
                target = self.channel if scope is Scope.CHANNEL else outgoing.platform
                if target is not None:
                    is_rule = self._problems.saw(target, is_problem=True)
                    if is_rule or outcome.is_for_all or target in self._pauses:
                        self._pause(outgoing, target, code, detail, now)
            case Retry(code, scope=Scope.CHANNEL, detail=detail, is_held=True):
                self._pause(outgoing, self.channel, code, detail, now)
            case Accepted() | Gone() | Refused() if outgoing.platform is not None:
                self._problems.saw(outgoing.platform, is_problem=False)
        if isinstance(outcome, Accepted):
            self._resume(outgoing.platform)
        is_about_channel = isinstance(outcome, Misconfigured) and outcome.scope is Scope.CHANNEL
        if not is_about_channel and self._is_answer(outcome):
            self._problems.saw(self.channel, is_problem=False)
            self._resume(self.channel)

    def _pause(self, outgoing: Outgoing, target: Target, code: str, detail: str, now: float) -> None:
        pause = self._pauses.setdefault(target, _Pause())
        pause.code, pause.detail = code, detail
        if pause.breaker.failed(now, outgoing.delivery_id):
            wait = round(pause.breaker.wait(now))
            self._log.warning("sending paused", target=target, code=code, probe_after_seconds=wait)

    def _resume(self, target: Target | None) -> None:
        if target is not None and self._pauses.pop(target, None) is not None:
            self._problems.forget(target)
            self._log.info("sending resumed", target=target)

    def _failed(self, outgoing: Outgoing, code: str, detail: str, now: float) -> None:
        if self._breaker.failed(now, outgoing.delivery_id):
            self.log_problem("CIRCUIT_OPEN", "circuit open", code=code, detail=detail)


def held(code: str, seconds: float, why: str) -> Retry:
    """Nothing was sent: the delivery waits, and has all its attempts before it."""
    return Retry(code, seconds, Scope.CHANNEL, why, is_held=True)
