"""The one place that knows our HTTP client (docs/decisions/0008-http-client.md): a POST becomes an answer, or the word that
nothing was sent, or that it was sent and the answer lost. The difference decides whether a repeat can be a second one."""

from __future__ import annotations

import atexit
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from pyreqwest.client import ClientBuilder
from pyreqwest.exceptions import BuilderError, DetailedPyreqwestError, PyreqwestError, RequestTimeoutError

# Long enough for a slow handshake; short of the whole call's time, so that it is known which of the two ran out.
CONNECT_SECONDS = 5.0
REST_SECONDS = 0.05
# The client's word for an error before the first byte of a request. All its other words mean: it may have gone out. Its
# exception classes do not tell: a reset after sending is a ConnectError to it, and so is one before.
_BEFORE_SENDING = "client error (Connect)"


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` are found by name in capitals or not."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class NotSent:
    """No connection: nothing has left this machine."""

    detail: str


@dataclass(frozen=True, slots=True)
class Lost:
    """It was sent, perhaps, and no answer came."""

    is_timeout: bool
    detail: str


class Wire:
    """Connections to one provider, kept open between calls. `post` is called many times at once."""

    def __init__(self, timeout_seconds: float, idle_connections: int = 512, *, uses_proxy: bool = True) -> None:
        """With `uses_proxy`, through the proxy that the environment names, if it names one."""
        _rest_before_exit()
        builder = ClientBuilder() if uses_proxy else ClientBuilder().no_proxy()
        self._client = (
            builder.timeout(timedelta(seconds=timeout_seconds))
            .connect_timeout(timedelta(seconds=min(CONNECT_SECONDS, timeout_seconds / 2)))
            .pool_max_idle_per_host(idle_connections)
            # HTTP/2 would put a hundred sends on one connection, and one reset would leave a hundred unknown.
            .http1_only()
            .follow_redirects(False)
            .build()
        )

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer | NotSent | Lost:
        try:
            response = await self._client.post(url).headers(headers).body_bytes(body).build().send()
            content = bytes(await response.bytes())
        except (BuilderError, ValueError) as error:
            return NotSent(str(error))
        except RequestTimeoutError as error:
            return _failure(error, is_timeout=True)
        except PyreqwestError as error:
            return _failure(error, is_timeout=False)
        return Answer(response.status, response.headers, content)

    async def close(self) -> None:
        await self._client.close()


@cache
def _rest_before_exit() -> None:
    """Let the client's own thread leave Python before the interpreter ends: caught inside, it aborts the process.

    Seen on 3.11 in a fifth of the processes that ended right after an answer, in none with a rest between.
    """
    atexit.register(time.sleep, REST_SECONDS)


def _failure(error: PyreqwestError, is_timeout: bool) -> NotSent | Lost:
    causes = _causes(error)
    detail = causes[-1] if causes else str(error)
    if _BEFORE_SENDING in causes:
        return NotSent(detail)
    return Lost(is_timeout, detail)


def _causes(error: PyreqwestError) -> list[str]:
    """From the outermost to the innermost."""
    details: Any = error.details if isinstance(error, DetailedPyreqwestError) else None
    return [cause["message"] for cause in (details or {}).get("causes") or []]
