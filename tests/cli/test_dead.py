"""`bongsu dead` and what the doctor says of channels, as an operator uses them."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest
from rich.console import Console

from bongsu.cli import main as cli
from bongsu.cli.dead_view import ReplayCommand, facts, lines_of
from bongsu.desk.dead_filter import DeadFilter
from bongsu.desk.dead_letters import DeadLetter
from bongsu.runtime.redis_signals import RedisSignals
from bongsu.runtime.signals import LocalSignals
from bongsu.runtime.topics import DELIVERIES_TOPIC
from bongsu.settings import Settings
from bongsu.store import Store, migrate
from bongsu.store.core.query import same
from tests.support.deliveries import (
    SOON,
    add_delivery_in_state,
    add_guaranteed_message,
    add_one_delivery,
    delivery_columns,
    failed_event,
)
from tests.support.processes import bongsu, forks
from tests.support.replays import dead_letters
from tests.support.rows import add_attempt
from tests.support.servers import RedisServer

_T = TypeVar("_T")


class Do:
    """Does something with the store, in a loop of its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, work: Callable[[Store], Awaitable[_T]]) -> _T:
        async def run() -> _T:
            store = Store.open(self._settings)
            try:
                await migrate(store)
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())


@pytest.fixture
def with_store(settings: Settings) -> Do:
    return Do(settings)


async def fill(store: Store) -> tuple[int, UUID]:
    event_id = await failed_event(store)
    one = await add_one_delivery(store, "FAIL", code="UNREGISTERED", detail="said \x1b[31m FCM")
    async with store.transaction() as tx:
        await add_attempt(tx, one, epoch=3, code="UNREGISTERED")
    return one, event_id


def test_an_operator_lists_looks_and_replays(with_store: Do, environment: dict[str, str]) -> None:
    one, event_id = with_store(fill)
    wide = {**environment, "USER": "min-ji", "LOGNAME": "min-ji"}
    listed = bongsu("dead", "list", environment=wide).stdout.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [
        [str(event_id), "FAILED", "KeyError"], [str(one), "FAIL", "UNREGISTERED"],
    ]  # fmt: skip
    shown = bongsu("dead", "show", str(one), environment=wide).stdout
    for words in (
        "사과 가격이 내렸어요",
        "the app was removed",
        "120 ms, UNREGISTERED",
        "until the member has registered again",
    ):
        assert words in shown
    assert "\x1b" not in shown
    assert "it goes on where it was" in bongsu("dead", "show", str(event_id), environment=wide).stdout

    dry = bongsu("dead", "replay", "--state", "fail", "--dry-run", environment=wide)
    assert (dry.returncode, dry.stdout) == (0, "1 matched, 0 replayed\n")
    assert with_store(lambda store: delivery_columns(store, one, "status")) == "FAIL"
    done = bongsu("dead", "replay", "--state", "fail", environment=wide)
    assert (done.returncode, done.stdout) == (0, "1 matched, 1 replayed\n")
    assert with_store(lambda store: delivery_columns(store, one, "status", "epoch")) == ("READY", 3)
    again = bongsu("dead", "replay", "--code", "UNREGISTERED", environment=wide)
    assert again.stdout == "0 matched, 0 replayed\n"

    async def who(store: Store) -> list[str]:
        async with store.read() as tx:
            return [row["requested_by"] for row in await tx.fetch(same("SELECT requested_by FROM bongsu_runs")())]

    assert with_store(who) == ["cli:min-ji"]


def test_what_cannot_be_done_is_one_line_that_names_the_cure(tmp_path: Path) -> None:
    environment = {"BONGSU_DATA_DIR": str(tmp_path)}
    for arguments, cure in (
        (("dead", "replay"), "No filter was given, such as --code or --id."),
        (("dead", "list", "--channel", "fax"), "--channel must be"),
        (("dead", "list", "--user", ""), "--user"),
        (("dead", "list", "--kind", "event", "--channel", "push"), "nothing fits"),
        (("dead", "show", "7"), "There is no dead letter 7."),
        (("dead", "show", "x"), "--id must be a delivery's number"),
        (("job", "run", "nap"), "There is no job 'nap', there is recover, "),
    ):
        done = bongsu(*arguments, environment=environment)
        assert done.returncode == 1, arguments
        assert done.stderr.startswith("bongsu: ")
        assert cure in done.stderr
        assert done.stderr.count("\n") == 1
    assert bongsu("dead", "list", environment=environment).stdout == "No dead letters.\n"


