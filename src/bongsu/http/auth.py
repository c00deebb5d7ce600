"""Who may call: an API key for server calls, a member token for member calls, never the one for the other."""

from __future__ import annotations

from fastapi import Request

from bongsu.errors import BadKey, WrongKind
from bongsu.keys import Keys

SESSION_COOKIE = "bongsu_session"


class Gate:
    """The dependencies endpoints name: `Depends(gate.server)` and `Depends(gate.member)`."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def server(self, request: Request) -> None:
        given = _given(request)
        if self._keys.is_api_key(given):
            return
        self._keys.member_of(given)  # raises unless it is a member's valid token
        raise WrongKind("This call takes an API key, and a member token was sent")

    async def member(self, request: Request) -> str:
        given = _given(request)
        if self._keys.is_api_key(given):
            raise WrongKind("This call takes a member token, and an API key was sent")
        return self._keys.member_of(given)


def _given(request: Request) -> str:
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    if key := request.headers.get("x-api-key"):
        return key
    # Only EventSource needs the cookie, because it cannot send headers; it never carries an API key.
    if cookie := request.cookies.get(SESSION_COOKIE):
        return cookie
    raise BadKey(f"{scheme} is not a way to call" if scheme and scheme.lower() != "bearer" else "No key was sent")
