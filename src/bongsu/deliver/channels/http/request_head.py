"""What a request begins with, and where it goes: made once for a URL and its headers, used for many bodies. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from bongsu.deliver.channels.http.proxy import Proxies, Proxy

PORTS = {"http": 80, "https": 443}
# These define where a request ends and whether the connection stays open: the client sets them itself.
OURS = frozenset({"host", "connection", "content-length", "transfer-encoding"})
# Without the second a server may compress its answer, which this client does not decode.
STANDARD = {"User-Agent": "bongsu", "Accept-Encoding": "identity"}

_VISIBLE = re.compile(r"[!-~]+")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")


class Origin(NamedTuple):
    """Where connections lead: any connection to the same origin will do."""

    host: str
    port: int
    is_tls: bool
    # Asked for a tunnel to host and port.
    proxy: Proxy | None = None


class RequestHead(NamedTuple):
    """`start` ends where the body's length follows."""

    origin: Origin
    start: bytes


def make_head(url: str, headers: Mapping[str, str], proxies: Proxies, method: str = "POST") -> RequestHead:
    """Raises ValueError for what no request can carry."""
    target, port = _split(url)
    host = target.hostname or ""
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    lines = {"Host": target.netloc}
    origin = Origin(host, port, target.scheme == "https")
    if (proxy := proxies.find(target.scheme, host, port)) is not None:
        if origin.is_tls:
            origin = origin._replace(proxy=proxy)
        else:
            # A proxy takes plain requests itself, by their whole address.
            origin = Origin(proxy.host, proxy.port, is_tls=False)
            path = f"http://{target.netloc}{path}"
            lines |= proxy.headers()
    given = {name.lower() for name in headers}
    lines |= {name: value for name, value in STANDARD.items() if name.lower() not in given}
    lines |= _checked(headers)
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return RequestHead(origin, f"{method} {path} HTTP/1.1\r\n{text}Content-Length: ".encode("latin-1"))


def _split(url: str) -> tuple[SplitResult, int]:
    if not _VISIBLE.fullmatch(url):
        # urlsplit would quietly leave some of them out.
        raise ValueError("the URL has characters that have to be percent-encoded")
    target = urlsplit(url)
    if target.scheme not in PORTS or not target.hostname:
        raise ValueError("the URL is not http://host or https://host")
    if "@" in target.netloc:
        raise ValueError("the URL has a user: that is for the Authorization header")
    return target, PORTS[target.scheme] if target.port is None else target.port


def _checked(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Error texts name headers and never show their values, which may be secrets."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in OURS:
            raise ValueError(f"no request can carry a header {name!r} of the caller's")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name} has characters that no header can carry")
    return headers