def _at_a_terminal(path: str, arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    """A command whose streams are all a terminal, in a forked process."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["bongsu", *arguments]
    terminal = os.open(path, os.O_RDWR | os.O_NOCTTY)
    for number in range(3):
        os.dup2(terminal, number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    cli.main()


def typed(answer: str, *arguments: str, environment: dict[str, str]) -> tuple[int | None, str]:
    """Run it at a terminal on which this is typed: its exit code and all that was shown."""
    ours, theirs = pty.openpty()
    process = forks.Process(target=_at_a_terminal, args=(os.ttyname(theirs), arguments, environment))
    os.write(ours, f"{answer}\n".encode())
    process.start()
    # A terminal gives a few kilobytes at a time, and a progress bar on a busy machine writes more than that.
    shown = b""
    while select.select([ours], [], [], 0.05)[0] or process.is_alive():
        if select.select([ours], [], [], 0)[0]:
            shown += os.read(ours, 65536)
    process.join()
    os.close(theirs)
    os.close(ours)
    return process.exitcode, shown.decode()


def test_on_a_terminal_it_asks_first(tmp_path: Path) -> None:
    do = Do(Settings(data_dir=tmp_path))
    one = do(lambda store: add_one_delivery(store, "FAIL"))
    environment = {"BONGSU_DATA_DIR": str(tmp_path), "TERM": "xterm", "COLUMNS": "100"}
    replay = ("dead", "replay", "--state", "FAIL")
    code, shown = typed("n", *replay, environment=environment)
    assert (code, "Replay 1 dead letter?" in shown, "Aborted" in shown) == (1, True, True)
    assert do(lambda store: delivery_columns(store, one, "status")) == "FAIL"
    code, shown = typed("y", *replay, environment=environment)
    assert (code, "1 matched, 1 replayed" in shown, "━" in shown) == (0, True, True)
    assert do(lambda store: delivery_columns(store, one, "status")) == "READY"
    code, shown = typed("", *replay, "--yes", environment=environment)
    assert (code, "?" in shown) == (0, False)


async def test_workers_of_other_processes_are_woken_by_a_replay_over_redis(
    store: Store, settings: Settings, redis_server: RedisServer
) -> None:
    url = redis_server.url
    await add_one_delivery(store, "FAIL")
    elsewhere, heard = RedisSignals(url), asyncio.Event()
    await elsewhere.start()
    try:
        with elsewhere.listen(DELIVERIES_TOPIC, lambda data: heard.set() if data is not None else None):
            await elsewhere.wait_subscribed(DELIVERIES_TOPIC)
            command = ReplayCommand(
                settings.model_copy(update={"redis_url": url}), DeadFilter.model_validate({"state": "FAIL"})
            )
            assert await command.run(1, Console(stderr=True)) == (1, 1)
            await heard.wait()
    finally:
        await elsewhere.stop()


async def test_the_details_of_one_name_its_recipient_and_channel(store: Store, settings: Settings) -> None:
    async with store.transaction() as tx:
        said = await add_guaranteed_message(tx, "at_most_once", SOON)
        ids = {
            name: await add_delivery_in_state(
                tx, said, "UNKNOWN", f"m-{name}", channel=name, code=None, recovery_rounds=1, is_retryable=True
            )
            for name in ("PUSH", "SMS", "EMAIL")
        }

    async def known(name: str) -> dict[str, str]:
        letter = await dead_letters(store, LocalSignals()).show(ids[name])
        assert isinstance(letter, DeadLetter)
        assert len(list(lines_of(letter, settings.zone))) > 8
        return dict(facts(letter, settings.zone))

    assert (await known("PUSH"))["by"] == "PUSH to device d-0 (gone)"
    assert (await known("SMS"))["by"] == "SMS to phone, which is no longer known"
    of_mail = await known("EMAIL")
    assert of_mail["by"] == "EMAIL to e-mail address, which is no longer known"
    assert of_mail["rounds"] == "1 of 3 given again, the recovery job gives it another"
    assert (of_mail["tries"], of_mail["type"]) == ("none that was answered", "PRICE_DROP, at_most_once")


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_doctor_looks_where_channels_lead(tmp_path: Path, listening: int) -> None:
    house = {"BONGSU_DATA_DIR": str(tmp_path / "none"), "COLUMNS": "300"}
    simulated = bongsu("doctor", environment=house)
    assert simulated.returncode == 0
    for line in ("push is simulated", "e-mail is simulated", "SMS is simulated", "next recovery at"):
        assert line in simulated.stdout
    there = {
        "BONGSU_FCM_URL": f"http://127.0.0.1:{listening}",
        "BONGSU_SMTP_URL": f"smtp://127.0.0.1:{listening}",
        "BONGSU_EMAIL_FROM": "a@b.example",
        "BONGSU_SMS_URL": f"http://127.0.0.1:{listening}/sms",
    }
    reached = bongsu("doctor", environment=house | there)
    assert (reached.returncode, reached.stdout.count("is reachable")) == (0, 3)
    gone = {name: value.replace(str(listening), "1") for name, value in there.items()}
    lost = bongsu("doctor", environment={**house, **gone})
    assert lost.returncode == 1
    for cure in ("BONGSU_FCM_URL 127.0.0.1:1", "BONGSU_SMTP_URL 127.0.0.1:1", "BONGSU_SMS_URL 127.0.0.1:1"):
        assert cure in lost.stdout


def test_the_simulator_is_a_command(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    faults.write_text("{")
    done = bongsu("simulator", "--port", "0", "--faults", str(faults), environment={})
    assert (done.returncode, done.stderr.startswith("bongsu: ")) == (1, True)
