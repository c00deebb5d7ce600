"""Access tokens of a service account: fetched off the event loop, one fetch at a time, before the old one ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request
from google.oauth2.service_account import Credentials

from bongsu import telemetry
from bongsu.errors import BadCredentials
from bongsu.outcome import Misconfigured, Retry, Scope

SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
# A token is renewed when this share of its life is left, and no earlier than so many seconds before its end.
RENEWAL_SHARE = 0.2
RENEWAL_SECONDS = 300.0
# Whoever asks while the endpoint is away waits this long before it is asked again.
PAUSE_SECONDS = 10.0


class AccessTokens:
    """`get` answers at once while a token is good, and waits for the one fetch under way while none is."""

    def __init__(self, file: str, timeout_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        try:
            self._credentials = Credentials.from_service_account_file(file, scopes=[SCOPE])  # type: ignore[no-untyped-call]
        except (OSError, ValueError, GoogleAuthError) as error:
            raise BadCredentials(f"{file}: {error}") from None
        self.project = str(self._credentials.project_id or "")
        self._timeout = timeout_seconds
        self._clock = clock
        self._token = ""
        self._renew_at = 0.0
        self._ends_at = 0.0
        self._fetch: asyncio.Task[str | Misconfigured | Retry] | None = None
        self._log = telemetry.log("bongsu.push")

    def at_hand(self) -> str | None:
        """A token that is good now and need not be renewed yet."""
        return self._token if self._token and self._clock() < self._renew_at else None

    async def get(self, rejected: str = "") -> str | Misconfigured | Retry:
        """A token that is good now, or why there is none. `rejected` is one that was not liked: it is not given again."""
        if self._token and self._token != rejected:
            now = self._clock()
            if now < self._renew_at:
                return self._token
            if now < self._ends_at:
                self._begin()  # nobody waits for it: the old one still serves
                return self._token
        try:
            async with asyncio.timeout(self._timeout):
                # Shielded: one caller that is cancelled does not take the token away from the others.
                return await asyncio.shield(self._begin())
        except TimeoutError:
            # google-auth tries a few times by itself; a send does not wait for all of them.
            return _unavailable("the token endpoint takes its time")

    async def close(self) -> None:
        """Wait for a fetch under way: a thread cannot be called back."""
        if self._fetch is not None:
            await asyncio.wait([self._fetch])

    def _begin(self) -> asyncio.Task[str | Misconfigured | Retry]:
        if self._fetch is None or self._fetch.done():
            self._fetch = asyncio.create_task(self._renew(), name="bongsu-fcm-token")
        return self._fetch

    async def _renew(self) -> str | Misconfigured | Retry:
        try:
            token, seconds = await asyncio.to_thread(self._refresh)
        except Exception as error:
            return self._failed(error)
        now = self._clock()
        self._token = token
        self._ends_at = now + seconds
        self._renew_at = self._ends_at - min(RENEWAL_SECONDS, seconds * RENEWAL_SHARE)
        return token

    def _refresh(self) -> tuple[str, float]:
        """Runs in a thread: the token and how many seconds it is good for."""
        request = Request()
        try:
            self._credentials.refresh(partial(request, timeout=self._timeout))
        finally:
            request.session.close()
        ends = self._credentials.expiry.replace(tzinfo=UTC)
        return str(self._credentials.token), (ends - datetime.now(UTC)).total_seconds()

    def _failed(self, error: Exception) -> Misconfigured | Retry:
        # google-auth marks what may pass. What it has no word for, an answer that is no JSON, say, may pass too.
        is_refusal = isinstance(error, GoogleAuthError) and not error.retryable and not isinstance(error, TransportError)
        detail = str(error)[:300]
        self._log.warning("no access token", error=detail, refused=is_refusal)
        # A token that still serves goes on serving; it is renewed by the next who asks after a pause.
        self._renew_at = max(self._renew_at, self._clock() + PAUSE_SECONDS)
        if is_refusal:
            return Misconfigured("OAUTH_REFUSED", detail)
        return _unavailable(detail)


def _unavailable(why: str) -> Retry:
    return Retry("OAUTH_UNAVAILABLE", PAUSE_SECONDS, Scope.CHANNEL, why)
