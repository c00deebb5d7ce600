"""/api/admin/events: the events, how far one has come, and stopping it."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from bongsu.api.auth import Gate, key_ending
from bongsu.api.bodies import described, read_as
from bongsu.api.history import Moment, refuse_repeats
from bongsu.api.paging import no_cursor, unwrap, wrap
from bongsu.api.problems import PROBLEMS
from bongsu.desk.cancel import Cancellations
from bongsu.errors import NoSuchEvent
from bongsu.model import EventStatus, Id, Name
from bongsu.store import Store
from bongsu.store.desk import event_progress as statements
from bongsu.store.desk.cancellations import Cancellation
from bongsu.store.desk.event_progress import EventProgress, EventRow, Filters, PageCursor

# --- requests ---------------------------------------------------------------------------------------------------------


def _bare(cursor: str) -> PageCursor:
    match unwrap(cursor):
        case [str(created_at), str(event_id)]:
            with contextlib.suppress(ValueError, OverflowError):
                moment = datetime.fromisoformat(created_at)
                if moment.tzinfo is not None and moment.astimezone(UTC).year >= 1970:
                    return PageCursor(moment, UUID(event_id))
    raise no_cursor()


def wrapped(place: PageCursor) -> str:
    """A place as a cursor."""
    return wrap(place.created_at.isoformat(), str(place.event_id))


class EventQuery(BaseModel):
    """The filters. An unknown name is refused: a misspelt filter would match everything."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    type: Name | None = Field(None, description="The event's type, such as product.price_changed")
    status: EventStatus | None = None
    target_id: Id | None = None
    since: Moment | None = Field(None, alias="from", description="Stored at this moment or later")
    until: Moment | None = Field(None, alias="to", description="Stored before this moment")
    limit: int = Field(50, ge=1, le=100, description="How many at most")
    cursor: Annotated[PageCursor, BeforeValidator(_bare, json_schema_input_type=str)] | None = Field(
        None, description="What `next` of the page before said"
    )

    @model_validator(mode="after")
    def _in_order(self) -> EventQuery:
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise PydanticCustomError("order", "`from` must lie before `to`")
        return self

    @property
    def filters(self) -> Filters:
        return Filters(self.type, self.status, self.target_id, self.since, self.until)


class CancelRequest(BaseModel):
    """How to cancel an event."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)

    withdraw: bool = Field(False, description="Take what was decided back out of the inboxes and unread counts too")


_cancel_request = TypeAdapter(CancelRequest)


# --- responses --------------------------------------------------------------------------------------------------------


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class EventItem(_Wire):
    event_id: UUID
    event_type: str
    status: EventStatus
    actor_id: str | None
    target_id: str | None
    ref_id: str | None
    attempts: int = Field(description="How many attempts have failed")
    error: str | None
    created_at: datetime
    finished_at: datetime | None = Field(description="When it was finished; deliveries may go on after that")


class EventPage(_Wire):
    items: list[EventItem] = Field(description="May be fewer than `limit`, or none, although there is a next page")
    next: str | None = Field(description="The cursor of the next page, if there is one")


class CancellationItem(_Wire):
    requested_at: datetime
    requested_by: str
    withdraw: bool
    cancelled: int = Field(description="Deliveries that were stopped")
    sent: int = Field(description="Deliveries that had gone out, or were on the wire")
    withdrawn: int = Field(description="Inbox rows that were taken back")


class CancelledItem(_Wire):
    event_id: UUID
    status: EventStatus
    cancelled: int = Field(description="Deliveries that were stopped")
    sent: int = Field(description="Deliveries that had gone out, or were on the wire")
    withdrawn: int = Field(description="Inbox rows that were taken back")


class ProgressItem(EventItem):
    decided: int = Field(description="Members that were notified or suppressed")
    suppressed: dict[str, int] = Field(description="Members by the reason why they got no notification")
    deliveries: dict[str, dict[str, int]] = Field(
        description="By channel and status. Of an event of many members, those being sent are counted as READY"
    )
    due_at: datetime | None = Field(description="When it is to be decided, if that lies ahead")
    rate_per_second: float | None = Field(
        description="Deliveries with an outcome per second since the first message was written; null if none waits"
    )
    expected_end: datetime | None = Field(description="When the last delivery has an outcome, at this rate")
    cancellation: CancellationItem | None


# --- routes -----------------------------------------------------------------------------------------------------------


def router(gate: Gate, store: Store, cancellations: Cancellations) -> APIRouter:
    routes = APIRouter(
        prefix="/api/admin/events", tags=["operations"], dependencies=[Depends(gate.server)], responses=PROBLEMS
    )

    @routes.get("", response_model=EventPage, summary="List events, newest first")
    async def list_events(query: Annotated[EventQuery, Query()], request: Request) -> Response:
        refuse_repeats(request)
        async with store.read() as tx:
            page = await statements.find_page(tx, query.filters, query.cursor, query.limit)
        more = None if page.next is None else wrapped(page.next)
        return JSONResponse({"items": [_item(row) for row in page.rows], "next": more})

    @routes.get("/{event_id}", response_model=ProgressItem, summary="Show how far an event has come")
    async def show_event(event_id: UUID) -> Response:
        return JSONResponse(_progress_item(await find_event(store, event_id)))

    @routes.post(
        "/{event_id}/cancel",
        response_model=CancelledItem,
        openapi_extra=described(CancelRequest, is_required=False),
        responses={409: {**PROBLEMS[422], "description": "Nothing is left to cancel"}},
        summary="Cancel an event: stop what has not been sent",
    )
    async def cancel_event(event_id: UUID, request: Request) -> Response:
        asked = await read_as(request, _cancel_request, default=CancelRequest())
        done = await cancellations.cancel(event_id, key_ending(request), withdraw=asked.withdraw)
        return JSONResponse(
            {
                "eventId": str(event_id),
                "status": EventStatus.CANCELLED.value,
                "cancelled": done.cancelled,
                "sent": done.sent,
                "withdrawn": done.withdrawn,
            }
        )

    return routes


async def find_event(store: Store, event_id: UUID) -> EventProgress:
    """How far an event has come. Raises NoSuchEvent."""
    async with store.read() as tx:
        progress = await statements.find_progress(tx, event_id)
    if progress is None:
        raise NoSuchEvent(f"There is no event {event_id}")
    return progress


def _item(row: EventRow) -> dict[str, Any]:
    return {
        "eventId": str(row.event_id),
        "eventType": row.event_type,
        "status": row.status.value,
        "actorId": row.actor_id,
        "targetId": row.target_id,
        "refId": row.ref_id,
        "attempts": row.attempts,
        "error": row.error,
        "createdAt": row.created_at.isoformat(),
        "finishedAt": row.finished_at and row.finished_at.isoformat(),
    }


def _progress_item(one: EventProgress) -> dict[str, Any]:
    return _item(one.event) | {
        "decided": one.counts.decided,
        "suppressed": one.counts.suppressed,
        "deliveries": one.counts.deliveries,
        "dueAt": one.due_at and one.due_at.isoformat(),
        "ratePerSecond": one.rate_per_second,
        "expectedEnd": one.expected_end and one.expected_end.isoformat(),
        "cancellation": one.cancellation and _cancellation_item(one.cancellation),
    }


def _cancellation_item(one: Cancellation) -> dict[str, Any]:
    return {
        "requestedAt": one.requested_at.isoformat(),
        "requestedBy": one.requested_by,
        "withdraw": one.withdraw,
        "cancelled": one.cancelled,
        "sent": one.sent,
        "withdrawn": one.withdrawn,
    }
