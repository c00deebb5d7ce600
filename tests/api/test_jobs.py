"""GET /api/admin/jobs and POST /api/admin/jobs/{name}/run."""

from __future__ import annotations

import httpx
import pytest

from bongsu.clock.jobs.recover import Recovery
from bongsu.store import Store
from tests.support.deliveries import add_one_delivery, delivery_columns


async def test_jobs_say_when_they_come_and_how_they_went(api: httpx.AsyncClient, store: Store) -> None:
    (job,) = (await api.get("/api/admin/jobs")).json()["items"]
    assert "T" in job.pop("nextAt")
    assert len(job.pop("does")) > 20
    assert job == {"name": "recover", "cron": "*/5 9-21 * * *", "timezone": "Asia/Seoul", "lastRun": None}
    one = await add_one_delivery(store, "FAIL", is_retryable=True)
    response = await api.post("/api/admin/jobs/recover/run")
    assert (response.status_code, response.json()["result"]) == (200, "1 given another round")
    assert await delivery_columns(store, one, "status") == "READY"
    (job,) = (await api.get("/api/admin/jobs")).json()["items"]
    assert job["lastRun"] == response.json()
    assert job["lastRun"]["error"] is None


async def test_a_job_that_failed_says_so(api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_self: Recovery, *_given: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(Recovery, "_give_rounds", fail)
    answer = (await api.post("/api/admin/jobs/recover/run")).json()
    assert (answer["result"], answer["error"]) == (None, "ZeroDivisionError: by zero")


async def test_a_job_that_there_is_not_is_not_found(api: httpx.AsyncClient, member_token: str) -> None:
    response = await api.post("/api/admin/jobs/nap/run")
    assert response.status_code == 404
    assert response.json()["detail"].startswith("There is no job 'nap', there is recover.")
    headers = {"Authorization": f"Bearer {member_token}"}
    assert (await api.get("/api/admin/jobs", headers=headers)).status_code == 403
    assert (await api.post("/api/admin/jobs/recover/run", headers=headers)).status_code == 403
