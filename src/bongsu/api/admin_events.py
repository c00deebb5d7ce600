"""/api/admin/events: list events, show how far one has come, cancel one."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field, TypeAdapter

from bongsu.api.auth import Authenticator, key_ending
from bongsu.api.bodies import described, read_as
from bongsu.api.models import ApiModel, Page, RequestModel, Timestamp
from bongsu.api.paging import cursor_of, encode_cursor
from bongsu.api.problems import problems
from bongsu.api.query import CURSOR, refuse_repeats
from bongsu.desk import progress as desk
from bongsu.desk.cancel import Cancellations
from bongsu.desk.progress import EventFilter
from bongsu.model import EventStatus
from bongsu.store import Store
from bongsu.store.desk.cancellations import Cancellation
from bongsu.store.desk.event_progress import EventProgress, PageCursor
from bongsu.store.outbox import EventRow

# --- requests ---------------------------------------------------------------------------------------------------------


class EventQuery(EventFilter):
    limit: int = Field(50, ge=1, le=100, description="How many at most")
    cursor: Annotated[PageCursor, cursor_of(PageCursor)] | None = CURSOR


class CancelRequest(RequestModel):
    """How to cancel an event."""

    withdraw: bool = Field(False, description="Remove it from the inboxes and unread counts too")


_cancel_request = TypeAdapter(CancelRequest)


# --- answers ----------------------------------------------------------------------------------------------------------


class EventItem(ApiModel):
    event_id: UUID
    event_type: str
    status: EventStatus
    actor_id: str | None
    target_id: str | None
    ref_id: str | None
    attempts: int = Field(description="How many attempts have failed")
    error: str | None
    created_at: Timestamp
    finished_at: Timestamp | None = Field(description="When it was finished; deliveries may go on after that")


class EventPage(Page[EventItem]):
    pass


class CancelCounts(ApiModel):
    cancelled: int = Field(description="Deliveries that were stopped")
    sent: int = Field(description="Deliveries that had been sent, or were being sent")
    withdrawn: int = Field(description="Inbox rows that were withdrawn")


class CancellationItem(CancelCounts):
    requested_at: Timestamp
    requested_by: str
    withdraw: bool


class CancelledItem(CancelCounts):
    event_id: UUID
    status: EventStatus


class ProgressItem(EventItem):
    decided: int = Field(description="Members that were notified, merged or suppressed")
    merged: int = Field(description="Members for whom it was merged into an open digest")
    suppressed: dict[str, int] = Field(description="Members by the reason why they got no notification")
    deliveries: dict[str, dict[str, int]] = Field(
        description="By channel and status. Of an event of many members, those being sent are counted as READY"
    )
    due_at: Timestamp | None = Field(description="When it is to be decided, if that lies ahead")
    rate_per_second: float | None = Field(
        description="Deliveries with an outcome per second since the first message was written; null if none waits"
    )
    expected_end: Timestamp | None = Field(description="When the last delivery has an outcome, at this rate")
    cancellation: CancellationItem | None


# --- routes -----------------------------------------------------------------------------------------------------------


def router(auth: Authenticator, store: Store, cancellations: Cancellations) -> APIRouter:
    routes = APIRouter(
        prefix="/api/admin/events",
        tags=["operations"],
        dependencies=[Depends(auth.server)],
        responses=problems(401, 403, 422, 503),
    )

    @routes.get("", summary="List events")
    async def list_events(query: Annotated[EventQuery, Query()], request: Request) -> EventPage:
        """Newest first. The filters are combined with AND."""
        refuse_repeats(request)
        rows, end = await desk.list_events(store, query, query.cursor, query.limit)
        return EventPage(items=[EventItem(**_fields(row)) for row in rows], next=end and encode_cursor(end))

    @routes.get("/{event_id}", responses=problems(404), summary="Show the progress of an event")
    async def show_event(event_id: UUID) -> ProgressItem:
        """The members decided, the deliveries by channel and status, the rate of sending and when it is expected to end."""
        return _progress_item(await desk.find_progress(store, event_id))

    @routes.post(
        "/{event_id}/cancel",
        openapi_extra=described(CancelRequest, is_required=False, example={"withdraw": True}),
        responses=problems(400, 404, 409, 413, 415),
        summary="Cancel an event",
    )
    async def cancel_event(event_id: UUID, request: Request) -> CancelledItem:
        """Stop what has not been sent; with `withdraw`, take the notifications out of the inboxes too. A repeated call
        answers the same. 409 if nothing is left to cancel."""
        asked = await read_as(request, _cancel_request, default=CancelRequest())
        done = await cancellations.cancel(event_id, key_ending(request), withdraw=asked.withdraw)
        return CancelledItem(
            event_id=event_id,
            status=EventStatus.CANCELLED,
            cancelled=done.cancelled,
            sent=done.sent,
            withdrawn=done.withdrawn,
        )

    return routes


def _fields(row: EventRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in EventItem.model_fields}


def _progress_item(progress: EventProgress) -> ProgressItem:
    return ProgressItem(
        **_fields(progress.event),
        decided=progress.counts.decided,
        merged=progress.counts.merged,
        suppressed=dict(progress.counts.suppressed),
        deliveries={channel: dict(statuses) for channel, statuses in progress.counts.deliveries.items()},
        due_at=progress.due_at,
        rate_per_second=progress.rate_per_second,
        expected_end=progress.expected_end,
        cancellation=progress.cancellation and _cancellation_item(progress.cancellation),
    )


def _cancellation_item(done: Cancellation) -> CancellationItem:
    return CancellationItem(
        requested_at=done.requested_at,
        requested_by=done.requested_by,
        withdraw=done.withdraw,
        cancelled=done.cancelled,
        sent=done.sent,
        withdrawn=done.withdrawn,
    )
