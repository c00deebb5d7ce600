"""GET /api/admin/jobs and POST /api/admin/jobs/{name}/run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest

from bongsu.clock.jobs.recover import Recovery
from bongsu.deliver import leases
from bongsu.runtime.process import process_name
from bongsu.store import Store
from tests.support.deliveries import add_one_delivery, delivery_columns
from tests.support.rows import add_row, set_columns


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery waits for dispatchers that may be about to renew their leases. Here there are none."""
    monkeypatch.setattr(leases, "GRACE_SECONDS", 0.0)


async def recovery(api: httpx.AsyncClient) -> dict[str, Any]:
    """The recovery job in the list of jobs."""
    (job,) = [job for job in (await api.get("/api/admin/jobs")).json()["items"] if job["name"] == "recover"]
    found: dict[str, Any] = job
    return found


async def test_jobs_say_when_they_come_and_how_they_went(api: httpx.AsyncClient, store: Store) -> None:
    job = await recovery(api)
    assert "T" in job.pop("nextAt")
    assert len(job.pop("does")) > 20
    assert job == {
        "name": "recover", "cron": "*/5 9-21 * * *", "schedule": "Every fifth minute from 09:00 through 21:59",
        "timezone": "Asia/Seoul", "enabled": True, "lastRun": None,
    }  # fmt: skip
    one = await add_one_delivery(store, "FAIL", is_retryable=True)
    response = await api.post("/api/admin/jobs/recover/run")
    assert (response.status_code, response.json()["result"]) == (200, "1 given another round")
    assert await delivery_columns(store, one, "status") == "READY"
    job = await recovery(api)
    assert job["lastRun"] == response.json()
    shown = (await api.get("/api/admin/jobs/recover")).json()
    assert shown.pop("runs") == [response.json()]
    assert shown == job
    run = job["lastRun"]
    assert all("T" in run.pop(name) for name in ("startedAt", "finishedAt"))
    assert run.pop("runId").isdigit()
    assert run == {
        "slot": None, "requestedBy": "key:ests", "input": None, "owner": process_name(), "abandoned": False, "done": 0,
        "total": None, "counts": {"given": 1}, "madeUp": False, "skipped": 0, "result": "1 given another round",
        "error": None,
    }  # fmt: skip


async def test_a_run_under_way_names_its_owner_and_how_far_it_is(api: httpx.AsyncClient, store: Store) -> None:
    async with store.transaction() as tx:
        await add_row(
            tx, "runs", job="recover", slot=timedelta(minutes=-1), leased_by="clock-1.example:77", due=timedelta(hours=1),
            counts='{"given": 7}', done=7, total=20, is_made_up=True, skipped=2,
        )  # fmt: skip
    response = await api.post("/api/admin/jobs/recover/run")
    assert response.status_code == 409
    problem = response.json()
    assert problem["type"] == "urn:bongsu:job-running"
    assert problem["detail"].startswith("recover is run by clock-1.example:77 since ")
    job = await recovery(api)
    names = ("owner", "abandoned", "finishedAt", "done", "total", "counts", "madeUp", "skipped")
    assert [job["lastRun"][name] for name in names] == ["clock-1.example:77", False, None, 7, 20, {"given": 7}, True, 2]
    # Its process died: whoever asks next goes on with it.
    await set_columns(store, "runs", due=timedelta(seconds=-1))
    assert (await api.get("/api/admin/jobs/recover")).json()["lastRun"]["abandoned"]
    done = (await api.post("/api/admin/jobs/recover/run")).json()
    assert (done["result"], done["owner"], done["requestedBy"]) == ("7 given another round", process_name(), "clock")


async def test_a_job_that_failed_says_so(api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_self: Recovery, *_given: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(Recovery, "_give_rounds", fail)
    answer = (await api.post("/api/admin/jobs/recover/run")).json()
    assert (answer["result"], answer["error"]) == (None, "ZeroDivisionError: by zero")


async def test_a_job_that_there_is_not_is_not_found(api: httpx.AsyncClient, member_token: str) -> None:
    response = await api.post("/api/admin/jobs/nap/run")
    assert response.status_code == 404
    assert response.json()["detail"].startswith("There is no job 'nap', there is recover, ")
    assert (await api.get("/api/admin/jobs/nap")).status_code == 404
    # One that needs an input has endpoints of its own.
    assert (await api.post("/api/admin/jobs/replay/run")).status_code == 404
    headers = {"Authorization": f"Bearer {member_token}"}
    assert (await api.get("/api/admin/jobs", headers=headers)).status_code == 403
    assert (await api.post("/api/admin/jobs/recover/run", headers=headers)).status_code == 403


async def test_the_recommendation_is_listed_when_it_is_disabled_and_runs_by_hand(api: httpx.AsyncClient) -> None:
    (job,) = [job for job in (await api.get("/api/admin/jobs")).json()["items"] if job["name"] == "recommend"]
    assert (job["cron"], job["enabled"], job["nextAt"]) == ("0 9 * * *", False, None)
    behaviors = [
        {"userId": "a", "productId": "p-1", "action": "VIEW"},
        {"userId": "b", "productId": "p-2", "action": "VIEW"},
    ]
    assert (await api.post("/api/behaviors", json=behaviors)).is_success
    answer = (await api.post("/api/admin/jobs/recommend/run")).json()
    assert (answer["result"], answer["error"]) == ("2 notified, 0 skipped", None)
