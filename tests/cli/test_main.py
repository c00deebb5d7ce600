"""The verbs of the command line, each in a process of its own."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from uuid import uuid4

import jwt
import pytest

from bongsu.desk.doctor import _worst_clock
from bongsu.store import Store
from bongsu.store.desk.processes import Process, put_process, remove_process
from tests.support.processes import BONGSU, bongsu


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stdout
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("bongsu: ")
    return line


def unwrapped(done: subprocess.CompletedProcess[str]) -> str:
    """What it printed, without the line breaks of a narrow terminal."""
    return " ".join(done.stdout.split())


def test_the_version_is_printed() -> None:
    assert bongsu("--version", environment={}).stdout.startswith("bongsu 0.")


def test_migrate_says_what_it_did(environment: dict[str, str]) -> None:
    assert "Migrated" in bongsu("migrate", environment=environment).stdout
    assert "is up to date" in bongsu("migrate", environment=environment).stdout


def test_token_and_apikey_print_what_they_are_named_after(environment: dict[str, str]) -> None:
    token = bongsu("token", "철수", "--ttl", "2h", environment=environment).stdout.strip()
    claims = jwt.decode(token, environment["BONGSU_JWT_SECRET"], algorithms=["HS256"], options={"require": ["exp"]})
    assert claims["sub"] == "철수"
    assert bongsu("apikey", environment=environment).stdout == "server-key-of-the-tests\n"


@pytest.mark.parametrize("ttl", ["", "1", "h", "-1h", "0s", "1w", "999999999d"])
def test_a_lifetime_that_is_none_is_refused(tmp_path: Path, ttl: str) -> None:
    done = bongsu("token", "m", f"--ttl={ttl}", environment={"BONGSU_DATA_DIR": str(tmp_path)})
    assert "--ttl" in refused(done)


def test_one_event_is_published_once(migrated: dict[str, str]) -> None:
    arguments = ["publish", "post.liked", "--ref", "1", "--actor", "a", "--target", "b", "--payload", '{"n":1}']
    event_id = str(uuid4())
    first = bongsu(*arguments, "--id", event_id, environment=migrated)
    assert first.stdout == f"{event_id} accepted\n", first.stderr
    assert bongsu(*arguments, "--id", event_id, environment=migrated).stdout == f"{event_id} duplicate\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Give either a TYPE or --file"),
        (["x", "--file", "y"], "Give either a TYPE or --file"),
        (["x", "--payload", "{"], "--payload is not JSON"),
        (["x", "--payload", "[]"], "payload: Input should be a valid dictionary"),
        (["x", "--payload", '{"a":NaN}'], "payload: contains NaN"),
        (["x", "--id", "7"], "event_id: Input should be a valid UUID"),
        ([""], "event_type: String should have at least 1"),
        (["--file", "no such file"], "no such file cannot be read: No such file"),
        (["--file", "/"], "/ cannot be read: Is a directory"),
    ],
)
def test_a_bad_publish_is_one_line_that_names_the_cure(tmp_path: Path, arguments: list[str], says: str) -> None:
    assert says in refused(bongsu("publish", *arguments, environment={"BONGSU_DATA_DIR": str(tmp_path)}))


def test_a_file_is_published_and_again_adds_nothing(migrated: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "big.ndjson"
    lines = [json.dumps({"eventType": "product.updated", "refId": str(number)}) for number in range(3000)]
    lines += [lines[0], json.dumps({"eventType": "product.updated", "eventId": str(uuid4())})]
    file.write_text("\n".join(lines))
    first = bongsu("publish", "--file", str(file), environment=migrated)
    assert (first.returncode, first.stdout) == (0, "3002 accepted, 0 duplicates, 0 rejected\n"), first.stderr
    again = bongsu("publish", "--file", str(file), environment=migrated)
    assert again.stdout == "0 accepted, 3002 duplicates, 0 rejected\n"
    # Tomorrow's file of the same name holds tomorrow's events, even where they read the same.
    os.utime(file, (1, 1))
    assert bongsu("publish", "--file", str(file), environment=migrated).stdout == "3001 accepted, 1 duplicates, 0 rejected\n"


def test_bad_lines_are_named_and_the_others_stand(migrated: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "mixed.ndjson"
    file.write_text('{"eventType":"x"}\nnonsense\n{"eventType":"","[/b]":1}\n')
    done = bongsu("publish", "--file", str(file), environment=migrated)
    assert done.returncode == 1
    assert done.stdout == "1 accepted, 0 duplicates, 2 rejected\n", done.stderr
    assert "line 2" in done.stderr
    assert "line 3: eventType" in done.stderr


def test_events_are_read_from_a_pipe(migrated: dict[str, str]) -> None:
    done = bongsu("publish", "--file", "-", environment=migrated, stdin='{"eventType":"x"}\n{"eventType":"y"}\n')
    assert done.stdout == "2 accepted, 0 duplicates, 0 rejected\n", done.stderr
    # What comes through a pipe a second time is new: there is nothing to resume.
    again = bongsu("publish", "--file", "-", environment=migrated, stdin='{"eventType":"x"}\n')
    assert again.stdout == "1 accepted, 0 duplicates, 0 rejected\n"


def test_behaviours_are_loaded_and_again_change_nothing(migrated: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "behaviors.ndjson"
    line = '{{"userId":"m-{}","productId":"p","action":"VIEW","at":"2026-01-01T00:00:00Z"}}'
    file.write_text("\n".join(line.format(number) for number in range(2000)) + '\n{"userId":"x"}\n')
    for _ in range(2):
        done = bongsu("load", "behaviors", "--file", str(file), environment=migrated)
        assert done.stdout == "2000 accepted, 0 duplicates, 1 rejected\n", done.stderr
        assert "line 2001" in done.stderr
    assert "cannot be loaded" in refused(bongsu("load", "ghosts", "--file", str(file), environment=migrated))


def test_a_terminal_sees_a_bar(tmp_path: Path) -> None:
    file = tmp_path / "some.ndjson"
    file.write_text('{"eventType":"x"}\n' * 10)
    ours, theirs = pty.openpty()
    environment = {"BONGSU_DATA_DIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(
        [*BONGSU, "publish", "--file", str(file)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=60,
        check=True,
    )
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.stdout == b"10 accepted, 0 duplicates, 0 rejected\n"
    assert "some.ndjson" in shown
    assert "━" in shown


def test_the_doctor_finds_a_working_installation_good(migrated: dict[str, str]) -> None:
    done = bongsu("doctor", environment=migrated)
    assert done.returncode == 0, done.stdout
    assert "answers and is up to date" in done.stdout
    assert "✗" not in done.stdout


def test_the_doctor_before_the_first_start_creates_nothing(tmp_path: Path) -> None:
    done = bongsu("doctor", environment={"BONGSU_DATA_DIR": str(tmp_path / "data")})
    assert done.returncode == 0, done.stdout
    assert "will be made" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_doctor_describes_a_store_that_is_away_once() -> None:
    done = bongsu("doctor", environment={"BONGSU_DATABASE_URL": "postgresql://bongsu@127.0.0.1:1/none"})
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert text.count("The store does not answer") == 1
    # The clock and the counters.
    assert text.count("not checked: see store") == 2


async def test_the_doctor_lists_the_clock_of_each_process_and_names_the_worst(
    store: Store, environment: dict[str, str]
) -> None:
    async with store.transaction() as tx:
        await put_process(tx, "right:1", ["api", "gateway"], 0.25)
    good = bongsu("doctor", environment=environment)
    assert good.returncode == 0, good.stdout
    assert "right:1 (api, gateway) is 0.250 s ahead of the store's" in unwrapped(good)
    async with store.transaction() as tx:
        await put_process(tx, "wrong:1", ["clock"], -30.0)
        await put_process(tx, "worst:1", ["worker"], 7200.0)
    bad = bongsu("doctor", environment=environment)
    assert bad.returncode == 1
    [mark] = [line for line in bad.stdout.splitlines() if "✗" in line]
    assert mark.split()[:2] == ["✗", "clock"]
    for line in (
        "right:1 (api, gateway) is 0.250 s ahead of the store's",
        "wrong:1 (clock) is 30.000 s behind the store's",
        "worst:1 (worker) runs on a machine whose clock is 7200.000 s ahead of the store's. Correct",
    ):
        assert line in unwrapped(bad)
    here = "this machine's is " if environment["BONGSU_DATABASE_URL"] else "the embedded store uses this machine's own"
    assert here in unwrapped(bad)
    async with store.transaction() as tx:
        await remove_process(tx, "wrong:1")
        await remove_process(tx, "worst:1")
    assert bongsu("doctor", environment=environment).returncode == 0


@pytest.mark.parametrize(
    ("here", "there", "named"),
    [
        (0.0, [], None),
        (0.9, [-0.9], None),
        (2.0, [], "This machine's clock is 2.000 s ahead of the store's"),
        (2.0, [-3.0, 0.1], "h:0 (worker) runs on a machine whose clock is 3.000 s behind the store's"),
        (-4.0, [3.0], "This machine's clock is 4.000 s behind the store's"),
    ],
)
def test_the_worst_clock_is_named_if_it_is_too_far_off(here: float, there: list[float], named: str | None) -> None:
    processes = [Process(f"h:{number}", ("worker",), seconds) for number, seconds in enumerate(there)]
    assert _worst_clock(here, processes) == named


def test_the_doctor_minds_weak_keys(environment: dict[str, str]) -> None:
    done = bongsu("doctor", environment={**environment, "BONGSU_JWT_SECRET": "s", "COLUMNS": "300"})
    assert done.returncode == 1
    assert "shorter than 32 bytes" in done.stdout


def test_the_doctor_names_what_is_wrong_and_the_cure(environment: dict[str, str], tmp_path: Path) -> None:
    credentials = tmp_path / "fcm.json"
    credentials.write_text('{"client_email":"x"}')
    wrong = {
        **environment,
        "BONGSU_REDIS_URL": "redis://127.0.0.1:1/0",
        "BONGSU_RABBITMQ_URL": "amqp://127.0.0.1:1",
        "BONGSU_KAFKA_SERVERS": "127.0.0.1:1",
        "BONGSU_FCM_CREDENTIALS": str(credentials),
    }
    done = bongsu("doctor", environment={**wrong, "COLUMNS": "300"})
    assert done.returncode == 1
    for cure in ("correct BONGSU_REDIS_URL", "Start the broker", "has no private_key, project_id"):
        assert cure in done.stdout
    if environment["BONGSU_DATABASE_URL"]:
        # Once: the clock has no processes to list, and no second finding about it.
        assert done.stdout.count("Run `bongsu migrate`") == 1
    assert "did you mean" in bongsu("doctor", environment={"BONGSU_PROT": "1"}).stdout
