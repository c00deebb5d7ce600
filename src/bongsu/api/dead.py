"""/api/admin/dead: list dead letters, and replay those that match."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel

from bongsu.api.auth import Gate, key_ending
from bongsu.api.bodies import described, read_as
from bongsu.api.models import ApiModel, Page, Timestamp
from bongsu.api.paging import cursor_of, encode_cursor
from bongsu.api.problems import problems
from bongsu.api.query import CURSOR, refuse_repeats
from bongsu.desk.dead_letters import DeadFilter, DeadLetterSource, Replayed
from bongsu.store.desk.dead_letters import DeadRow, Kind, PageCursor, State


class DeadQuery(DeadFilter):
    limit: int = Field(50, ge=1, le=200, description="How many at most")
    cursor: Annotated[PageCursor, cursor_of(PageCursor)] | None = CURSOR


class ReplayRequest(BaseModel):
    """Which dead letters to replay, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)

    filter: DeadFilter | None = Field(None, description="At least one of its names must be given")
    dry_run: bool = Field(False, description="Count them and change nothing")
    new_collapse_id: bool = Field(False, description="Show it beside what may have arrived already, not in its place")


_request: TypeAdapter[ReplayRequest] = TypeAdapter(ReplayRequest)


class DeadItem(ApiModel):
    kind: Kind
    id: str = Field(description="A delivery's number or an event's UUID")
    state: State
    code: str | None = Field(description="Of an event, the kind of error")
    error: str | None
    type: str
    event_id: UUID
    member_id: str | None
    channel: str | None
    device_id: str | None
    notification_id: str | None
    title: str | None
    tries: int
    rounds: int = Field(description="How often the recovery job has retried it")
    retryable: bool = Field(description="Whether the recovery job may retry it again")
    created_at: Timestamp
    finished_at: Timestamp


class DeadPage(Page[DeadItem]):
    pass


class ReplayResult(ApiModel):
    matched: int
    replayed: int


def router(gate: Gate, dead_letters: DeadLetterSource) -> APIRouter:
    routes = APIRouter(
        prefix="/api/admin", tags=["operations"], dependencies=[Depends(gate.server)], responses=problems(401, 403, 422, 503)
    )

    @routes.get("/dead", summary="List dead letters")
    async def list_dead(query: Annotated[DeadQuery, Query()], request: Request) -> DeadPage:
        """Events that FAILED or were UNHANDLED, then deliveries that ended FAIL or UNKNOWN, newest first. The filters are
        combined with AND."""
        refuse_repeats(request)
        rows, end = await dead_letters.list(query, query.cursor, query.limit)
        return DeadPage(items=[_item(row) for row in rows], next=end and encode_cursor(end))

    @routes.post(
        "/dead/replay",
        openapi_extra=described(ReplayRequest, example={"filter": {"code": "UNREGISTERED"}, "dryRun": True}),
        responses=problems(400, 413, 415),
        summary="Replay dead letters",
    )
    async def replay(request: Request) -> ReplayResult:
        """Make the dead letters that match due again, newest first, and record who asked for it. With `dryRun` they are
        counted only. A filter without any name is refused."""
        asked = await read_as(request, _request)
        wanted = asked.filter or DeadFilter()
        if asked.dry_run:
            done = Replayed(await dead_letters.count(wanted), 0)
        else:
            done = await dead_letters.replay(wanted, key_ending(request), new_collapse_id=asked.new_collapse_id)
        return ReplayResult(matched=done.matched, replayed=done.replayed)

    return routes


def _item(row: DeadRow) -> DeadItem:
    return DeadItem(
        kind=row.kind,
        id=row.id,
        state=row.state,
        code=row.code,
        error=row.error,
        type=row.type,
        event_id=row.event_id,
        member_id=row.member_id,
        channel=row.channel,
        device_id=row.device_id,
        notification_id=None if row.notification_id is None else str(row.notification_id),
        title=row.title,
        tries=row.attempts,
        rounds=row.rounds,
        retryable=row.is_retryable,
        created_at=row.created_at,
        finished_at=row.died_at,
    )
