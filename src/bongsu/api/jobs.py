"""GET /api/admin/jobs and POST /api/admin/jobs/{name}/run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from bongsu.api.auth import Gate
from bongsu.api.problems import PROBLEMS
from bongsu.clock.job import Job
from bongsu.clock.listing import JobStatus, find_job, list_jobs
from bongsu.clock.scheduler import run_by_hand
from bongsu.settings import Settings
from bongsu.store import Share, Store
from bongsu.store.job_runs import Run


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class RunItem(_Wire):
    slot: datetime = Field(description="The time it was scheduled for; of a run by hand, when it was requested")
    started_at: datetime
    finished_at: datetime | None = Field(description="null while it runs, and if its process died")
    result: str | None
    error: str | None


class JobItem(_Wire):
    name: str
    does: str
    cron: str
    timezone: str
    next_at: datetime | None = Field(description="null if the cron never comes")
    last_run: RunItem | None


class JobList(_Wire):
    items: list[JobItem]


def router(gate: Gate, settings: Settings, store: Store, jobs: Sequence[Job]) -> APIRouter:
    """Any process that answers requests can list and run jobs, whether or not it has the clock."""
    routes = APIRouter(prefix="/api/admin", tags=["operations"], dependencies=[Depends(gate.server)], responses=PROBLEMS)
    # A job does the same work as by the clock, and waits as long for it.
    work = store.share(Share.WORK)

    @routes.get("/jobs", summary="List scheduled jobs with their next slot and last run")
    async def list_all() -> JobList:
        return JobList(items=[_item(settings, status) for status in await list_jobs(settings, store, jobs)])

    @routes.post("/jobs/{name}/run", summary="Run a job now and wait for it; if it fails, `error` says why")
    async def run(name: str) -> RunItem:
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
