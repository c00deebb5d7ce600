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

from bongsu.deliver.channels.limits.guard import held
from bongsu.errors import BadCredentials
from bongsu.model.outcome import Misconfigured, Retry
from bongsu.runtime import telemetry
from bongsu.runtime.backoff import doubling

SCOPE = "https://www.googleapis.com/auth/firebase.messaging"
# A token is renewed when this share of its life is left, and no earlier than so many seconds before its end.
RENEWAL_SHARE = 0.2
RENEWAL_SECONDS = 300.0
# It is not used in the last seconds of its life, or the last share of a short one: a request takes its time to arrive.
MARGIN_SECONDS = 10.0
MARGIN_SHARE = 0.05
# While the old token serves, a renewal that failed is repeated after 1, 2, 4 … seconds, up to this.
LONGEST_PAUSE = 60.0


class AccessTokens:
    """`cached` never waits; `get` waits for the one fetch under way while there is no token."""

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
        self._usable_until = 0.0
        self._failures = 0
        self._fetch: asyncio.Task[str | Misconfigured | Retry] | None = None
        self._log = telemetry.log("bongsu.push")

    def cached(self) -> str | None:
        """The token, if it can be used now. One that ends soon is renewed in the background meanwhile."""
        now = self._clock()
        if now >= self._usable_until:
            return None
        if now >= self._renew_at:
            self._begin()
        return self._token

    async def get(self, rejected: str = "") -> str | Misconfigured | Retry:
        """A token that can be used now, or why there is none. `rejected` is one that was refused: it is not used again."""
        if rejected == self._token:
            self._usable_until = 0.0
        if (token := self.cached()) is not None:
            return token
        try:
            async with asyncio.timeout(self._timeout):
                # Shielded: one caller that is cancelled does not take the token away from the others.
                return await asyncio.shield(self._begin())
        except TimeoutError:
            # google-auth tries a few times by itself; a send does not wait for all of them.
            return _unavailable("the token endpoint did not answer in time")

    async def close(self) -> None:
        """Wait for a fetch under way: a thread cannot be stopped."""
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
        end = self._clock() + seconds
        self._token, self._failures = token, 0
        self._usable_until = end - min(MARGIN_SECONDS, seconds * MARGIN_SHARE)
        self._renew_at = end - min(RENEWAL_SECONDS, seconds * RENEWAL_SHARE)
        return token

    def _refresh(self) -> tuple[str, float]:
        """Runs in a thread: the token and for how many seconds it is valid."""
        request = Request()
        try:
            self._credentials.refresh(partial(request, timeout=self._timeout))
        finally:
            request.session.close()
        end = self._credentials.expiry.replace(tzinfo=UTC)
        return str(self._credentials.token), (end - datetime.now(UTC)).total_seconds()

    def _failed(self, error: Exception) -> Misconfigured | Retry:
        # google-auth marks what may pass. What it does not know, such as an answer that is not JSON, may pass too.
        is_refusal = isinstance(error, GoogleAuthError) and not error.retryable and not isinstance(error, TransportError)
        detail = str(error)[:300]
        self._failures += 1
        self._renew_at = self._clock() + doubling(1.0, self._failures, LONGEST_PAUSE)
        self._log.warning("no access token", error=detail, refused=is_refusal, failures=self._failures)
        return Misconfigured("OAUTH_REFUSED", detail, is_for_all=True) if is_refusal else _unavailable(detail)


def _unavailable(why: str) -> Retry:
    # Nothing was sent, so it is not an attempt; the channel pauses, and probes soon.
    return held("OAUTH_UNAVAILABLE", 0.0, why)
