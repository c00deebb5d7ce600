"""A real MariaDB on loopback, in the way of tests/support/servers.py: the one named in TEST_MYSQL_URL, one on the usual
port, or one of our own, for which Debian's package is installed if we may. A MySQL 8 may be named too.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from tests.support.debian import PackageMissing, find_or_install
from tests.support.servers import (
    DATABASE_PREFIX,
    MEMORY_DIRECTORY,
    ServerMissing,
    ServerUnusable,
    _Account,
    _Daemon,
    _database_name,
    _first_usable,
    _free_port,
    _has_room,
    _must_be_usable,
    _postgres_account,
    _Server,
    _start,
)

MARIADB_PORT = 3306


def find_mariadb() -> MariadbServer:
    """The first that can be had."""
    if named := os.environ.get("TEST_MYSQL_URL"):
        return MariadbServer(_must_be_usable("TEST_MYSQL_URL", named, _why_no_databases))
    tried = ["TEST_MYSQL_URL is not set"]
    if running := _first_usable([f"mysql://root@127.0.0.1:{MARIADB_PORT}/mysql"], _why_no_databases, tried):
        return MariadbServer(running)
    try:
        find_or_install("MariaDB to test with", "mariadb-server mariadb-client", _installed)
    except PackageMissing as missing:
        raise ServerMissing(f"{'; '.join(tried)}. {missing}") from None
    return start_mariadb()


def start_mariadb() -> MariadbServer:
    """A private one, from installed binaries."""
    binary = _installed()
    if binary is None:
        raise ServerMissing("mariadbd is not installed: `apt install mariadb-server`")
    return _start(MariadbServer, _MariadbDaemon(Path(binary)))


class MariadbServer(_Server):
    """`url` is that of a maintenance database; tests work in databases of their own."""

    def create_database(self) -> str:
        name = DATABASE_PREFIX + secrets.token_hex(8)
        self._run(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def drop_database(self, url: str) -> None:
        name = _database_name(url)
        if not name.startswith(DATABASE_PREFIX):
            raise ValueError(f"{name!r} is not from create_database: on a found server it may be somebody's data")
        self._run(f"DROP DATABASE IF EXISTS {name}")

    def command_line(self, url: str, text: str) -> str:
        """What the mariadb command line prints for a statement: a client that is not ours."""
        client = shutil.which("mariadb") or shutil.which("mysql")
        if client is None:
            raise ServerMissing("the mariadb command line is not installed: `apt install mariadb-client`")
        given = options_of(url)
        command = [
            client, "--no-defaults", "--batch", "--skip-column-names", f"--host={given['host']}", f"--port={given['port']}",
            f"--user={given['user']}", "--protocol=tcp", "--default-character-set=utf8mb4", given["database"],
        ]  # fmt: skip
        environment = {**os.environ, "MYSQL_PWD": given["password"]}
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise ServerUnusable(done.stderr)
        return done.stdout

    def _run(self, text: str) -> None:
        with closing(connect(self.url)) as connection, connection.cursor() as cursor:
            cursor.execute(text)


def options_of(url: str) -> dict[str, Any]:
    """What the drivers call the parts of a URL."""
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port or MARIADB_PORT,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": parts.path.lstrip("/"),
    }


def connect(url: str, **options: Any) -> Any:
    """A connection of PyMySQL's, which commits each statement unless it is told otherwise."""
    return pymysql.connect(**({"autocommit": True} | options_of(url) | options))


def _installed() -> str | None:
    return shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _why_no_databases(url: str) -> str | None:
    if urlsplit(url).scheme not in ("mysql", "mariadb"):
        return "it is no mysql:// URL"
    try:
        with closing(connect(url, connect_timeout=3)) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW GRANTS")
            grants = " ".join(str(row[0]) for row in cursor.fetchall())
    except (pymysql.Error, OSError) as error:
        return str(error)
    return None if "ALL PRIVILEGES ON *.*" in grants or "CREATE" in grants else "the user may not create databases"


class _MariadbDaemon(_Daemon):
    def __init__(self, binary: Path) -> None:
        self._port = _free_port()
        url = f"mysql://root@127.0.0.1:{self._port}/mysql"
        # SIGKILL: what was committed is there after the next start, and nobody waits for a flush.
        super().__init__("mariadb", url, _why_no_databases, signal.SIGKILL, _mariadb_account())
        self._binary = binary
        if _has_room(MEMORY_DIRECTORY):
            self.bases = (MEMORY_DIRECTORY, *self.bases)

    def prepare(self, home: Path) -> None:
        made = subprocess.run(
            ["mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db",
             f"--datadir={home / 'data'}", f"--tmpdir={home}"],
            check=False, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            **self._account,
        )  # fmt: skip
        if made.returncode:
            raise ServerUnusable(f"mariadb-install-db failed:\n{made.stdout.decode(errors='replace')[-2000:]}")

    def command(self, home: Path) -> Sequence[str | Path]:
        return [
            self._binary, "--no-defaults", f"--datadir={home / 'data'}", f"--port={self._port}", "--bind-address=127.0.0.1",
            f"--socket={home / 'mariadb.sock'}", f"--pid-file={home / 'mariadb.pid'}", "--character-set-server=utf8mb4",
            # A server deletes what another one has left in the common folder, or is using there.
            f"--tmpdir={home}", "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=2",
            # A deadlock is a defect: see tests/support/servers.py.
            "--innodb-print-all-deadlocks=ON",
        ]  # fmt: skip


def _mariadb_account() -> _Account:
    """MariaDB refuses to run as root too."""
    return _postgres_account()
