"""GET /api/admin/jobs, GET /api/admin/jobs/{name} and POST /api/admin/jobs/{name}/run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from bongsu.api.auth import Authenticator, key_ending
from bongsu.api.models import ApiModel
from bongsu.api.problems import problems
from bongsu.desk.jobs import JobDesk, JobStatus
from bongsu.settings import Settings
from bongsu.store.runs import RunRow


class RunItem(ApiModel):
    run_id: str
    slot: datetime | None = Field(description="The time it was scheduled for; null if it was requested by hand")
    requested_by: str = Field(description="clock, or who requested it")
    input: Any = Field(description="What was requested: the filter of a replay")
    owner: str = Field(description="Host and process id of the process that runs it, or ran it last")
    abandoned: bool = Field(description="Its process crashed, or lost its lease: the next clock continues it")
    started_at: datetime
    finished_at: datetime | None = Field(description="null while it runs or is abandoned")
    done: int = Field(description="Progress: how many items are finished")
    total: int | None = Field(description="Of how many, if that is known")
    counts: dict[str, int] = Field(description="What was done so far")
    made_up: bool = Field(description="Whether its slot was missed and it was begun later")
    skipped: int = Field(description="Missed slots before it that are not made up for, 1000 at most")
    result: str | None
    error: str | None


class JobItem(ApiModel):
    name: str
    does: str
    cron: str | None = Field(description="null: it is run on request only")
    schedule: str | None = Field(description="The cron text in words")
    timezone: str
    enabled: bool = Field(description="Whether the clock runs it")
    next_at: datetime | None = Field(description="null if it is not scheduled")
    last_run: RunItem | None


class JobDetails(JobItem):
    runs: list[RunItem] = Field(description="The last ten, newest first")


class JobList(ApiModel):
    items: list[JobItem]


def router(auth: Authenticator, settings: Settings, desk: JobDesk) -> APIRouter:
    """Any process that answers requests can list and run jobs, whether or not it has the clock."""
    routes = APIRouter(
        prefix="/api/admin", tags=["operations"], dependencies=[Depends(auth.server)], responses=problems(401, 403, 503)
    )

    @routes.get("/jobs", summary="List scheduled jobs")
    async def list_all() -> JobList:
        """Each with its next slot and its last run, which names the owner while it is under way."""
        return JobList(items=[JobItem(**_fields(settings, status)) for status in await desk.list()])

    @routes.get("/jobs/{name}", responses=problems(404, 422), summary="Show a job and its last runs")
    async def show(name: str) -> JobDetails:
        """Also `replay`, whose runs are the replays of dead letters."""
        status = await desk.show(name)
        return JobDetails(**_fields(settings, status), runs=[_run(row) for row in status.runs])

    @routes.post("/jobs/{name}/run", responses=problems(404, 409, 422), summary="Run a job now")
    async def run(name: str, request: Request) -> RunItem:
        """Waits until it is finished. If it fails, `error` says why. If it is running already, the answer is 409 and names
        the owner. An abandoned run is continued."""
        return _run(await desk.run(name, key_ending(request)))

    return routes


def _fields(settings: Settings, status: JobStatus) -> dict[str, Any]:
    job = status.job
    return {
        "name": job.name,
        "does": job.does,
        "cron": job.cron,
        "schedule": status.schedule,
        "timezone": settings.timezone,
        "enabled": job.is_enabled,
        "next_at": status.next_at,
        "last_run": None if status.last_run is None else _run(status.last_run),
    }


def _run(row: RunRow) -> RunItem:
    return RunItem(
        run_id=str(row.run_id),
        slot=row.slot,
        requested_by=row.requested_by,
        input=row.input,
        owner=row.leased_by,
        abandoned=row.is_abandoned,
        started_at=row.started_at,
        finished_at=row.finished_at,
        done=row.done,
        total=row.total,
        counts=dict(row.counts),
        made_up=row.is_made_up,
        skipped=row.skipped,
        result=row.result,
        error=row.error,
    )
