"""Headers of every answer that keep browsers and caches from misusing it."""

from __future__ import annotations

from collections.abc import Iterable

Headers = Iterable[tuple[bytes, bytes]]

# A browser must not guess that JSON with a member's text in it is a page or a script.
_NOSNIFF = (b"x-content-type-options", b"nosniff")
# Most answers are about members or for operators, and no cache may keep them. Files say for themselves how long they keep.
_NO_STORE = (b"cache-control", b"no-store")
# For pages: not inside a frame of another site, and their address is not sent to other sites.
_PAGE = [(b"x-frame-options", b"DENY"), (b"referrer-policy", b"same-origin")]


def with_security_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers, and those that are missing of ours."""
    sent = list(headers)
    names = dict(sent)
    if _NOSNIFF[0] not in names:
        sent.append(_NOSNIFF)
    if _NO_STORE[0] not in names and b"etag" not in names:
        sent.append(_NO_STORE)
    if names.get(b"content-type", b"").startswith(b"text/html"):
        sent += _PAGE
    return sent
