"""Push by FCM HTTP v1: sends within pace and quota. message.py has the format, answers.py the meaning of answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from bongsu.deliver.channels.callback import OnOutcome, send_and_wait
from bongsu.deliver.channels.details import without_address
from bongsu.deliver.channels.http.client import Answer, HttpClient, NotSent, ResponseLost
from bongsu.deliver.channels.limits.breaker import Breaker
from bongsu.deliver.channels.limits.guard import Guard, held
from bongsu.deliver.channels.limits.pace import Pace
from bongsu.deliver.channels.limits.quarter_hours import seconds_until_calm
from bongsu.deliver.channels.limits.quota import Quota
from bongsu.deliver.channels.limits.token_guard import TokenGuard
from bongsu.deliver.channels.push.answers import is_answer, is_failure, read_answer, read_success
from bongsu.deliver.channels.push.message import request_body
from bongsu.errors import BadSettings, StoreError
from bongsu.model import Channel, Priority, utc_now
from bongsu.model.outcome import Accepted, Gone, Misconfigured, Outcome, Outgoing, Refused, Retry, Scope, Unknown
from bongsu.runtime import telemetry
from bongsu.settings import Settings
from bongsu.store import Store

if TYPE_CHECKING:
    from bongsu.deliver.channels.push.oauth import AccessTokens

GOOGLE = "https://fcm.googleapis.com"
# Where a simulator runs. No proxy is used for these.
LOCAL = frozenset({"127.0.0.1", "::1", "localhost"})
# FCM's quota for a project, which all processes on one store share.
SENDS_PER_MINUTE = 600_000
# Kept open between bursts: as many as the dispatcher can have under way.
CONNECTIONS = 1_536
# Answers about one token that, when they come about many, are about us: our payload, our project.
SUSPECT = frozenset({"INVALID_ARGUMENT", "SENDER_ID_MISMATCH"})

HEADERS = {"Content-Type": "application/json"}


@dataclass(slots=True, eq=False)
class _Call:
    """One send under way."""

    outgoing: Outgoing
    body: bytes
    on_outcome: OnOutcome
    began: float = field(default_factory=time.perf_counter)
    # Whether it was answered 401 and is repeated with a new access token.
    is_repeat: bool = False


class Push:
    """The channel PUSH. Built from settings that have BONGSU_FCM_CREDENTIALS or BONGSU_FCM_URL."""

    channel = Channel.PUSH

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        breaker: Breaker | None = None,
        token_guard: TokenGuard | None = None,
        pace: Pace | None = None,
        store: Store | None = None,
        per_minute: int = SENDS_PER_MINUTE,
        today: Callable[[], datetime] = utc_now,
    ) -> None:
        """Without a store this process has the whole quota."""
        if not self.is_configured(settings):
            raise BadSettings("Push needs BONGSU_FCM_CREDENTIALS, or BONGSU_FCM_URL for a simulator")
        self._tokens = _tokens(settings, clock)
        project = settings.fcm_project or (self._tokens.project if self._tokens is not None else "bongsu")
        if not project:
            raise BadSettings("The service-account file names no project: set BONGSU_FCM_PROJECT")
        self._url = f"{(settings.fcm_url or GOOGLE).rstrip('/')}/v1/projects/{quote(project, safe='')}/messages:send"
        uses_proxy = urlsplit(self._url).hostname not in LOCAL
        self._client = HttpClient(settings.send_timeout_seconds, CONNECTIONS, uses_proxy=uses_proxy)
        self._clock = clock
        self._guard = Guard(self.channel, clock=clock, breaker=breaker, is_failure=is_failure, is_answer=is_answer)
        self._token_guard = token_guard or TokenGuard()
        # A simulator does not throttle bursts: no ramp there, and no busy quarter hours.
        self._is_google = not settings.fcm_url
        self._pace = pace or Pace(per_minute, ramp_seconds=60.0 if self._is_google else 0.0)
        self._quota = None if store is None else Quota(store, self.channel, f"fcm {project}", per_minute, clock)
        # Of the last token. The same object for every call: the client knows it by its contents.
        self._headers: tuple[str, dict[str, str]] = "", HEADERS
        self._today = today
        # A task that only the event loop refers to may be collected.
        self._repeats: set[asyncio.Task[None]] = set()
        telemetry.TOKEN_GUARD_ACTIVE.labels(self.channel).set_function(lambda: float(self._token_guard.is_on))
        telemetry.PACE_WAITING.labels(self.channel).set_function(lambda: float(self._pace.waiting))
        self._log = telemetry.log("bongsu.push")

    @staticmethod
    def is_configured(settings: Settings) -> bool:
        return bool(settings.fcm_credentials or settings.fcm_url)

    async def send(self, outgoing: Outgoing) -> Outcome:
        return await send_and_wait(self, outgoing)

    def start(self, outgoing: Outgoing, on_outcome: OnOutcome) -> asyncio.Task[None] | None:
        """Post it at once where nothing has to be waited for, as nearly always: no pace, quota or access token."""
        body = request_body(outgoing, utc_now())
        if isinstance(body, Refused):
            self._log_refusal(outgoing, body)
            on_outcome(body)
            return None
        if (hold := self._hold(outgoing)) is not None:
            on_outcome(hold)
            return None
        call = _Call(outgoing, body, on_outcome)
        token = self._tokens.cached() if self._tokens is not None else ""
        if token is None or not self._take(outgoing):
            return asyncio.create_task(self._post_later(call))
        self._post(call, token)
        return None

    def is_waiting(self, task: asyncio.Task[None]) -> bool:
        """A task only waits: it ends when the push is posted."""
        return not task.done()

    @property
    def is_held(self) -> bool:
        return self._guard.is_held

    async def close(self) -> None:
        if self._tokens is not None:
            await self._tokens.close()
        await self._client.close()

    # --- before -------------------------------------------------------------------------------------------------------

    def _hold(self, outgoing: Outgoing) -> Retry | None:
        """Why nothing is sent now; None when it may go."""
        if outgoing.priority is Priority.LOW and self._is_google and (wait := self._until_calm(outgoing)):
            return held("QUARTER_HOUR", wait, "FCM is busiest around the quarter hours: LOW waits")
        return self._guard.admit(outgoing)

    def _until_calm(self, outgoing: Outgoing) -> float:
        """Nothing if it would expire meanwhile."""
        now = self._today()
        wait = seconds_until_calm(now)
        is_urgent = outgoing.expires_at is not None and outgoing.expires_at <= now + timedelta(seconds=wait)
        return 0.0 if is_urgent else wait

    def _take(self, outgoing: Outgoing) -> bool:
        """A turn in the pace and a permit of the quota, if both are free now."""
        if self._quota is not None and not self._quota.take(is_first=outgoing.is_urgent):
            return False
        if self._pace.take(self._clock()):
            return True
        if self._quota is not None:
            self._quota.give_back()
        return False

    async def _post_later(self, call: _Call, rejected: str = "") -> None:
        """Post it in its turn; or again with a new access token, if FCM rejected the one it was posted with."""
        try:
            if not rejected and (hold := await self._wait_for_turn(call.outgoing)) is not None:
                call.on_outcome(hold)
                return
            token = await self._tokens.get(rejected) if self._tokens is not None else ""
            if isinstance(token, str):
                self._post(call, token)
                return
            if not rejected:
                self._give_back()
            self._guard.unusable(call.outgoing, token)
            call.on_outcome(token)
        except Exception as error:
            self._crashed(call, error)

    async def _wait_for_turn(self, outgoing: Outgoing) -> Retry | None:
        """Wait for a turn in the pace and a permit of the quota; or why it has none. Critical ones to few go first."""
        is_first = outgoing.is_urgent
        wait = self._pace.reserve(self._clock(), is_first=is_first)
        hold: Retry | None = None
        try:
            if wait:
                await asyncio.sleep(wait)
            if self._quota is not None and not self._quota.take(is_first=is_first):
                hold = await self._wait_for(self._quota, is_first)
        except asyncio.CancelledError:
            self._pace.give_back()
            raise
        if hold is not None:
            self._pace.give_back()
        return hold

    def _give_back(self) -> None:
        self._pace.give_back()
        if self._quota is not None:
            self._quota.give_back()

    async def _wait_for(self, quota: Quota, is_first: bool) -> Retry | None:
        """None when it may go. A quota that cannot be read is treated as used up."""
        try:
            if await quota.wait(is_first=is_first):
                return None
        except StoreError as error:
            return held("QUOTA_UNKNOWN", 0.0, str(error))
        return held("QUOTA_SHARED", 0.0, "all processes together use up the project's quota")

    # --- the call -----------------------------------------------------------------------------------------------------

    def _post(self, call: _Call, token: str) -> None:
        if token != self._headers[0]:
            self._headers = token, {**HEADERS, "Authorization": f"Bearer {token}"}
        self._client.start(self._url, self._headers[1], call.body, partial(self._on_answer, call, token))

    def _on_answer(self, call: _Call, token: str, result: Answer | NotSent | ResponseLost) -> bool:
        try:
            outcome = without_address(_read(call.outgoing, result), call.outgoing)
            is_rejected = isinstance(outcome, Misconfigured) and outcome.code == "UNAUTHENTICATED"
            if is_rejected and self._tokens is not None and not call.is_repeat:
                # Ended early, or revoked: a new one, once.
                call.is_repeat = True
                repeat = asyncio.create_task(self._post_later(call, rejected=token))
                self._repeats.add(repeat)
                repeat.add_done_callback(self._repeats.discard)
            else:
                self._finish(call, outcome)
        except Exception as error:
            self._crashed(call, error)
        return True

    def _crashed(self, call: _Call, error: Exception) -> None:
        self._log.error("push raised", exc_info=error)
        self._guard.crashed(call.outgoing, error, call.began)
        call.on_outcome(Unknown("CRASHED", type(error).__name__))

    # --- after --------------------------------------------------------------------------------------------------------

    def _finish(self, call: _Call, outcome: Outcome) -> None:
        self._guard.answered(call.outgoing, outcome, call.began)
        match outcome:
            case Accepted():
                self._token_guard.saw(self._clock(), is_suspect=False)
            case Retry(code="QUOTA_EXCEEDED", scope=Scope.CHANNEL):
                self._pace.restart()
            case Gone():
                outcome = self._keep_suspect_token(outcome)
            case Refused():
                self._token_guard.saw(self._clock(), is_suspect=False)
                self._log_refusal(call.outgoing, outcome)
        call.on_outcome(outcome)

    def _keep_suspect_token(self, gone: Gone) -> Outcome:
        """If many tokens are refused at once, they are kept: the payload or the project is wrong, not the devices."""
        is_suspect = gone.code in SUSPECT
        if self._token_guard.saw(self._clock(), is_suspect):
            self._log.error("many tokens refused, keeping them", code=gone.code, detail=gone.detail)
        if is_suspect and self._token_guard.is_on:
            return Refused(gone.code, f"the token is kept, too many are refused at once: {gone.detail}")
        return gone

    def _log_refusal(self, outgoing: Outgoing, refused: Refused) -> None:
        if refused.code != "EXPIRED":
            fields = {"code": refused.code, "type": outgoing.type, "detail": refused.detail}
            key = f"{refused.code} {outgoing.type}"
            self._guard.log_problem(key, "push refused", **fields)


def _read(outgoing: Outgoing, result: Answer | NotSent | ResponseLost) -> Outcome:
    match result:
        case Answer(200, _, content):
            return read_success(200, content)
        case Answer(status, headers, content):
            spread = random.random()  # noqa: S311 (spreading load, not keeping secrets)
            return read_answer(status, headers, content, now=utc_now(), attempt=outgoing.attempt, spread=spread)
        case NotSent(detail):
            # FCM has not asked for a wait: the dispatcher's own applies.
            return Retry("UNREACHABLE", detail=f"nothing was sent: {detail}")
        case ResponseLost(is_timeout, detail):
            return Unknown("TIMEOUT" if is_timeout else "CONNECTION_LOST", detail)


def _tokens(settings: Settings, clock: Callable[[], float]) -> AccessTokens | None:
    """None for a simulator without OAuth. google-auth takes long to import: only where it is needed."""
    if not settings.fcm_credentials:
        return None
    from bongsu.deliver.channels.push.oauth import AccessTokens  # noqa: PLC0415

    return AccessTokens(settings.fcm_credentials, settings.send_timeout_seconds, clock)
