"""Which jobs a process has."""

from __future__ import annotations

from pathlib import Path

import pytest

from bongsu import App, Run
from bongsu.desk.jobs import build_jobs
from bongsu.errors import BadApp
from bongsu.runtime.signals import LocalSignals
from bongsu.settings import Settings
from bongsu.store import Store


async def nothing(_run: Run) -> str:
    return ""


def names(app: App, folder: Path) -> list[str]:
    settings = Settings(data_dir=folder)
    return [job.name for job in build_jobs(settings, Store.open(settings), LocalSignals(), app.jobs)]


async def test_the_jobs_of_an_app_come_after_the_built_in_ones(tmp_path: Path) -> None:
    app = App()
    app.job("weekly-report", cron="0 9 * * 1")(nothing)
    assert names(app, tmp_path)[-1] == "weekly-report"
    assert {"recover", "recommend", "replay"} < set(names(app, tmp_path))


@pytest.mark.parametrize("name", ["recover", "recommend", "replay"])
async def test_a_job_with_a_built_in_name_is_refused(tmp_path: Path, name: str) -> None:
    app = App()
    app.job(name, cron="0 9 * * 1")(nothing)
    with pytest.raises(BadApp, match=f"Job {name} is built in: give yours another name"):
        names(app, tmp_path)
