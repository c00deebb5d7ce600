"""A real RabbitMQ on loopback, for the tests and the benchmarks: named in the environment, or started from installed
binaries, which are installed from Debian's packages where we may.

The names of our queues are fixed, so a test needs a virtual host of its own: `empty` makes one by deleting what Bongsu
declares, or takes another after a crash: RabbitMQ 3.10 does not find a queue again that was deleted and declared shortly
before it was killed. Start one server per process, and keep the tests that use it in few files.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aio_pika

from bongsu.ingress.rabbitmq.topology import EXCHANGES, QUEUES
from tests.support.debian import PackageMissing, find_or_install
from tests.support.servers import (
    ENVIRONMENT,
    MEMORY_DIRECTORY,
    ServerMissing,
    _Account,
    _Daemon,
    _free_port,
    _has_room,
    _must_be_usable,
    _Server,
    _start,
)

# The script that runs the server as we are. The one in PATH wants to be root or the account `rabbitmq`.
SCRIPT = "/usr/lib/rabbitmq/bin/rabbitmq-server"
# Virtual hosts for tests that kill the server, and for those that come after. Each takes 50 ms of every start.
FRESH = [f"fresh-{number}" for number in range(16)]
# A virtual host whose work queues are full with a few messages, by a policy as an operator sets one.
SHORT, SHORT_LENGTH = "short", 5
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"


def find_rabbitmq() -> RabbitServer:
    """The RabbitMQ named by TEST_RABBITMQ_URL, whose virtual host belongs to one test run alone and is emptied; else one of
    ours. One that runs on the usual port is left alone: our queues in its virtual host may be somebody's."""
    named = os.environ.get("TEST_RABBITMQ_URL")
    if named:
        return RabbitServer(_must_be_usable("TEST_RABBITMQ_URL", named, _why_no_login))
    return start_rabbitmq()


def start_rabbitmq() -> RabbitServer:
    """A private one."""
    try:
        script = find_or_install("RabbitMQ", "rabbitmq-server", _installed_script)
    except PackageMissing as missing:
        raise ServerMissing(f"{missing} TEST_RABBITMQ_URL=amqp://user:password@host:port/vhost names another.") from None
    return _start(RabbitServer, _RabbitDaemon(Path(script)))


def _installed_script() -> str | None:
    return SCRIPT if Path(SCRIPT).is_file() and shutil.which("erl") else None


class RabbitServer(_Server):
    """After `crash` and `start` it has the messages that it had confirmed, in the virtual hosts of `fresh_url`."""

    def __init__(self, url: str, daemon: _Daemon | None = None) -> None:
        super().__init__(url, daemon)
        self._unused = list(FRESH)
        self._has_crashed = False

    def fresh_url(self) -> str:
        """Of a virtual host that no test has used, for a test that kills the server."""
        daemon = self._own()
        if not self._unused:
            # All used up: begin again with an empty server.
            daemon.discard()
            daemon.start()
            self._unused = list(FRESH)
        return self._of(self._unused.pop())

    def crash(self) -> None:
        super().crash()
        self._has_crashed = True

    def empty(self) -> None:
        """Let the next test begin without queues and exchanges of Bongsu."""
        if self._has_crashed:
            self.url, self._has_crashed = self.fresh_url(), False
        _run(_delete_all(self.url))

    def _of(self, virtual_host: str) -> str:
        return urlsplit(self.url)._replace(path=f"/{virtual_host}").geturl()

    def short_url(self) -> str:
        """Of the virtual host with short queues, emptied."""
        self._own()
        _run(_delete_all(url := self._of(SHORT)))
        return url


async def _delete_all(url: str) -> None:
    async with await aio_pika.connect(url) as connection, connection.channel(publisher_confirms=False) as channel:
        for queue in QUEUES:
            await channel.queue_delete(queue.name)
            await channel.queue_delete(queue.dead_letters)
        for exchange in EXCHANGES:
            await channel.exchange_delete(exchange)


