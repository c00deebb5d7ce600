"""The proxy that the environment names: which one for a host, and a tunnel through it."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

# A proxy's answer to CONNECT is a line or two; a longer one is not from a proxy.
MOST_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Proxy:
    host: str
    port: int
    # user:password, or nothing.
    login: str = field(default="", repr=False)

    def headers(self) -> dict[str, str]:
        if not self.login:
            return {}
        return {"Proxy-Authorization": f"Basic {base64.b64encode(self.login.encode()).decode()}"}


class Proxies:
    """HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, in capitals or not, as they were at the start."""

    def __init__(self, uses_proxy: bool = True) -> None:
        self._named = getproxies_environment() if uses_proxy else {}
        self._without = [name.strip().lower() for name in self._named.get("no", "").split(",") if name.strip()]

    def find(self, scheme: str, host: str, port: int) -> Proxy | None:
        """ValueError for a kind of proxy that is not supported: bypassing it is not what was asked for."""
        address = self._named.get(scheme) or self._named.get("all")
        if not address or self._is_without(host, port):
            return None
        url = urlsplit(address if "://" in address else f"http://{address}")
        if url.scheme != "http" or not url.hostname:
            raise ValueError(f"the proxy for {scheme} is not http://host:port")
        login = f"{unquote(url.username or '')}:{unquote(url.password or '')}" if url.username else ""
        return Proxy(url.hostname, url.port or 80, login)

    def _is_without(self, host: str, port: int) -> bool:
        """A name stands for itself and all below it."""
        for name in self._without:
            bare = name.lstrip(".")
            if name == "*" or host == bare or host.endswith(f".{bare}") or f"{host}:{port}" == bare:
                return True
        return False


async def open_tunnel(loop: asyncio.AbstractEventLoop, proxy: Proxy, host: str, port: int) -> asyncio.Transport:
    """A connection on which the next byte goes to host and port. OSError when the proxy has no such."""
    transport, answer = await loop.create_connection(lambda: _Connect(loop), proxy.host, proxy.port)
    try:
        goal = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        lines = {"Host": goal, **proxy.headers()}
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        transport.write(f"CONNECT {goal} HTTP/1.1\r\n{text}\r\n".encode())
        await answer.done
    except BaseException:
        transport.abort()
        raise
    return transport


class _Connect(asyncio.Protocol):
    """Waits for the proxy's answer. `done` is set once it has opened the tunnel."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.done: asyncio.Future[None] = loop.create_future()
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end and len(self._received) <= MOST_BYTES:
            return
        version, _, status = head.split(b"\r\n")[0].partition(b" ")
        if not end or not version.startswith(b"HTTP/1."):
            self._fail("the proxy does not speak HTTP/1.1")
        elif not status.startswith(b"2"):
            self._fail(f"the proxy answered {status[:100].decode('latin-1')}")
        elif rest:
            self._fail("the proxy sent data before the TLS handshake")  # in TLS the client begins
        elif not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the proxy closed the connection{f': {exc}' if exc else ''}")

    def _fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(OSError(why))
