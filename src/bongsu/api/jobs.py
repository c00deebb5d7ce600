"""GET /api/admin/jobs and POST /api/admin/jobs/{name}/run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fastapi import APIRouter, Depends
from pydantic import Field

from bongsu.api.auth import Gate
from bongsu.api.models import ApiModel
from bongsu.api.problems import problems
from bongsu.clock.job import Job
from bongsu.clock.listing import JobStatus, find_job, list_jobs
from bongsu.clock.scheduler import run_by_hand
from bongsu.settings import Settings
from bongsu.store import Share, Store
from bongsu.store.job_runs import Run


class RunItem(ApiModel):
    slot: datetime = Field(description="The time it was scheduled for; of a run by hand, when it was requested")
    started_at: datetime
    finished_at: datetime | None = Field(description="null while it runs, and if its process died")
    result: str | None
    error: str | None


class JobItem(ApiModel):
    name: str
    does: str
    cron: str
    timezone: str
    next_at: datetime | None = Field(description="null if the cron never comes")
    last_run: RunItem | None


class JobList(ApiModel):
    items: list[JobItem]


def router(gate: Gate, settings: Settings, store: Store, jobs: Sequence[Job]) -> APIRouter:
    """Any process that answers requests can list and run jobs, whether or not it has the clock."""
    routes = APIRouter(
        prefix="/api/admin", tags=["operations"], dependencies=[Depends(gate.server)], responses=problems(401, 403, 503)
    )
    # A job does the same work as by the clock, and waits as long for it.
    work = store.share(Share.WORK)

    @routes.get("/jobs", summary="List scheduled jobs")
    async def list_all() -> JobList:
        """Each with its next slot and its last run."""
        return JobList(items=[_item(settings, status) for status in await list_jobs(settings, store, jobs)])

    @routes.post("/jobs/{name}/run", responses=problems(404, 422), summary="Run a job now")
    async def run(name: str) -> RunItem:
        """Waits until it is finished, under the same lock as its scheduled runs. If it fails, `error` says why."""
        return _run(await run_by_hand(work, find_job(jobs, name)))

    return routes


def _item(settings: Settings, status: JobStatus) -> JobItem:
    return JobItem(
        name=status.job.name,
        does=status.job.does,
        cron=status.job.cron,
        timezone=settings.timezone,
        next_at=status.next_at,
        last_run=None if status.last_run is None else _run(status.last_run),
    )


def _run(run: Run) -> RunItem:
    return RunItem(slot=run.slot, started_at=run.started_at, finished_at=run.finished_at, result=run.result, error=run.error)
