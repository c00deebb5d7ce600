"""`bongsu job`, as an operator uses it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from bongsu import App, Run
from bongsu.cli.jobs_view import run_now, show_list, show_one
from bongsu.errors import JobRunning, NoSuchJob
from bongsu.settings import Settings
from bongsu.store import Store
from bongsu.store.core.dead_claims import release_dead_claims
from tests.support.deliveries import add_one_delivery, delivery_columns
from tests.support.processes import bongsu
from tests.support.rows import add_row, set_columns

app = App()


@app.job("walk", cron="0 9 * * 1")
async def walk(run: Run) -> str:
    """Walks on Mondays."""
    for _ in range(4):
        await run.save(counts={"steps": 1}, done=1, total=4)
    return "walked"


@pytest.fixture
def console() -> Iterator[Console]:
    yield Console(file=io.StringIO(), width=200)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_jobs_are_listed_run_and_shown(
    settings: Settings, migrated: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "our_jobs.py").write_text("from tests.cli.test_jobs import app\n")
    monkeypatch.syspath_prepend(tmp_path)
    environment = {**migrated, "USER": "min-ji", "LOGNAME": "min-ji"}
    done = bongsu("job", "run", "walk", "--app", "our_jobs:app", environment=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "walk: walked\n", "")
    listed = bongsu("job", "list", "--app", "our_jobs:app", environment=environment).stdout.splitlines()
    names = [line.split()[0] for line in listed]
    assert names[:3] == ["job", "recover", "recommend"]
    assert {"retain", "sweep", "stale-tokens"} < set(names)
    assert listed[names.index("recommend")].split()[6] == "disabled"
    assert listed[names.index("walk")].split()[-1] == "walked"
    assert listed[names.index("walk:")] == "walk: At 09:00 on Monday. Walks on Mondays."
    page = bongsu("job", "show", "walk", "--app", "our_jobs:app", environment=environment).stdout
    for words in ("asked by cli:min-ji", "progress 4 of 4 done", "counts   steps 4", "owner    "):
        assert words in page
    # It is not known without the app.
    assert "There is no job 'walk'" in bongsu("job", "run", "walk", environment=environment).stderr


async def test_the_recovery_job_is_run(store: Store, settings: Settings, console: Console) -> None:
    one = await add_one_delivery(store, "FAIL", is_retryable=True)
    assert (await run_now(settings, None, "recover", console)).result == "1 given another round"
    assert await delivery_columns(store, one, "status") == "READY"


async def test_a_long_run_shows_a_bar_on_a_terminal(store: Store, settings: Settings) -> None:
    terminal = Console(file=io.StringIO(), width=200, force_terminal=True)
    assert (await run_now(settings, app, "walk", terminal)).result == "walked"
    for words in ("walk", "━", "4/4", "steps 4"):
        assert words in shown(terminal)


async def test_a_run_of_another_process_is_shown_with_its_owner(store: Store, settings: Settings, console: Console) -> None:
    async with store.transaction() as tx:
        await add_row(
            tx, "runs", job="recover", slot=timedelta(minutes=-1), leased_by="clock-1.example:77", due=timedelta(hours=1),
            counts='{"given": 7}', done=7, total=2000, is_made_up=True, skipped=2, input='{"x": "\\u001b[31m"}',
        )  # fmt: skip
    await show_list(settings, None, console)
    assert "run by clock-1.example:77, 7 of 2,000 done" in shown(console)
    await show_one(settings, None, "recover", console)
    page = shown(console)
    for words in ("missed and made up for", "2 missed slots before it", "owner    clock-1.example:77", "counts   given 7"):
        assert words in page
    assert "\x1b" not in page
    # An embedded store is held by its service; alone on it, the command would know that the owner is dead.
    async with release_dead_claims(store):
        await set_columns(store, "runs", due=timedelta(hours=1))
        with pytest.raises(JobRunning, match="recover is run by clock-1.example:77 since"):
            await run_now(settings, None, "recover", console)
    await set_columns(store, "runs", due=timedelta(seconds=-1))
    await show_list(settings, None, console)
    assert "abandoned by clock-1.example:77, 7 of 2,000 done; the next clock goes on" in shown(console)
    await set_columns(store, "runs", finished_at=timedelta(0), error="ZeroDivisionError: by zero")
    await show_list(settings, None, console)
    assert "ZeroDivisionError: by zero" in shown(console)


async def test_a_job_that_has_not_run_and_one_that_there_is_not(store: Store, settings: Settings, console: Console) -> None:
    await show_one(settings, None, "recover", console)
    assert "Every fifth minute from 09:00 through 21:59 (Asia/Seoul), next: 2" in shown(console)
    assert "It has not run yet." in shown(console)
    with pytest.raises(NoSuchJob, match="There is no job 'nap'"):
        await show_one(settings, None, "nap", console)
