"""Who may call: an API key for server calls, a member token for member calls, never the one for the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Any, Generic, TypeVar

from fastapi import Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from bongsu.errors import BadKey, WrongKind
from bongsu.runtime.keys import Keys
from bongsu.runtime.rate_limit import RateLimit

SESSION_COOKIE = "bongsu_session"

_T = TypeVar("_T")

# For the API's document: how an operation names its check that calls it itself, and not as a dependency.
SERVER_CALL: dict[str, Any] = {"security": [{"apiKey": []}]}
MEMBER_CALL: dict[str, Any] = {"security": [{"memberToken": []}]}
SERVER_OR_MEMBER_CALL: dict[str, Any] = {"security": [{"apiKey": []}, {"memberToken": []}]}
OPEN_CALL: dict[str, Any] = {"security": []}


class Check(SecurityBase, Generic[_T]):
    """Who may call, as a dependency. FastAPI names it in the document of every operation that depends on it, so that what is
    documented is what is checked."""

    def __init__(self, name: str, description: str, check: Callable[[Request], Awaitable[_T]]) -> None:
        self.scheme_name = name
        self.model = HTTPBearer(description=description)
        self._check = check

    async def __call__(self, request: Request) -> _T:
        return await self._check(request)


class Authenticator:
    """The dependencies endpoints name: `Depends(auth.server)` and `Depends(auth.member)`."""

    def __init__(self, keys: Keys, origins: Collection[str] = (), limit: RateLimit | None = None) -> None:
        """The origins are those of other sites whose pages may use a member's cookie. The limit is for calls of members."""
        self._keys = keys
        self._limit = limit
        self._origins = frozenset(origins)
        self.server = Check("apiKey", "An API key, here or as X-API-Key.", self._server)
        self.member = Check("memberToken", "A member token, here or in the session cookie.", self._member_id)

    async def _server(self, request: Request) -> None:
        given = self._given(request)
        if self._keys.is_api_key(given):
            return
        await self._keys.member_of(given)  # raises unless it is a member's valid token
        raise WrongKind("This call takes an API key, and a member token was sent")

    async def _member_id(self, request: Request) -> str:
        return (await self.member_until(request))[0]

    async def member_until(self, request: HTTPConnection) -> tuple[str, datetime]:
        """Who calls, and when the token they call with ends."""
        return await self._member(self._given(request))

    async def member_of_token(self, token: str) -> tuple[str, datetime]:
        """Whose token that is, and when it ends: it came in a frame of a WebSocket."""
        return await self._member(token)

    async def caller(self, request: Request) -> str | None:
        """Who calls what both may call: a member's id, or None for a server."""
        given = self._given(request)
        return None if self._keys.is_api_key(given) else (await self._member(given))[0]

    async def bearer_until(self, request: Request) -> tuple[str, str, datetime]:
        """The token sent in the header, whose it is and when it ends: a cookie is not made from a cookie."""
        given = self._from_headers(request)
        if given is None:
            raise _nothing(request)
        return given, *await self._member(given)

    async def member_of_session(self, request: Request) -> str | None:
        """Whose valid token the cookie has, if it has one."""
        try:
            return await self._keys.member_of(request.cookies.get(SESSION_COOKIE, ""))
        except BadKey:
            return None

    async def _member(self, given: str) -> tuple[str, datetime]:
        if self._keys.is_api_key(given):
            raise WrongKind("This call takes a member token, and an API key was sent")
        member_id, expires_at = await self._keys.member_until(given)
        if self._limit is not None:
            self._limit.count(member_id)
        return member_id, expires_at

    def _given(self, request: HTTPConnection) -> str:
        given = self._from_headers(request)
        if given is not None:
            return given
        # Only EventSource needs the cookie, because it cannot send headers. A browser sends it by itself, so that an API key
        # in it would let any page of this host act as a server.
        if cookie := request.cookies.get(SESSION_COOKIE):
            self._check_origin(request)
            if self._keys.is_api_key(cookie):
                raise BadKey("An API key was sent in the session cookie, where only member tokens are accepted")
            return cookie
        raise _nothing(request)

    def _from_headers(self, request: HTTPConnection) -> str | None:
        if (token := _bearer(request)) is not None:
            return token
        given = request.headers.get("x-api-key")
        if given and not self._keys.is_api_key(given):
            raise BadKey("X-API-Key takes an API key, and what was sent is not one. A member token is sent as Authorization")
        return given or None

    def _check_origin(self, request: HTTPConnection) -> None:
        """CSRF: a browser sends the cookie with requests of any page. Only our own and configured origins may use it."""
        origin = request.headers.get("origin")
        if origin is None or origin in self._origins:
            return
        # By host and port alone: behind a proxy that ends TLS, the scheme is not known here. Not parsed: an origin is only
        # scheme, host and port, and whatever else was sent is not ours.
        own = request.headers.get("host", "").lower()
        if not own or origin.lower() not in (f"http://{own}", f"https://{own}"):
            raise WrongKind("The cookie came from a page of another site: add its origin to BONGSU_CORS_ORIGINS")


def is_by_cookie(request: HTTPConnection) -> bool:
    """Whether the key of the request is taken from the cookie."""
    return _from_headers(request) is None


def has_key(request: HTTPConnection) -> bool:
    """Whether a key was sent at all, in a header or in the cookie."""
    return bool(
        request.headers.get("authorization") or request.headers.get("x-api-key") or request.cookies.get(SESSION_COOKIE)
    )


def key_ending(request: Request) -> str:
    """The end of the key of a server call, for the record: enough to distinguish keys, too little to call with."""
    return f"key:{(_from_headers(request) or '')[-4:]}"


def _from_headers(request: HTTPConnection) -> str | None:
    return _bearer(request) or request.headers.get("x-api-key") or None


def _bearer(request: HTTPConnection) -> str | None:
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    return credentials.strip() or None if scheme.lower() == "bearer" else None


def _nothing(request: HTTPConnection) -> BadKey:
    scheme = request.headers.get("authorization", "").partition(" ")[0]
    # The header's content is not shown: without the word Bearer, it may be the key itself.
    return BadKey("Authorization does not begin with Bearer" if scheme and scheme.lower() != "bearer" else "No key was sent")
