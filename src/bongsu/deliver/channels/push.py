"""Push: FCM HTTP v1 over one wire. fcm.py says what is sent and what answers mean; here it goes out, paced and guarded."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from bongsu import telemetry
from bongsu.deliver.channels import fcm
from bongsu.deliver.channels.body_templates import BodyTemplates
from bongsu.deliver.channels.http.client import Answer, HttpClient, NotSent, ResponseLost
from bongsu.deliver.channels.limits.breaker import Breaker
from bongsu.deliver.channels.limits.pace import Pace
from bongsu.deliver.channels.limits.quarter_hours import seconds_until_calm
from bongsu.deliver.channels.limits.quota import Quota
from bongsu.deliver.channels.limits.send_metrics import SendMetrics
from bongsu.deliver.channels.limits.token_guard import TokenGuard
from bongsu.errors import BadSettings, StoreError
from bongsu.model import Channel, Platform, Priority, utc_now
from bongsu.outcome import Accepted, Gone, Land, Misconfigured, Outcome, Outgoing, Refused, Retry, Scope, Unknown
from bongsu.settings import Settings
from bongsu.store import Store

if TYPE_CHECKING:
    from bongsu.deliver.channels.oauth import AccessTokens

GOOGLE = "https://fcm.googleapis.com"
# Where a simulator runs. A proxy that the environment names is not asked for these.
LOCAL = frozenset({"127.0.0.1", "::1", "localhost"})
# FCM's quota for a project, which all processes on one store share.
SENDS_PER_MINUTE = 600_000
# Kept open between bursts: as many as the dispatcher can have on the wire.
CONNECTIONS = 1_536
# What somebody has to mend is tried with one send this often, so that it runs again by itself once it is mended.
PROBE_SECONDS = 60.0
# The same complaint is an ERROR line once in this time; the history has each.
COMPLAINT_SECONDS = 60.0
# Answers about one token that, when they come about many, are about us: our payload, our project.
SUSPECT = frozenset({"INVALID_ARGUMENT", "SENDER_ID_MISMATCH"})


HEADERS = {"Content-Type": "application/json"}


class Push:
    """The channel PUSH. Built from settings that have BONGSU_FCM_CREDENTIALS or BONGSU_FCM_URL."""

    channel = Channel.PUSH

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        breaker: Breaker | None = None,
        brake: TokenGuard | None = None,
        pace: Pace | None = None,
        store: Store | None = None,
        per_minute: int = SENDS_PER_MINUTE,
        today: Callable[[], datetime] = utc_now,
    ) -> None:
        """Without a store the quota is all this process's own."""
        if not self.is_configured(settings):
            raise BadSettings("Push needs BONGSU_FCM_CREDENTIALS, or BONGSU_FCM_URL for a simulator")
        self._tokens = _tokens(settings, clock)
        project = settings.fcm_project or (self._tokens.project if self._tokens is not None else "bongsu")
        if not project:
            raise BadSettings("The service-account file names no project: set BONGSU_FCM_PROJECT")
        self._url = f"{(settings.fcm_url or GOOGLE).rstrip('/')}/v1/projects/{quote(project, safe='')}/messages:send"
        self._wire = HttpClient(settings.send_timeout_seconds, CONNECTIONS, uses_proxy=urlsplit(self._url).hostname not in LOCAL)
        self._clock = clock
        self._breaker = breaker or Breaker()
        self._brake = brake or TokenGuard()
        # A simulator has nobody who would be surprised by a flood: no ramp there, and no busy hours.
        self._is_google = not settings.fcm_url
        self._pace = pace or Pace(per_minute, ramp_seconds=60.0 if self._is_google else 0.0)
        self._quota = None if store is None else Quota(store, self.channel, f"fcm {project}", per_minute, clock)
        self._forms = BodyTemplates()
        # Of the last token. The same object for every call: the wire knows it by its contents.
        self._written: tuple[str, dict[str, str]] = "", HEADERS
        self._quota_until = 0.0
        self._today = today
        # What is wrong with the channel, or with one platform, and when to try again whether it still is.
        self._wrongs: dict[Channel | Platform, tuple[Misconfigured, float]] = {}
        self._complained: dict[str, float] = {}
        self._meter = SendMetrics(self.channel, self._breaker, clock, lambda: self._quota_until)
        telemetry.BRAKE.labels(self.channel.value).set_function(lambda: float(self._brake.is_on))
        telemetry.PACE_WAITING.labels(self.channel.value).set_function(lambda: float(self._pace.waiting))
        self._log = telemetry.log("bongsu.push")

    @staticmethod
    def is_configured(settings: Settings) -> bool:
        return bool(settings.fcm_credentials or settings.fcm_url)

    async def send(self, outgoing: Outgoing) -> Outcome:
        body = self._forms.request_body(outgoing, utc_now())
        if isinstance(body, Refused):
            self._complain(outgoing, body)
            return body
        if (held := self._hold(outgoing)) is not None:
            return held
        if wait := self._pace.reserve(self._clock()):
            await asyncio.sleep(wait)
        if self._quota is not None and not self._quota.take() and (held := await self._wait_for(self._quota)) is not None:
            return held
        began = time.perf_counter()
        try:
            outcome = await self._call(outgoing, body)
        except Exception:
            self._meter.crashed(began)
            raise
        self._meter.answered(outcome, began)
        return self._learn(outgoing, outcome)

    def send_at_once(self, outgoing: Outgoing, land: Land) -> bool:
        """Nearly always: all is well with FCM, a connection is free, and neither pace nor quota is used up."""
        now = self._clock()
        token = self._tokens.at_hand() if self._tokens is not None else ""
        if token is None or not self._is_well(outgoing, now):
            return False
        body = self._forms.request_body(outgoing, utc_now())
        if isinstance(body, Refused) or not self._take(now):
            return False
        hear = partial(self._hear, outgoing, land, time.perf_counter())
        is_sent = self._wire.post_at_once(self._url, self._headers(token), body, hear)
        if not is_sent:
            self._give_back()
        return is_sent

    async def close(self) -> None:
        if self._tokens is not None:
            await self._tokens.close()
        await self._wire.close()

    # --- before -------------------------------------------------------------------------------------------------------

    def _hold(self, outgoing: Outgoing) -> Outcome | None:
        """Why nothing is sent now; None when it may go."""
        now = self._clock()
        if outgoing.priority is Priority.LOW and self._is_google and (wait := self._until_calm(outgoing)):
            return _held("QUARTER_HOUR", wait, "FCM is busiest around the quarter hours: what is LOW waits")
        if now < self._quota_until:
            return _held("QUOTA_EXCEEDED", self._quota_until - now, "the project's quota is used up")
        wrongs = [place for place in (Channel.PUSH, outgoing.platform) if place is not None and place in self._wrongs]
        for place in wrongs:
            wrong, until = self._wrongs[place]
            if now < until:
                return _held(wrong.code, until - now, wrong.detail)
        if remaining := self._breaker.ask(now):
            return _held("CIRCUIT_OPEN", remaining, "FCM kept failing: it is left alone for a while")
        for place in wrongs:
            # This one goes out to see; the others go on waiting until it is back.
            self._wrongs[place] = self._wrongs[place][0], now + PROBE_SECONDS
        return None

    def _is_well(self, outgoing: Outgoing, now: float) -> bool:
        """Nothing that `_hold` would have to look at."""
        is_free = not self._wrongs and self._breaker.is_closed and now >= self._quota_until
        return is_free and not (self._is_google and outgoing.priority is Priority.LOW)

    def _take(self, now: float) -> bool:
        """A place in the pace and one of the quota, if both have one now."""
        if self._quota is not None and not self._quota.take():
            return False
        if self._pace.take(now):
            return True
        if self._quota is not None:
            self._quota.give_back()
        return False

    def _give_back(self) -> None:
        self._pace.give_back()
        if self._quota is not None:
            self._quota.give_back()

    def _until_calm(self, outgoing: Outgoing) -> float:
        """Nothing when the wait would cost it its worth."""
        now = self._today()
        wait = seconds_until_calm(now)
        is_urgent = outgoing.expires_at is not None and outgoing.expires_at <= now + timedelta(seconds=wait)
        return 0.0 if is_urgent else wait

    async def _wait_for(self, quota: Quota) -> Outcome | None:
        """None when it may go. A quota that cannot be looked at is treated as one that is used up."""
        try:
            if await quota.wait():
                return None
        except StoreError as error:
            return _held("QUOTA_UNKNOWN", 0.0, str(error))
        return _held("QUOTA_SHARED", 0.0, "all processes together use up the project's quota")

    # --- the call -----------------------------------------------------------------------------------------------------

    async def _call(self, outgoing: Outgoing, body: bytes) -> Outcome:
        token = await self._tokens.get() if self._tokens is not None else ""
        if not isinstance(token, str):
            return token
        outcome = await self._post(outgoing, body, token)
        match outcome:
            case Misconfigured("UNAUTHENTICATED") if self._tokens is not None:
                # Ended early, or taken back: a new one, once.
                token = await self._tokens.get(rejected=token)
                return await self._post(outgoing, body, token) if isinstance(token, str) else token
        return outcome

    async def _post(self, outgoing: Outgoing, body: bytes, token: str) -> Outcome:
        return self._read(outgoing, await self._wire.post(self._url, self._headers(token), body))

    def _headers(self, token: str) -> dict[str, str]:
        if token != self._written[0]:
            self._written = token, {**HEADERS, "Authorization": f"Bearer {token}"}
        return self._written[1]

    def _hear(self, outgoing: Outgoing, land: Land, began: float, what: Answer | ResponseLost) -> bool:
        try:
            outcome = self._read(outgoing, what)
            if isinstance(outcome, Misconfigured) and outcome.code == "UNAUTHENTICATED" and self._tokens is not None:
                land(None)  # the token has ended early, or was taken back: `send` gets a new one
                return True
            learned = self._learn(outgoing, outcome)
        except Exception as error:
            self._meter.crashed(began)
            self._log.error("push raised", exc_info=True)
            land(Unknown("CRASHED", type(error).__name__))
            return True
        self._meter.answered(outcome, began)
        land(learned)
        return True

    @staticmethod
    def _read(outgoing: Outgoing, what: Answer | NotSent | ResponseLost) -> Outcome:
        match what:
            case Answer(200, _, content):
                return fcm.taken_on(200, content)
            case Answer(status, answered, content):
                dice = random.random()  # noqa: S311 (spreading load, not keeping secrets)
                now = utc_now()
                return fcm.read_answer(status, answered, content, now=now, attempt=outgoing.attempt, spread=dice)
            case NotSent(detail):
                # Nobody was there to ask for a pause: the dispatcher's own will do.
                return Retry("UNREACHABLE", detail=f"nothing was sent: {detail}")
            case ResponseLost(is_timeout, detail):
                return Unknown("TIMEOUT" if is_timeout else "CONNECTION_LOST", detail)

    # --- after --------------------------------------------------------------------------------------------------------

    def _learn(self, outgoing: Outgoing, outcome: Outcome) -> Outcome:
        """What one answer means for the sends after it, and what those before it mean for this one."""
        now = self._clock()
        if isinstance(outcome, Accepted) and not self._wrongs:
            # Nearly always, and then there is nothing to learn but that all is well.
            self._breaker.succeeded()
            self._brake.saw(now, is_suspect=False)
            return outcome
        self._count(outcome, now)
        match outcome:
            case Misconfigured(scope=scope):
                place = Channel.PUSH if scope is Scope.CHANNEL else outgoing.platform
                if place is not None:
                    self._wrongs[place] = outcome, now + PROBE_SECONDS
            case Retry(scope=Scope.CHANNEL, code="QUOTA_EXCEEDED", after_seconds=wait):
                # However long it asks for, it is asked once an hour whether it still does.
                self._quota_until = max(self._quota_until, now + min(wait, fcm.LONGEST_WAIT))
                self._pace.restart()
            case Accepted():
                self._mended(Channel.PUSH)
                self._mended(outgoing.platform)
            case Gone() | Refused():
                self._mended(Channel.PUSH)  # FCM has looked at the message, so it let us in
        self._complain(outgoing, outcome)
        return self._braked(outcome, now)

    def _count(self, outcome: Outcome, now: float) -> None:
        match outcome:
            case (
                Unknown()
                | Retry(may_have_arrived=True)
                | Retry(code="UNAVAILABLE" | "INTERNAL" | "UNREACHABLE" | "OAUTH_UNAVAILABLE")
            ):
                if self._breaker.failed(now):
                    self._log.error("FCM keeps failing: nothing is sent for a while", code=outcome.code, why=outcome.detail)
            case _:
                self._breaker.succeeded()

    def _mended(self, place: Channel | Platform | None) -> None:
        if place is not None and self._wrongs.pop(place, None) is not None:
            self._log.info("sending again", place=place.value)

    def _braked(self, outcome: Outcome, now: float) -> Outcome:
        """Many dead tokens at once are not dead tokens."""
        match outcome:
            case Gone(code, detail) if code in SUSPECT:
                if self._brake.saw(now, is_suspect=True):
                    line = "a large share of tokens is refused: they are kept, look at the payload and the project"
                    self._log.error(line, code=code, why=detail)
                if self._brake.is_on:
                    return Refused(code, f"the token is kept, too many are refused at once: {detail}")
            case Accepted() | Gone() | Refused():
                self._brake.saw(now, is_suspect=False)
        return outcome

    def _complain(self, outgoing: Outgoing, outcome: Outcome) -> None:
        """One ERROR line for what somebody has to mend."""
        match outcome:
            case Misconfigured(code, detail):
                self._once(code, "push is misconfigured: correct it, sending goes on by itself", code=code, why=detail)
            case Refused(code, detail) if code != "EXPIRED":
                key = f"{code} {outgoing.type}"
                self._once(key, "a push was refused: correct its text or data", code=code, type=outgoing.type, why=detail)

    def _once(self, key: str, line: str, **words: str) -> None:
        now = self._clock()
        if now < self._complained.get(key, now):
            return
        self._complained[key] = now + COMPLAINT_SECONDS
        self._log.error(line, **words)


def _held(code: str, seconds: float, why: str) -> Retry:
    return Retry(code, seconds, Scope.CHANNEL, why, is_held=True)


def _tokens(settings: Settings, clock: Callable[[], float]) -> AccessTokens | None:
    """None for a simulator that wants no OAuth. google-auth takes its time to import, so only who needs it waits."""
    if not settings.fcm_credentials:
        return None
    from bongsu.deliver.channels.oauth import AccessTokens  # noqa: PLC0415

    return AccessTokens(settings.fcm_credentials, settings.send_timeout_seconds, clock)