def _definitions() -> dict[str, Any]:
    """The account that is usual, and some virtual hosts."""
    salt = os.urandom(4)
    password = base64.b64encode(salt + hashlib.sha256(salt + b"guest").digest()).decode()
    hosts = ["/", *FRESH, SHORT]
    policy = {"pattern": "_queue$", "apply-to": "queues", "priority": 0, "definition": {"max-length": SHORT_LENGTH}}
    everything = {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
    return {
        "users": [{"name": "guest", "password_hash": password, "tags": "administrator"}],
        "vhosts": [{"name": host} for host in hosts],
        "permissions": [{"vhost": host, **everything} for host in hosts],
        "policies": [{"vhost": SHORT, "name": "short", **policy}],
    }


class _RabbitDaemon(_Daemon):
    def __init__(self, script: Path) -> None:
        self._port, self._distribution_port, self._epmd_port = _free_port(), _free_port(), _free_port()
        # kill -9, so that every end of the server is a crash; it recovers what it has confirmed.
        super().__init__(
            "rabbitmq", f"amqp://guest:guest@127.0.0.1:{self._port}/", _why_no_greeting, signal.SIGKILL, _Account()
        )
        self._script = script
        if _has_room(MEMORY_DIRECTORY):
            self.bases = (MEMORY_DIRECTORY, *self.bases)

    def prepare(self, home: Path) -> None:
        (home / "enabled_plugins").write_text("[].\n")
        (home / "definitions.json").write_text(json.dumps(_definitions()))
        (home / "rabbitmq.conf").write_text(
            "loopback_users = none\nvm_memory_high_watermark.absolute = 1GB\ndisk_free_limit.absolute = 50MB\n"
            f"load_definitions = {home}/definitions.json\n"
            "log.console = true\nlog.console.level = warning\nlog.file = false\n"
        )

    def command(self, home: Path) -> Sequence[str | Path]:
        here = "127.0.0.1"
        environment = {
            "HOME": home,  # of the Erlang cookie
            # The script becomes the server instead of starting it, so that a kill reaches it.
            "RUNNING_UNDER_SYSTEMD": "1",
            "ERL_EPMD_PORT": self._epmd_port,
            "ERL_EPMD_ADDRESS": here,
            "RABBITMQ_NODENAME": f"test{self._port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": here,
            "RABBITMQ_NODE_PORT": self._port,
            "RABBITMQ_DIST_PORT": self._distribution_port,
            "RABBITMQ_MNESIA_BASE": home / "data",
            "RABBITMQ_LOG_BASE": home,
            "RABBITMQ_ENABLED_PLUGINS_FILE": home / "enabled_plugins",
            "RABBITMQ_CONFIG_FILE": home / "rabbitmq.conf",
            # Few threads that do not spin while they wait: other tests run beside it.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
        }
        return ["env", *(f"{name}={value}" for name, value in environment.items()), self._script]

    @property
    def after(self) -> str:
        """epmd, which the server has started, outlives it."""
        return f"ERL_EPMD_PORT={self._epmd_port} epmd -kill"

    def discard(self) -> None:
        had_home = self._home is not None
        super().discard()
        if had_home:
            subprocess.run(["/bin/sh", "-c", self.after], check=False, env=ENVIRONMENT, capture_output=True)


def _why_no_greeting(url: str) -> str | None:
    """Why this RabbitMQ does not take connections yet."""
    address = urlsplit(url)
    assert address.hostname and address.port
    with suppress(OSError), socket.create_connection((address.hostname, address.port), timeout=3) as connection:
        connection.sendall(PROTOCOL_HEADER)
        return None if connection.recv(1) == b"\x01" else "it does not speak AMQP 0-9-1"
    return "it does not answer"


def _why_no_login(url: str) -> str | None:
    try:
        _run(_log_in(url))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


async def _log_in(url: str) -> None:
    async with await aio_pika.connect(url, timeout=5):
        pass


def _run(work: object) -> None:
    """In a thread of its own: the test may have an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()  # type: ignore[arg-type]
