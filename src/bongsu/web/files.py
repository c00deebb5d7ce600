"""Static files of the package, read once and served with an ETag."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request, Response

HERE = Path(__file__).parent
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class File:
    body: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, name: str) -> File:
        return cls.join([name])

    @classmethod
    def join(cls, names: Sequence[str], head: str = "", tail: str = "") -> File:
        """One file of several, with a text before and after them."""
        paths = [HERE / name for name in names]
        body = head.encode() + b"\n".join(path.read_bytes() for path in paths) + tail.encode()
        return cls(body, MEDIA_TYPES[paths[0].suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')

    def answer(self, request: Request, cache_control: str, **headers: str) -> Response:
        sent = {"ETag": self.etag, "Cache-Control": cache_control, "X-Content-Type-Options": "nosniff", **headers}
        if self._is_known(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=sent)
        return Response(self.body, media_type=self.media_type, headers=sent)

    def _is_known(self, given: str) -> bool:
        """RFC 9110: a list of tags or `*`; a proxy that compresses the body marks the tag as weak."""
        tags = [tag.strip().removeprefix("W/") for tag in given.split(",")]
        return "*" in tags or self.etag in tags
