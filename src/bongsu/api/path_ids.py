"""Ids in paths are opaque: `%2F` in an id is a character of the id, and never changes which route a request takes.

ASGI servers decode a path before it is routed, so `/api/members/bob%2Fdevices` would be the devices of bob. Here an encoded
slash becomes a character that no id can have; routes split the path at the real slashes, and `PathId` puts it back.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from pydantic import BeforeValidator
from starlette.types import ASGIApp, Receive, Scope, Send

from bongsu.model import Id

# Control characters are refused in ids: a route that takes an id by another type than PathId refuses an encoded slash.
_SLASH, _REFUSED = "\x1f", "\x00"


def _with_slashes(given: str) -> str:
    return given.replace(_SLASH, "/")


# An id in a path.
PathId = Annotated[Id, BeforeValidator(_with_slashes)]


class OpaqueIds:
    """ASGI middleware around everything that looks at the path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes = scope.get("raw_path") or b""
        if b"%" in raw or _SLASH in scope.get("path", ""):
            scope["path"] = _opaque(raw, scope["path"])
        await self._app(scope, receive, send)


def _opaque(raw: bytes, path: str) -> str:
    """The decoded path, with another character for each encoded slash. A path that has that character itself is refused."""
    if b"%2f" not in raw.lower():
        return path.replace(_SLASH, _REFUSED)
    segments = (unquote(segment).replace(_SLASH, _REFUSED) for segment in raw.decode("latin-1").split("/"))
    return "/".join(segment.replace("/", _SLASH) for segment in segments)
