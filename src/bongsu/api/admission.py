"""Which connections are taken: so many from one address, and none with the last descriptors of the process."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import time
from collections import Counter
from collections.abc import Callable

from bongsu.runtime import telemetry

# Descriptors kept for the store, Redis, providers and files: without them the requests that were taken would fail.
RESERVED_DESCRIPTORS = 100
# One line in so many seconds: refusals come by the thousand.
LOG_SECONDS = 10.0

_log = telemetry.log("bongsu.http")


def descriptor_limit() -> int:
    """How many descriptors connections may take."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return 2**31
    return allowed - min(RESERVED_DESCRIPTORS, allowed // 8)


class Admission:
    """Counts open connections by address. Those of a trusted proxy are not counted: they come from many clients."""

    def __init__(self, most_per_address: int, is_trusted: Callable[[str], bool]) -> None:
        """With `most_per_address` 0, any number."""
        self._most = most_per_address
        self._is_trusted = is_trusted
        self._descriptors = descriptor_limit()
        self._open: Counter[str] = Counter()
        self._logged_at = dict.fromkeys(("descriptors", "address"), float("-inf"))

    def __len__(self) -> int:
        """How many addresses are counted."""
        return len(self._open)

    def enter(self, transport: asyncio.Transport, client: tuple[str, int] | None) -> str | None:
        """Take a connection. Returns what to `leave` with when it ends; None if it has to be closed now."""
        # The lowest free number is given out, so it is the number of those in use.
        if (number := transport.get_extra_info("socket").fileno()) >= self._descriptors:
            if self._may_log("descriptors"):
                cure = "allow more with `ulimit -n`, LimitNOFILE= or --ulimit nofile"
                _log.error("out of file descriptors, closing new connections", open=number, cure=cure)
            return None
        if not self._most or client is None or self._is_trusted(client[0]):
            return ""
        address = _group(client[0])
        if self._open[address] >= self._most:
            if self._may_log("address"):
                cure = "if it is your proxy, name it in FORWARDED_ALLOW_IPS; else see BONGSU_MAX_CONNECTIONS_PER_ADDRESS"
                _log.warning("too many connections from one address, closing new ones", address=address, cure=cure)
            return None
        self._open[address] += 1
        return address

    def leave(self, address: str) -> None:
        if not address:
            return
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def _may_log(self, kind: str) -> bool:
        now = time.monotonic()
        if now < self._logged_at[kind] + LOG_SECONDS:
            return False
        self._logged_at[kind] = now
        return True


def _group(host: str) -> str:
    """The address to count by. A client with IPv6 has a whole /64 to call from."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return host if address.is_loopback else str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
